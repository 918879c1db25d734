"""Meshes, layouts and split state.

The result of one device, and the bytes that were promised.
"""

import inspect
import math
import re

import entry
import jax
import numpy as np
import optax
import pytest
from flax import nnx
from jax import P
from marks import quick
from trees import require_close

from pmapdp.collectives import collectives
from pmapdp.config import Config
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError
from pmapdp.job import choose_strategy
from pmapdp.models import axes
from pmapdp.models.dot_relu_dot import DotReluDot
from pmapdp.sharding.flags import (
    check_sharding,
    fit_layout,
    number_of_devices,
    parse_layout,
)
from pmapdp.sharding.layout import Axes, MeshLayout, bytes_on_a_device, state_line
from pmapdp.state import Task, build, create_state
from pmapdp.steps.placing import fetch
from pmapdp.train import load_run, train

CLIP = 0.05  # far below the gradients' length, so that every update is clipped
MODEL = {"mesh": "data=4,model=2", "layout": "model"}
SPATIAL = {"mesh": "data=2,feature=2,model=2", "layout": "spatial"}
REFERENCES = {}  # of one device, by model
# model, micro-batches, strategy, devices, options, most of the bytes of one device that
# a device may hold
CASES = [
    ("mlp", 1, "jit", 8, MODEL, 0.51),
    ("mlp", 1, "jit", 8, {"shard_state": "parameters"}, 0.15),
    ("mlp", 2, "jit", 7, {"shard_state": "optimizer"}, 0.66),
    ("text_mlp", 1, "jit", 8, SPATIAL, 0.26),
]


def five_updates(model: str, strategy: str, task: Task, devices, layout: MeshLayout):
    """The state after an epoch of 83 examples in batches of 18, and loss and counts of
    an evaluation.
    """
    steps = choose_strategy(strategy, task, devices, layout)
    state = steps.place_state(create_state(task))
    shards = layout.batch_shards
    split = Split(*entry.examples_for(model, 83, 1))
    for batch in Batches(
        split, 18, devices=shards, accumulate=task.accumulate, shuffle_seed=3
    ).epoch(0):
        state, _ = steps.train_step(state, steps.place_batch(batch))
    (last,) = Batches(split, 83, devices=shards).epoch(0)
    return state, fetch(
        (
            state.params,
            state.model_state,
            steps.eval_step(state, steps.place_batch(last)),
        )
    )


@pytest.mark.usefixtures("float64")
@quick(2, ("model", "accumulate", "strategy", "devices", "options", "most"), CASES)
def test_equals_one_device_with_its_share_of_the_bytes(
    model, accumulate, strategy, devices, options, most
):
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP), optax.adam(1e-3))
    task = Task(
        entry.built(model, 3, "float64"), optimizer, 3, "float64", accumulate=accumulate
    )
    inputs = entry.examples_for(model, 1, 0).inputs.shape[1:]
    first = jax.devices()[:1]
    if model not in REFERENCES:
        REFERENCES[model] = five_updates(
            model, "single", task, first, fit_layout(first, task, inputs)
        )
    alone, wanted = REFERENCES[model]
    layout = fit_layout(jax.devices()[:devices], task, inputs, **options)
    state, found = five_updates(model, strategy, task, jax.devices()[:devices], layout)

    require_close(wanted, found, atol=1e-10)
    share = bytes_on_a_device(
        (state.params, state.optimizer_state)
    ) / bytes_on_a_device((alone.params, alone.optimizer_state))
    assert share <= most


def test_no_device_ever_holds_a_whole_parameter_while_the_state_is_made():
    """The model is built on the host.

    The largest array in the program that makes the optimizer state is a shard.
    """
    task = Task(entry.built("mlp"), optax.adam(1e-3))
    fitted = fit_layout(
        jax.devices()[:8], task, (28, 28, 1), **MODEL, shard_state="parameters"
    )
    shardings = fitted.state_sharding(task)
    params = task.split_arrays(task.model)[0]
    params = jax.device_put(params, shardings.params)
    program = (
        jax.jit(task.optimizer.init, out_shardings=shardings.optimizer_state)
        .lower(params)
        .compile()
    )
    in_program = 0  # the numbers in the largest array
    for shape in re.findall(r"\b[fsu]\d+\[([\d,]+)\]", program.as_text()):
        in_program = max(in_program, math.prod(map(int, shape.split(","))))
    state = jax.device_put(create_state(task), fitted.state_sharding(task))
    on_device = 0
    for leaf in jax.tree.leaves(state):
        for shard in leaf.addressable_shards:
            on_device = max(on_device, shard.data.size)
    assert on_device < 784 * 512
    assert on_device <= in_program <= 1.01 * on_device


@pytest.mark.parametrize(
    ("mesh", "layout", "shard_state", "strategy", "message"),
    [
        (
            "data=8",
            "data",
            "none",
            "pmap",
            "--strategy jit, because --strategy pmap splits the batch alone",
        ),
        (
            None,
            "model",
            "none",
            "single",
            "--strategy jit, because --strategy single splits the batch",
        ),
        (
            None,
            "data",
            "parameters",
            "pmap",
            "--shard-state parameters needs --strategy jit, because --strategy pmap",
        ),
        (
            None,
            "data",
            "optimizer",
            "shard_map",
            "optimizer needs --strategy jit, because --strategy shard_map",
        ),
    ],
)
def test_flags_that_cannot_be(mesh, layout, shard_state, strategy, message):
    with pytest.raises(UserError) as error:
        check_sharding(
            Config(mesh=mesh, layout=layout, shard_state=shard_state, strategy=strategy)
        )
    assert message in error.value.message


@pytest.mark.parametrize(
    ("options", "message", "works"),
    [
        ({"mesh": "data:8", "devices": 8},
         "--mesh 'data:8' is not a list of different axes with their sizes: try", {}),
        ({"layout": "modle"}, "did you mean 'model'?", {}),
        ({"mesh": "data=4,model=3"},
         "does not fit hidden1.bias [512] on data=4,model=3 (",
         {"mesh": "data=12", "layout": "data"}),
        ({"mesh": "data=4,model=2", "devices": 4}, "has 8 places for 4 device(s): try",
         {}),
        ({"mesh": "data=8"}, "no axis of the mesh data=8: try --mesh data=4,model=2",
         {"mesh": "data=4,model=2"}),
        ({"devices": 8, "layout": "spatial"}, "try --mesh data=2,model=2,feature=2",
         {"mesh": "data=2,feature=2,model=2", "layout": "spatial"}),
        ({"mesh": "data=4,model=2", "layout": "data"},
         "model of data=4,model=2 splits nothing under --layout data",
         {"mesh": "data=8", "layout": "data"}),
        ({"mesh": "data=8", "layout": "batch=none"},
         "would do the same work: try --mesh data=8 --layout data",
         {"mesh": "data=8", "layout": "data"}),
        ({"mesh": "data=4,model=2", "layout": "hidden=modle"},
         "modle, which is no axis of the mesh data=4", {}),
        ({"mesh": "data=4,model=2", "layout": "hiden=model"}, "did you mean 'hidden'?",
         {"mesh": "data=4,model=2"}),
        ({"mesh": "data=4,model=2", "layout": "hidden=model,embed=model"},
         "not fit hidden2.kernel [512, 512]",
         {"mesh": "data=4,model=2", "layout": "hidden=model,embed=none"}),
        ({"mesh": "data=1,model=8", "layout": "features=model"},
         "not fit the inputs [0, 28]",
         {"mesh": "data=8", "layout": "data"}),
        ({"mesh": "data=1,model=8", "shard_state": "optimizer"}, "over the 1 device(s)",
         {"mesh": "data=1,model=8"}),
    ],
)  # fmt: skip
def test_what_cannot_be_raises_an_error_of_one_sentence(options, message, works):
    """And what the sentence advises works."""
    config = Config(strategy="jit", **options)
    options.pop("devices", None)
    devices = number_of_devices(config) or 8
    task = Task(entry.built("mlp"), optax.adam(1e-3))
    group = [jax.devices()[0]] * devices
    with pytest.raises(UserError) as error:  # before the devices matter
        fit_layout(group, task, (28, 28, 1), **{"layout": "model"} | options)
    assert message in error.value.message
    assert "\n" not in error.value.message
    if works and devices <= 8:
        fit_layout(
            jax.devices()[:devices], task, (28, 28, 1), **{"layout": "model"} | works
        )


def test_a_split_optimizer_state_gathers_the_parameters_once():
    """ZeRO-1 moves what it must.

    The gradients, and then the shards of the parameters.
    """
    task = Task(entry.built("mlp"), optax.adam(1e-3))
    devices = jax.devices()[:8]
    layout = fit_layout(devices, task, (28, 28, 1), shard_state="optimizer")
    steps = choose_strategy("jit", task, devices, layout)
    state = steps.place_state(create_state(task))
    (batch, *_) = entry.batches(entry.examples_for("mlp", 16, 1), 16, devices=8)
    lowered = steps.train_step.lower(state, steps.place_batch(batch))
    moved = {
        operation.kind: operation.bytes
        for operation in collectives(lowered.compile().as_text())
    }
    split = 0
    for param in jax.tree.leaves(state.params):
        if any(size % 8 == 0 for size in param.shape):
            split += param.nbytes
    assert moved["all-gather"] == split
    assert (
        state_line(state) == "each device holds 41.7 % of it: parameters 2.68 MB "
        "+ optimizer 0.67 MB"
    )


PARTED = {
    "muon": lambda rate: optax.contrib.muon(rate),
    "partition": lambda rate: optax.partition(
        {"body": optax.adam(rate), "head": optax.sgd(rate)}, by_layer
    ),
    "masked": lambda rate: optax.chain(
        optax.masked(optax.scale_by_adam(), is_matrix), optax.sgd(rate)
    ),
}


def by_layer(params):
    """Label each parameter by the layer that it belongs to."""

    def label(path, _):
        return "body" if "0" in jax.tree_util.keystr(path[:2]) else "head"

    return jax.tree_util.tree_map_with_path(label, params)


def is_matrix(params):
    return jax.tree.map(lambda param: param.ndim == 2, params)


def split_run(make_optimizer, **settings):
    """The parameters after five updates in float64."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(64, 16))
    data = DataSet(Split(inputs, inputs[:, :8].argmax(1).astype(np.int32)))
    config = Config(
        strategy="jit",
        dtype="float64",
        steps=5,
        epochs=5,
        global_batch_size=16,
        learning_rate=0.01,
        progress=False,
        **settings,
    )
    result = train(config, model=Net, data=data, optimizer=make_optimizer)
    return result.state.params


class Net(nnx.Module):
    """Two layers, whose inner axis has a name that a mesh splits."""

    def __init__(self, *, dtype, param_dtype, rngs):
        types = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.layers = nnx.List(
            [
                nnx.Linear(16, 32, **types, **axes("features", "hidden")),
                nnx.Linear(32, 8, **types, **axes("hidden", "classes")),
            ]
        )

    def __call__(self, x):
        first, second = self.layers
        return second(nnx.relu(first(x)))


SPLITS = {
    "optimizer": {"devices": 4, "shard_state": "optimizer"},
    "parameters": {"devices": 4, "shard_state": "parameters"},
    "mesh": {"mesh": "data=2,model=2", "layout": "model"},
}


@pytest.mark.parametrize("name", PARTED)
def test_rules_for_parts_of_the_model_work_with_a_split_state(name):
    """Optax keeps a MaskedNode for a parameter that a rule leaves alone."""
    whole = split_run(PARTED[name], devices=1)
    for settings in SPLITS.values():
        split = split_run(PARTED[name], **settings)
        require_close(whole, split, atol=1e-12, rtol=1e-10)


def exports_of_optax():
    """Every function of optax and optax.contrib that returns a transformation."""
    exports = {}
    for module in (optax, optax.contrib):
        for name, function in vars(module).items():
            if not inspect.isfunction(function) or name.startswith("_"):
                continue
            returned = str(inspect.signature(function).return_annotation)
            if "GradientTransformation" in returned:
                exports[f"{module.__name__}.{name}"] = function
    return exports


BY_LAYER = {"body": optax.adam(0.01), "head": optax.sgd(0.01)}
# Of those that don't begin with the learning rate: what they need.
ARGUMENTS = {
    "optax.adaptive_grad_clip": (0.1,),
    "optax.add_noise": (0.01, 0.5, 0),
    "optax.apply_if_finite": (optax.sgd(0.01), 5),
    "optax.chain": (optax.clip(0.1), optax.sgd(0.01)),
    "optax.clip": (0.1,),
    "optax.clip_by_block_rms": (0.1,),
    "optax.clip_by_global_norm": (0.1,),
    "optax.conditionally_mask": (optax.sgd(0.01), lambda step: step > 1),
    "optax.conditionally_transform": (optax.sgd(0.01), lambda step: step > 1),
    "optax.contrib.differentially_private_aggregate": (0.1, 0.5, 0),
    "optax.contrib.mechanize": (optax.sgd(0.01),),
    "optax.contrib.sam": (optax.sgd(0.01), optax.sgd(0.05)),
    "optax.contrib.schedule_free": (optax.sgd(0.01), 0.01),
    "optax.contrib.split_real_and_imaginary": (optax.adam(0.01),),
    "optax.ema": (0.9,),
    "optax.flatten": (optax.adam(0.01),),
    "optax.freeze": (True,),
    "optax.lookahead": (optax.sgd(0.01), 2, 0.5),
    "optax.masked": (optax.sgd(0.01), is_matrix),
    "optax.measure_with_ema": (lambda updates, *_: updates, 0.9),
    "optax.multi_transform": (BY_LAYER, by_layer),
    "optax.named_chain": (("clip", optax.clip(0.1)), ("sgd", optax.sgd(0.01))),
    "optax.partition": (BY_LAYER, by_layer),
    "optax.scale": (0.5,),
    "optax.scale_by_backtracking_linesearch": (5,),
    "optax.scale_by_learning_rate": (0.01,),
    "optax.scale_by_schedule": (lambda step: 1 / (1 + step),),
    "optax.scale_by_zoom_linesearch": (5,),
    "optax.selective_transform": (optax.adam(0.01),),
    "optax.snapshot": ("norm", optax.global_norm),
    "optax.stateless": (lambda updates, params: updates,),
    "optax.stateless_with_tree_map": (lambda update, param: update,),
    "optax.trace": (0.9,),
    "optax.with_extra_args_support": (optax.adam(0.01),),
}
KEYWORDS = {"optax.selective_transform": {"freeze_mask": is_matrix}}
# What the trainer refuses, whatever is split, and why.
TAKES_THE_LOSS = "its update takes the loss"
REFUSED = {
    "optax.lbfgs": TAKES_THE_LOSS,
    "optax.polyak_sgd": TAKES_THE_LOSS,
    "optax.scale_by_backtracking_linesearch": TAKES_THE_LOSS,
    "optax.scale_by_polyak": TAKES_THE_LOSS,
    "optax.scale_by_zoom_linesearch": TAKES_THE_LOSS,
    "optax.contrib.momo": TAKES_THE_LOSS,
    "optax.contrib.momo_adam": TAKES_THE_LOSS,
    "optax.contrib.reduce_on_plateau": TAKES_THE_LOSS,
    "optax.contrib.sophia": TAKES_THE_LOSS,
    "optax.sm3": "it takes a number, and no schedule",
    "optax.rprop": "it takes a number, and no schedule",
    "optax.scale_by_rprop": "it takes a number, and no schedule",
    "optax.optimistic_adam": "it takes a number, and no schedule",
    "optax.inject_hyperparams": "tested below, with the rule that it wraps",
    "optax.inject_stateful_hyperparams": "tested below, with the rule that it wraps",
    "optax.lookahead": "its parameters are pairs",
    "optax.contrib.differentially_private_aggregate": "it takes gradients by example",
    "optax.contrib.dpsgd": "it takes gradients by example",
    "optax.contrib.scale_by_muon": "it takes matrices alone, and muon masks the others",
}
# Their state isn't made of an array for each parameter.
REFUSED_IF_SPLIT = ("optax.flatten", "optax.scale_by_sm3")


def make_rule(name):
    """Return a function of the learning rate, or schedule, that makes a whole rule."""
    function = exports_of_optax()[name]
    if next(iter(inspect.signature(function).parameters), "") == "learning_rate":
        return function
    arguments = ARGUMENTS.get(name, ())
    keywords = KEYWORDS.get(name, {})
    return lambda rate: optax.chain(function(*arguments, **keywords), optax.sgd(rate))


def require_equal_if_split(make):
    """Require that a split state ends as a whole one does, in float64."""
    whole = split_run(make, devices=1)
    split = split_run(make, **SPLITS["parameters"])
    # Some rules divide by a root of nearly 0, which makes rounding larger.
    require_close(whole, split, atol=1e-10, rtol=1e-8)


@pytest.mark.nightly
@pytest.mark.parametrize("name", exports_of_optax())
def test_every_rule_of_optax_with_a_split_state(name):
    """Equal to the whole state in float64, or refused with one message."""
    make = make_rule(name)
    if name in REFUSED:
        with pytest.raises(UserError, match="fails"):
            split_run(make, devices=1)
    elif name in REFUSED_IF_SPLIT:
        split_run(make, devices=1)
        for settings in SPLITS.values():
            with pytest.raises(UserError, match="keeps its state in other arrays"):
                split_run(make, **settings)
    else:
        require_equal_if_split(make)


def test_a_rule_with_injected_settings_works_with_a_split_state():
    inject = optax.inject_hyperparams(optax.adam)
    require_equal_if_split(lambda rate: inject(learning_rate=rate))


def test_the_tables_of_rules_name_rules():
    exports = exports_of_optax()
    assert len(exports) > 100
    assert {*ARGUMENTS, *REFUSED, *REFUSED_IF_SPLIT} <= exports.keys()


def test_a_later_rule_wins():
    assert parse_layout("model, hidden=none") == {"hidden": (), "heads": ("model",)}


def test_a_process_reads_the_rows_of_its_devices():
    """As if each process owned some of the 8 devices.

    Real processes train in test_processes.py.
    """
    task = Task(entry.built("mlp"), optax.sgd(0.1))

    def rows(mesh: str, layout: str, owned: range) -> range:
        fitted: MeshLayout = fit_layout(
            jax.devices()[:8], task, (28, 28, 1), mesh=mesh, layout=layout
        )
        return fitted.shards_on([jax.devices()[d] for d in owned], task)

    assert rows("data=8", "data", range(2, 4)) == range(2, 4)
    assert rows("data=4,model=2", "model", range(4, 8)) == range(2, 4)
    assert rows("data=4,model=2", "model", range(1)) == range(1)
    assert rows("model=2,data=4", "model", range(4)) == range(4)
    assert rows("data=2,feature=2,model=2", "spatial", range(4, 8)) == range(1, 2)
    with pytest.raises(UserError, match="name the axes of the batch first"):
        rows("data=2,feature=2,model=2", "spatial", range(2))


@pytest.mark.slow
def test_data_then_spatial_then_split_equals_the_run_that_never_changed(
    tmp_path, capsys
):
    """Each layout goes on from the checkpoint of the one before."""

    def run(name: str, steps: int, **options: str) -> None:
        settings = {
            "optimizer": "momentum",
            "learning_rate": 0.1,
            "epochs": 1,
            "compile_cache": False,
        } | options
        train(
            Config(
                model="mlp",
                strategy="jit",
                devices=8,
                steps=steps,
                workdir=str(tmp_path / name),
                **settings,
            )
        )

    run("straight", 9)
    run("changing", 3)
    run("changing", 6, **SPATIAL)
    run("changing", 9, **MODEL, shard_state="parameters")
    printed = capsys.readouterr().out
    assert all(
        f"restored from the checkpoint of step {step}" in printed for step in (3, 6)
    )
    straight, changing = (
        load_run(tmp_path / name)[1] for name in ("straight", "changing")
    )
    assert int(changing.step) == 9
    require_close(straight, changing, atol=2e-6)


# The recipe nnx-mesh

# Of the guide's program on one device with current JAX, made without this project.
ONE_DEVICE = [1.493, 0.820, 0.558, 0.411, 0.298]
REPORTED = [1.455, 0.765, 0.510, 0.378, 0.281]


@pytest.mark.slow
def test_five_updates_on_the_mesh_as_on_one_device():
    done = entry.run_command("train", "nnx-mesh", "--no-progress", "--no-compile-cache")
    assert done.status == 0, done.err
    assert "batch over data, hidden over model" in done.out
    assert [
        round(float(loss), 3) for loss in re.findall(r"train loss (\S+)", done.out)
    ] == ONE_DEVICE
    rows = [
        line.split()[-2:]
        for line in done.out.splitlines()
        if line.startswith("train loss, epoch")
    ]
    assert [float(reported) for reported, _ in rows] == REPORTED
    assert [round(float(here), 3) for _, here in rows] == ONE_DEVICE


def test_the_loss_and_the_places_of_an_update():
    """The loss is NumPy's, and the places are as the guide has them."""
    task = Task(
        build(type("Small", (DotReluDot,), {"size": 64})),
        optax.adam(1e-3),
        loss=DotReluDot.loss,
    )
    devices = jax.devices()[:8]
    data = Split(*np.random.default_rng(0).normal(size=(2, 8, 64)))
    layout = fit_layout(devices, task, (64,), mesh="data=2,model=4", layout="model")
    steps = choose_strategy("jit", task, devices, layout)
    (batch,) = Batches(data, 8, devices=2).epoch(0)
    state, sums = steps.train_step(
        steps.place_state(create_state(task)), steps.place_batch(batch)
    )

    start = create_state(task)
    first, second = (np.float64(start.params[name]) for name in ("first", "second"))
    loss = np.mean((np.maximum(data.inputs @ first, 0) @ second - data.labels) ** 2)
    assert sums.loss / sums.count == pytest.approx(loss, rel=1e-5)

    places = layout.state_sharding(task)
    assert places.params["first"].spec == P(None, "model")
    assert places.params["second"].spec == P("model", None)
    assert layout.array_sharding(Axes(("batch", "hidden"), (8, 1024))).spec == P(
        "data", "model"
    )
    moments = places.optimizer_state[0]
    assert moments.mu == moments.nu == places.params
    for leaf, place in zip(
        jax.tree.leaves(state), jax.tree.leaves(places), strict=True
    ):
        assert leaf.sharding.is_equivalent_to(place, leaf.ndim)
