"""docs/porting.md and docs/constructs.md: the report and the table are the command's,
the code gives the old numbers, and the rows are run.
"""

import contextlib
import importlib
import re
import socket
import subprocess
import sys
import traceback
from functools import partial
from pathlib import Path
from unittest import mock

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tensorboardX
from flax import jax_utils
from flax.training import checkpoints, common_utils, train_state
from flax.training.dynamic_scale import DynamicScale
from jax import P, lax
from jax.sharding import Mesh, NamedSharding
from launch import environment
from pmap_programs import load

from pmapdp.collectives import collectives
from pmapdp.devices import simulate
from pmapdp.port.__main__ import as_text, report_program
from pmapdp.port.rows import ROWS as CONSTRUCTS

simulate(8)  # before the constants below use JAX
N = 8
SPLIT = P("batch")
RING = [(n, (n + 1) % N) for n in range(N)]
RANDOM = np.random.default_rng(0)
W, X, ROWS = (
    RANDOM.normal(size=shape).astype(np.float32) for shape in (3, (16, 3), (N, N))
)
BATCH = {"x": X, "y": RANDOM.normal(size=16).astype(np.float32)}
STACKED = jax.tree.map(lambda x: x.reshape(8, 2, *x.shape[1:]), BATCH)
KEYS = np.asarray(jax.random.split(jax.random.PRNGKey(3), 8))
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "porting.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_the_report_is_that_of_the_command():
    text = as_text(report_program("lessons/program/12_pmap_2022.py"), everything=False)
    shown = PAGE.partition("12_pmap_2022.py):\n\n```\n")[2].partition("\n```\n")[0]
    assert shown.startswith("  gone ")
    assert f"\n\n{shown}\n\n" in text


DECAY = 0.5  # in place of 1e-4, so that it changes more than rounding does


def old_momentum(params, gradient, momentum):
    """Make an update of `flax.optim.Momentum`, as flax/optim/momentum.py did."""
    momentum = 0.9 * momentum + gradient + DECAY * params
    return params - 0.1 * momentum, momentum


def old_adam(params, gradient, moments):
    """Make an update of `flax.optim.Adam`, as flax/optim/adam.py did."""
    step, mean, square = moments
    step = step + 1
    mean = 0.9 * mean + 0.1 * gradient
    square = 0.999 * square + 0.001 * gradient**2
    direction = mean / (1 - 0.9**step)
    direction /= np.sqrt(square / (1 - 0.999**step)) + 1e-8
    new_params = params - 1e-3 * direction - 1e-3 * DECAY * params
    return new_params, (step, mean, square)


@pytest.mark.parametrize(
    ("name", "old_update", "old_state"),
    [("Momentum", old_momentum, 0), ("Adam", old_adam, (0, 0, 0))],
)
def test_optax_makes_the_updates_of_flax_optim(name, old_update, old_state):
    row = re.search(rf"^\| `optim\.{name}\(.*?\| `(.*)` \|$", PAGE, re.MULTILINE)[1]
    call = re.search(r"`(updates, state = .*?)`, then `(.*?)` \|", PAGE)
    names = {"optax": optax, "grads": np.float32([1, -2, 3])}
    names["params"] = jnp.float32([1, 2, 3])
    names["optimizer"] = eval(row.replace("1e-4", str(DECAY)), names)
    exec("state = optimizer.init(params)", names)
    expected = np.float64([1, 2, 3])
    for _ in range(3):
        exec("\n".join(call.groups()), names)
        expected, old_state = old_update(expected, names["grads"], old_state)
    np.testing.assert_allclose(names["params"], expected, rtol=1e-6)


def test_the_page_of_constructs_is_made_from_the_table():
    command = [sys.executable, "docs/constructs.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    page = (ROOT / "docs" / "constructs.md").read_text()
    assert page == done.stdout, "run `python docs/constructs.py > docs/constructs.md`"
    assert all(f'<a id="{name}"></a>' in page for name in CONSTRUCTS)


OLD_PROGRAM = """from jax.config import config
from flax import optim
import jax
import jax.numpy as jnp
import numpy as np
from flax.training import checkpoints
from jax import lax
from jax.lib import xla_bridge
platform = xla_bridge.get_backend().platform
config.update("jax_debug_nans", False)
def step(w, batch):
    return w - 0.1 * lax.pmean(jax.grad(loss)(w, batch), "batch")
stats, w = {"params": w, "batch_stats": {}}.pop("params")
stats = stats.unfreeze()
stats = stats.copy({"scale": 1.0})
rate = np.float(0.1)
rate = jnp.clip(rate, a_min=0, a_max=1)
w = jax.device_put_replicated(w, jax.devices())
batch = jax.device_put(batch, jax.devices()[0])
batch = jax.tree_map(lambda x: x.reshape(8, 2, *x.shape[1:]), batch)
w = jax.pmap(step, axis_name="batch")(w, batch)
checkpoints.save_checkpoint("folder", {"w": flax.jax_utils.unreplicate(w)}, 1)
"""
COMMITTED = "Sharding passed to jit does not match"
CURES = [  # the error messages in the order of the program, and their lines
    ("No module named 'jax.config'", "from jax.config import config\n", ""),
    ("cannot import name 'optim' from 'flax'",
     "from flax import optim", "import optax, flax.jax_utils"),
    ("cannot import name 'xla_bridge' from 'jax.lib'",
     "from jax.lib import xla_bridge\nplatform = xla_bridge.get_backend().platform",
     "platform = jax.default_backend()"),
    ("too many values to unpack", '{"params": w, "batch_stats": {}}.pop("params")',
     'flax.core.pop({"params": w, "batch_stats": {}}, "params")'),
    ("'dict' object has no attribute 'unfreeze'",
     "stats.unfreeze()", "flax.core.unfreeze(stats)"),
    ("dict.copy() takes no arguments",
     'stats.copy({"scale": 1.0})', 'flax.core.copy(stats, {"scale": 1.0})'),
    ("module 'numpy' has no attribute 'float'", "np.float(", "float("),
    ("clip() got an unexpected keyword argument", "a_min=0, a_max=1", "0, 1"),
    ("device_put_replicated is deprecated",
     "jax.device_put_replicated(w, jax.devices())", "flax.jax_utils.replicate(w)"),
    ("module 'jax' has no attribute 'tree_map'", "jax.tree_map", "jax.tree.map"),
    (COMMITTED, "(step, axis_name=\"batch\")(w, batch)",
     "(step, axis_name=\"batch\")(w, jax.device_get(batch))"),
    ("Checkpoint path should be absolute",
     '"folder"', '__import__("os").path.abspath("folder")'),
]  # fmt: skip


def run_old_program(program):
    """Run a program of 2021, and return its names."""
    names = {"w": W, "batch": BATCH, "loss": loss}
    exec(compile(program, "train.py", "exec"), names)
    return names


def test_the_report_lists_the_lines_that_stop_an_old_program(tmp_path, monkeypatch):
    """All but an array on one device, which only a run shows, as the page says."""
    monkeypatch.chdir(tmp_path)  # it saves a checkpoint
    program = OLD_PROGRAM
    for message, old, new in CURES:
        with pytest.raises(Exception, match=re.escape(message)) as stopped:
            run_old_program(program)
        frames = traceback.extract_tb(stopped.tb)
        stops = [frame.lineno for frame in frames if frame.filename == "train.py"]
        Path("train.py").write_text(program)
        lines = report_program("train.py")["lines"]
        listed = {line["line"] for line in lines if line["status"] != "fine"}
        if message == COMMITTED:
            assert f"`{message}`" in PAGE
        else:
            assert stops[-1] in listed
        assert program.count(old) == 1
        program = program.replace(old, new)
        program = program.replace("\nconfig.update", "\njax.config.update")
    names = run_old_program(program)
    assert names["platform"] == "cpu"
    result, _ = plain_step(W, BATCH, None)
    same(jax_utils.unreplicate(names["w"]), result)
    saved = checkpoints.restore_checkpoint(tmp_path / "folder", {"w": W})
    same(saved["w"], result)
    Path("train.py").write_text(program)
    lines = report_program("train.py")["lines"]
    assert {line["status"] for line in lines} <= {"fine", "check"}


def test_the_random_numbers_of_2021():
    call, today, then = re.search(
        r"`(jax\.random\.normal\(.*\))` begins with ([\d.]+) today, and began with "
        r"([\d.]+) then",
        " ".join(PAGE.split()),
    ).groups()
    for partitionable, number in ((True, today), (False, then)):
        with jax.threefry_partitionable(partitionable):
            assert eval(call)[0] == pytest.approx(float(number), abs=1e-4)
    assert jax.config.jax_threefry_partitionable  # the default
    assert '`jax.config.update("jax_threefry_partitionable", False)`' in PAGE


@pytest.mark.parametrize(
    ("optimizer", "counts"),
    [
        (optax.adam(1e-3), 1),
        (optax.sgd(optax.constant_schedule(0.1)), 1),
        (optax.sgd(0.1, momentum=0.9), 0),
    ],
)
def test_what_optax_counts(optimizer, counts):
    found = optax.tree_utils.tree_get_all_with_path(optimizer.init(W), "count")
    assert len(found) == counts


def run_side_of_difference(side):
    """Run the lines of the difference that are old ("-") or new ("+")."""
    (block,) = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for line in block.splitlines() if line[:1] in ("", " ", side)]
    names = {"w": W, "batches": [BATCH, BATCH]}
    exec("\n".join(line[1:] for line in lines), names)
    return names


def test_both_sides_of_the_difference_give_the_same_numbers():
    results = [run_side_of_difference(side)["w"] for side in "-+"]
    first, _ = plain_step(W, BATCH, None)
    second, _ = plain_step(first, BATCH, None)
    same(second, *results)


def loss(w, batch, keep=1.0):
    return (keep * (batch["x"] @ w - batch["y"]) ** 2).mean()


def step(w, batch, key):
    value, gradient = lax.pmean(jax.value_and_grad(loss)(w, batch), "batch")
    return w - 0.1 * gradient, {"loss": value}


def plain_step(w, batch, key):
    value, gradient = jax.value_and_grad(loss)(w, batch)
    return w - 0.1 * gradient, {"loss": value}


def step_with_rng(state, batch):
    key, now = jax.random.split(state["dropout_rng"])
    keep = jax.random.bernoulli(now, 0.5, batch["y"].shape)
    value, gradient = lax.pmean(
        jax.value_and_grad(loss)(state["w"], batch, keep), "batch"
    )
    return {"w": state["w"] - 0.1 * gradient, "dropout_rng": key}, {"loss": value}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """All names of the page after its code has run in its order, and in "states" the
    state after each block.
    """
    names = run_side_of_difference("+") | {
        "step": step,
        "plain_step": plain_step,
        "step_with_rng": step_with_rng,
        "state": W,
        "batch": BATCH,
    }
    names |= {
        "key": jax.random.key(0),
        "state_with_rng": {"w": W, "dropout_rng": KEYS},
        "states": [W],
    }
    with contextlib.chdir(tmp_path_factory.mktemp("page")):  # it saves a checkpoint
        for block in BLOCKS:
            exec(block, names)
            names["states"].append(jax.device_get(names["state"]))
    return names


def test_orbax_gives_back_the_state_where_it_was(page):
    before, after = page["states"][-2:]
    assert "manager.restore(" in BLOCKS[-1]
    np.testing.assert_array_equal(before, after)
    assert page["state"].sharding == page["replicated"]


def test_the_code_gives_the_numbers_and_the_masks_of_the_old_program(page):
    old = jax.pmap(step, axis_name="batch", in_axes=(None, 0, None), out_axes=None)
    updates = [
        n
        for n, block in enumerate(BLOCKS, 1)
        if "state, metrics = " in block and "rng_step" not in block
    ]
    assert len(updates) == 2
    for n in updates:
        wanted, _ = old(page["states"][n - 1], STACKED, page["key"])
        np.testing.assert_allclose(page["states"][n], wanted, rtol=1e-5, atol=1e-6)
    same(page["checked_step"](W, BATCH)[0], plain_step(W, BATCH, None)[0])
    stack = {"w": np.stack([W] * 8), "dropout_rng": KEYS}
    old, _ = jax.pmap(step_with_rng, axis_name="batch")(stack, STACKED)
    np.testing.assert_allclose(
        page["state_with_rng"]["w"], old["w"][0], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(
        page["state_with_rng"]["dropout_rng"], old["dropout_rng"]
    )


@pytest.mark.parametrize("average", ["", "grads", "value"])
def test_the_check_refuses_a_forgotten_average(page, average):
    """Of the gradients, of the metric, or of both."""
    block = next(block for block in BLOCKS if "def checked_step" in block)
    line = 'value, grads = jax.lax.pmean((value, grads), "batch")'
    assert block.count(line) == 1
    new_line = f'{average} = jax.lax.pmean({average}, "batch")' if average else "pass"
    names = {name: page[name] for name in ("jax", "P", "loss", "mesh")}
    exec(block.replace(line, new_line), names)
    with pytest.raises(ValueError, match="can't be statically inferred"):
        names["checked_step"](W, BATCH)


def test_a_key_for_each_device_moves_as_the_table_says(page):
    """The old step takes its row of the keys, the new one `[1]`."""
    row = CONSTRUCTS["prng-key"].shard_map
    new = '`P("batch")` for `jax.random.split(key, N)`, and `key[0]` in the step'
    assert row.startswith(f"{new};")

    def noisy_step(w, batch, key):
        keep = jax.random.bernoulli(key, 0.5, batch["y"].shape)
        value, gradient = lax.pmean(jax.value_and_grad(loss)(w, batch, keep), "batch")
        return w - 0.1 * gradient, value

    old = jax.pmap(noisy_step, axis_name="batch", in_axes=(None, 0, 0), out_axes=None)
    mapped = jax.shard_map(
        lambda w, batch, key: noisy_step(w, batch, key[0]),
        mesh=page["mesh"],
        in_specs=(P(), SPLIT, SPLIT),
        out_specs=P(),
        check_vma=False,
    )
    same(old(W, STACKED, KEYS), jax.jit(mapped)(W, BATCH, KEYS))


def test_metrics_of_many_updates_come_to_the_host_as_the_table_says():
    call = re.match(r"`(.*?)`", CONSTRUCTS["get-metrics"].shard_map)[1]
    names = {"common_utils": common_utils, "jax": jax}
    losses = [{"loss": np.float32(number)} for number in range(3)]
    old = common_utils.get_metrics(list(map(jax_utils.replicate, losses)))
    names["list"] = jax.device_put(losses, place())
    same(old, eval(call, names))


def test_batches_are_split_in_order_and_padded_with_weight_0(page):
    (reshape,) = re.findall(r"`(x\.reshape\(-1, K, .*?\))`", PAGE)
    for rows in eval(reshape, {"x": np.arange(16), "K": 2}):
        assert sorted(rows // 2) == list(
            range(8)
        )  # device d holds the rows 2 d and 2 d + 1
    batches = [np.full((16, 2), n) for n in range(5)]
    for ahead in (0, 9):
        seen = list(page["place_ahead"](batches, page["split"], ahead))
        assert [int(x[0, 0]) for x in map(np.asarray, seen)] == list(range(5))
        assert seen[0].addressable_shards[0].data.shape == (2, 2)
    padded = page["pad_batch"](jax.tree.map(lambda x: x[:11], BATCH), 16)
    assert (padded["x"].shape, padded["weight"].sum()) == ((16, 3), 11)
    np.testing.assert_array_equal(padded["y"][:11], BATCH["y"][:11])


@pytest.mark.parametrize(
    ("cut", "is_gathered"),
    [("x.reshape(-1, K, 3).swapaxes(0, 1)", False), ("x.reshape(K, -1, 3)", True)],
)
def test_how_the_compiler_cuts_a_batch_into_micro_batches(cut, is_gathered):
    assert cut.replace("3", "...") in CONSTRUCTS["accumulate"].jit

    def add_gradients(w, x):
        def add(total, rows):
            return total + jax.grad(lambda w: jnp.tanh(rows @ w).sum())(w), None

        return lax.scan(add, jnp.zeros_like(w), eval(cut, {"x": x, "K": 2}))[0]

    step = jax.jit(add_gradients, in_shardings=(place(), place("batch")))
    compiled = step.lower(W, X).compile().as_text()
    kinds = [collective.kind for collective in collectives(compiled)]
    assert ("all-gather" in kinds) == is_gathered


@pytest.mark.parametrize(
    "name",
    ["accumulation", pytest.param("hugging_face_tokens", marks=pytest.mark.slow)],
)
def test_my_pmap_gives_the_numbers_of_pmap(page, name):
    results = []
    for pmap in (jax.pmap, page["my_pmap"]):
        with mock.patch.object(jax, "pmap", pmap):
            results.append(jax.tree.leaves(load(name).main()))
    for x, y in zip(*results, strict=True):
        np.testing.assert_allclose(
            np.asarray(x, float), np.asarray(y, float), rtol=1e-5, atol=1e-5
        )


TWO_PROCESSES = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
import numpy as np
from jax import lax

BLOCK

def step(weight, x):
    total = lax.psum(x, "batch")
    return weight * total, total

first = 1 + jax.process_index()
x = np.full(2, first, np.float32)  # 1, 1 in process 0, and 2, 2 in process 1
for pmap in (jax.pmap, my_pmap):
    mapped = pmap(step, axis_name="batch", in_axes=(None, 0), out_axes=(None, 0))
    weighted, total = mapped(np.float32(0.5), x)
    print(np.asarray(weighted).tolist(), np.asarray(total).tolist())
    plain = pmap(step, axis_name="batch")(np.float32([1, 1]), x)  # all axes are 0
    print(np.asarray(plain).tolist())
"""


def run_two(script, *arguments):
    """Run a script in two processes, and return what each prints."""
    address = f"127.0.0.1:{free_port()}"
    processes = [
        subprocess.Popen(
            [sys.executable, script, address, number, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env=environment({"XLA_FLAGS": None, "NPROC": "8"}),
        )
        for number in "01"
    ]
    return [process.communicate(timeout=120)[0] for process in processes]


@pytest.mark.slow
def test_my_pmap_adds_up_over_two_processes(tmp_path):
    """A psum of 1, 1, 2, 2 is 6 in both processes, as with jax.pmap."""
    block = next(block for block in BLOCKS if "def my_pmap" in block)
    script = tmp_path / "program.py"
    script.write_text(TWO_PROCESSES.replace("BLOCK", block))
    outputs = run_two(script)
    for output in outputs:
        lines = ["3.0 [6.0, 6.0]", "[[6.0, 6.0], [6.0, 6.0]]"]
        assert output.splitlines()[-4:] == 2 * lines


# The rows of the table


def mesh(*shape, names=("batch",)):
    return Mesh(np.array(jax.devices()).reshape(*shape or (N,)), names)


def place(*axes):
    return NamedSharding(mesh(), P(*axes))


def pmap(step, *arguments, **options):
    return jax.pmap(step, axis_name="batch", **options)(*arguments)


def shard_map(step, *in_specs, out_specs=SPLIT, check_vma=False, on=None):
    return jax.jit(
        jax.shard_map(
            step,
            mesh=on or mesh(),
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=check_vma,
        )
    )


def on_stack(step):
    """The step of one device under shard_map, over arrays [N, ...] as under pmap."""
    return shard_map(
        lambda *x: jax.tree.map(
            lambda y: y[None], step(*(stacked[0] for stacked in x))
        ),
        SPLIT,
    )


def same(*results, rtol=1e-5):
    for result in results[1:]:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6),
            results[0],
            result,
        )


COLLECTIVES = {  # of one device; under jit, of the global [N, ...]
    "pmean": (
        lambda x: lax.pmean(x, "batch"),
        lambda x: jnp.broadcast_to(x.mean(0), x.shape),
    ),
    "psum": (
        lambda x: lax.psum(x, "batch"),
        lambda x: jnp.broadcast_to(x.sum(0), x.shape),
    ),
    "psum-one": (lambda x: x / lax.psum(1, "batch"), lambda x: x / N),
    "pmax": (
        lambda x: lax.pmax(x, "batch"),
        lambda x: jnp.broadcast_to(x.max(0), x.shape),
    ),
    "axis-index": (
        lambda x: x * lax.axis_index("batch"),
        lambda x: x * jnp.arange(N)[:, None],
    ),
    "all-gather": (
        lambda x: lax.all_gather(x, "batch"),
        lambda x: jnp.broadcast_to(x, (N, *x.shape)),
    ),
    "ppermute": (
        lambda x: lax.ppermute(x, "batch", RING),
        lambda x: jnp.roll(x, 1, axis=0),
    ),
    "psum-scatter": (
        lambda x: lax.psum_scatter(x, "batch", tiled=True),
        lambda x: x.sum(0)[:, None],
    ),
    "all-to-all": (
        lambda x: lax.all_to_all(x, "batch", 0, 0),
        lambda x: jnp.swapaxes(x, 0, 1),
    ),
}


def test_collectives_stay_under_shard_map_and_are_not_needed_under_jit():
    steps, whole = (
        lambda x, n=n: {name: forms[n](x) for name, forms in COLLECTIVES.items()}
        for n in (0, 1)
    )
    same(
        pmap(steps, ROWS),
        on_stack(steps)(ROWS),
        jax.jit(whole, in_shardings=place("batch"))(ROWS),
    )


def scan_over_batches():
    def loop(mean, w, x):
        return lax.scan(
            lambda w, x: (w - 0.1 * mean(((x @ w)[:, None] * x).mean(0)), 0), w, x
        )[0]

    by_axis = partial(loop, partial(lax.pmean, axis_name="batch"))
    x = np.stack([X, X + 1, X - 1])
    yield pmap(
        by_axis,
        W,
        np.swapaxes(x.reshape(3, N, 2, 3), 0, 1),
        in_axes=(None, 0),
        out_axes=None,
    )
    yield shard_map(by_axis, P(), P(None, "batch"), out_specs=P())(W, x)
    yield jax.jit(
        partial(loop, lambda x: x), in_shardings=(place(), place(None, "batch"))
    )(W, x)


def batch_norm():
    norm = nn.BatchNorm(use_running_average=False, axis_name="batch")
    variables = nn.BatchNorm(use_running_average=False).init(jax.random.key(0), X)
    apply = lambda norm, x: norm.apply(variables, x, mutable=["batch_stats"])[0]
    yield jax.jit(partial(apply, nn.BatchNorm(use_running_average=False)))(X)
    yield pmap(partial(apply, norm), X.reshape(N, 2, 3)).reshape(16, 3)
    yield shard_map(partial(apply, norm), SPLIT, check_vma=True)(X)


def dynamic_scale():
    def scaled(axis, scale, w, x):
        return scale.value_and_grad(lambda w: ((x @ w) ** 2).mean(), axis_name=axis)(w)[
            :2
        ]

    x = np.where(np.arange(16)[:, None] == 3, np.inf, X)  # on one device
    by_axis = partial(scaled, "batch")
    yield jax.jit(
        partial(scaled, None), in_shardings=(place(), place(), place("batch"))
    )(DynamicScale(), W, x)
    yield pmap(
        by_axis,
        DynamicScale(),
        W,
        x.reshape(N, 2, 3),
        in_axes=(None, None, 0),
        out_axes=None,
    )
    yield shard_map(by_axis, P(), P(), SPLIT, out_specs=P())(DynamicScale(), W, x)
    alone = pmap(
        partial(scaled, None),
        DynamicScale(),
        W,
        x.reshape(N, 2, 3),
        in_axes=(None, None, 0),
    )[1]
    assert alone.sum() == N - 1  # scale-without-axis: each device for itself


def groups():
    halves = [[0, 1, 2, 3], [4, 5, 6, 7]]
    sums = partial(lax.psum, axis_name="batch", axis_index_groups=halves)
    yield pmap(sums, W[0] * np.arange(N))
    yield shard_map(sums, SPLIT)(W[0] * np.arange(N))
    for reduce in (lax.psum, lax.pmean):
        checked = partial(reduce, axis_name="batch", axis_index_groups=halves)
        with pytest.raises(NotImplementedError):
            shard_map(checked, SPLIT, check_vma=True)(W[0] * np.arange(N))
    both = P(("group", "batch"))
    on = mesh(2, 4, names=("group", "batch"))
    yield shard_map(lambda x: lax.psum(x, "batch"), both, out_specs=both, on=on)(
        W[0] * np.arange(N)
    )


def metric_of_one_device():
    x = np.arange(8.0, dtype=np.float32)
    assert float(shard_map(lambda x: x.sum(), SPLIT, out_specs=P())(x)) == 0
    yield x
    yield shard_map(lambda x: x.sum()[None], SPLIT)(x)
    yield jax.pmap(lambda x: x.sum())(x)


EQUAL = (scan_over_batches, batch_norm, dynamic_scale, groups, metric_of_one_device)


@pytest.mark.parametrize("results", EQUAL, ids=lambda results: results.__name__)
def test_the_successor_gives_the_same_numbers(results):
    found = list(results())
    assert len(found) > 1
    same(*found, rtol=1e-3 if results is batch_norm else 1e-5)


def pop_params(layers):
    """Make a TrainState as in 2022."""
    network = nn.Sequential([nn.Dense(3) for _ in range(layers)])
    variables = network.init(jax.random.PRNGKey(0), ROWS)
    stats, params = variables.pop("params")
    train_state.TrainState.create(
        apply_fn=network.apply, tx=optax.sgd(0.1), params=params, **stats
    )


def init_dense():
    return nn.Dense(3).init(jax.random.key(0), ROWS)


def test_what_takes_the_place_of_four_functions_of_2021(tmp_path):
    """Sums, shuffled columns and moments are as the old functions made them."""
    same(jax.tree.map(jnp.add, {"w": W}, {"w": W}), {"w": 2 * W})
    names = {"jax": jax, "key": jax.random.key(0), "x": ROWS}
    shuffled = eval(CONSTRUCTS["shuffle"].shard_map.strip("`"), names)
    assert not np.array_equal(shuffled, ROWS)
    same(np.sort(shuffled, axis=0), np.sort(ROWS, axis=0))  # each column for itself
    moments = (ROWS.mean(-1, keepdims=True), ROWS.var(-1, keepdims=True))
    normalized = (ROWS - moments[0]) / np.sqrt(moments[1] + 1e-5)
    same(eval(CONSTRUCTS["normalize"].shard_map.strip("`"), names), normalized)
    with tensorboardX.SummaryWriter(tmp_path) as writer:
        writer.add_scalar("loss", 0.5, 1)
    assert [*tmp_path.iterdir()]


def test_tensorboard_of_flax_needs_tensorflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # as if it weren't installed
    with pytest.raises(ModuleNotFoundError) as error:
        importlib.import_module("flax.metrics.tensorboard")
    assert error.value.name == "tensorflow"
    wanted = f"No module named '{error.value.name}'"
    assert wanted in CONSTRUCTS["flax-tensorboard"].today


def test_what_takes_the_place_of_the_methods_of_a_frozen_dict():
    variables = init_dense()
    assert flax.core.unfreeze(variables) == variables
    assert flax.core.copy(variables, {"a": 1}) == variables | {"a": 1}


RAISES = {
    "nested": [
        (
            ValueError,
            "context mesh",
            lambda: pmap(lambda x: jax.pmap(jnp.sin)(x), np.ones((2, 4))),
        ),
        (ValueError, "context mesh", lambda: jax.pmap(shard_map(jnp.sin, SPLIT))(ROWS)),
    ],
    "committed": [
        (
            ValueError,
            "match",
            lambda: jax.pmap(jnp.sin)(jax.device_put(ROWS, jax.devices()[5])),
        ),
        (
            ValueError,
            "Sharding passed to jit does not match",
            lambda: jax.pmap(jnp.sin)(jax.device_put(ROWS, jax.devices()[0])),
        ),
        (
            ValueError,
            "Received incompatible devices",
            lambda: jax.pmap(jnp.sin)(ROWS) + jax.device_put(ROWS, jax.devices()[0]),
        ),
    ],
    "pop-params": [
        (ValueError, "too many values", lambda: pop_params(layers=3)),
        (TypeError, "must be a mapping, not str", lambda: pop_params(layers=2)),
    ],
    "frozen-dict": [
        (AttributeError, "unfreeze", lambda: init_dense().unfreeze()),
        (TypeError, "argument", lambda: init_dense().copy({"a": 1})),
    ],
    "clip": [
        (TypeError, "unexpected keyword", lambda: jnp.clip(W, a_min=0)),
        (TypeError, "unexpected keyword", lambda: jnp.clip(W, a_max=1)),
    ],
    "device-call": [(TypeError, "not callable", lambda: jnp.ones(3).device())],
    "axis-resources": [
        (
            TypeError,
            "in_axis_resources",
            lambda: jax.experimental.pjit.pjit(jnp.sin, in_axis_resources=None),
        )
    ],
    "check-rep": [
        (
            TypeError,
            "check_rep",
            lambda: jax.shard_map(jnp.sin, mesh=mesh(), check_rep=False),
        )
    ],
}


@pytest.mark.parametrize(
    "row", [row.name for row in CONSTRUCTS.values() if row.status == "fails"]
)
def test_what_fails_raises_what_its_row_says(row):
    for error, match, call in RAISES[row]:
        with pytest.raises(error, match=match):
            call()


def test_pmap_misreads_in_axes_if_an_argument_has_no_arrays():
    """Three leaves for three arguments: the batch's `x` gets the empty state's axis."""
    shapes = []

    def see_batch(x, y):
        shapes.append((x.shape, y.shape))
        return lax.pmean(x.sum() + y.sum(), "batch")

    batch = (np.zeros((8, 2, 5)), np.zeros((8, 2)))
    jax.pmap(
        lambda params, state, batch: see_batch(*batch),
        axis_name="batch",
        in_axes=(None, None, 0),
    )(W, optax.sgd(0.1).init(W), batch)
    assert shapes.pop() == ((8, 2, 5), (2,))
    jax.pmap(
        lambda carry, batch: see_batch(*batch), axis_name="batch", in_axes=(None, 0)
    )((W, optax.sgd(0.1).init(W)), batch)
    assert shapes.pop() == ((2, 5), (2,))
    jax.jit(
        jax.shard_map(
            lambda params, state, batch: see_batch(*batch),
            mesh=Mesh(jax.devices(), ("batch",)),
            in_specs=(P(), P(), SPLIT),
            out_specs=P(),
        )
    )(
        W,
        optax.sgd(0.1).init(W),
        jax.tree.map(lambda x: x.reshape(16, *x.shape[2:]), batch),
    )
    assert shapes.pop() == ((2, 5), (2,))


def test_the_first_row_of_a_stacked_array_is_sent_to_every_device():
    stack = jax_utils.replicate(np.ones((3, 2), np.float32))
    (found,) = collectives(jax.jit(lambda x: x[0]).lower(stack).compile().as_text())
    assert found.kind in ("all-reduce", "all-gather")
    np.testing.assert_array_equal(stack.addressable_shards[0].data[0], stack[0])


def test_old_checkpoints_load(tmp_path):
    checkpoints.save_checkpoint(
        tmp_path, jax_utils.unreplicate(jax_utils.replicate({"w": W})), 1
    )
    for target in ({"w": np.zeros(3, np.float32)}, None):
        same(checkpoints.restore_checkpoint(tmp_path, target), {"w": W})


def test_a_checkpoint_in_a_relative_folder_stops(tmp_path, monkeypatch):
    """Also one that was saved, unless it's in Flax's old format."""
    monkeypatch.chdir(tmp_path)
    state = {"w": W}
    with pytest.raises(ValueError, match="Checkpoint path should be absolute"):
        checkpoints.save_checkpoint("folder", state, 1)
    checkpoints.save_checkpoint(tmp_path / "folder", state, 1)
    with pytest.raises(ValueError, match="Checkpoint path should be absolute"):
        checkpoints.restore_checkpoint("folder", state)


TWO_SAVE = """
import os
import sys
import threading
import jax
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
import numpy as np
from flax import jax_utils
from flax.training import checkpoints
from jax import P
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding

folder, who = sys.argv[3:]
multihost_utils.sync_global_devices("start")
if who == "one":  # five seconds, and a save takes half a second
    threading.Timer(5, os._exit, [0]).start()
stacked = jax.pmap(lambda tree: tree)(jax_utils.replicate({"w": np.ones(3)}))
state = jax_utils.unreplicate(stacked)
everywhere = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), P())
ported = jax.make_array_from_callback((3,), everywhere, lambda rows: np.ones(3)[rows])
save = checkpoints.save_checkpoint
trees = {"host": jax.device_get(state), "ported": {"w": ported}, "device": state}
for name, tree in trees.items():
    path = os.path.join(folder, name)
    if who == "all" or jax.process_index() == 0:
        try:
            save(path, tree, 1)
            loaded = checkpoints.restore_checkpoint(path, {"w": np.zeros(3)})
            print(name, loaded["w"].tolist(), flush=True)
        except Exception as error:
            print(name, str(error)[:37], flush=True)
    multihost_utils.sync_global_devices("saved")
"""


@pytest.mark.slow
def test_a_checkpoint_is_saved_if_both_processes_call(tmp_path):
    """From the host, and as a ported state is. Pmap's state on a device isn't."""
    script = tmp_path / "program.py"
    script.write_text(TWO_SAVE)
    for output in run_two(script, tmp_path, "all"):
        *_, host, ported, device = output.splitlines()
        assert host == "host [1.0, 1.0, 1.0]"
        assert ported == "ported [1.0, 1.0, 1.0]"
        message = "Cannot serialize host local jax.Array"
        assert device == f"device {message}"
        assert message in CONSTRUCTS["checkpoint"].today
    assert (tmp_path / "host" / "checkpoint_1").is_dir()


@pytest.mark.slow
def test_no_checkpoint_is_saved_if_one_process_of_two_calls(tmp_path):
    """It hangs until it's stopped, or fails, by the version of Flax."""
    script = tmp_path / "program.py"
    script.write_text(TWO_SAVE)
    for output in run_two(script, tmp_path, "one"):
        assert "[1.0, 1.0, 1.0]" not in output
    assert not list(tmp_path.rglob("checkpoint_1"))
    assert CONSTRUCTS["checkpoint"].status == "check"


def test_the_old_names_of_processes_warn():
    for old, new in (("host_id", "process_index"), ("host_count", "process_count")):
        with pytest.warns(UserWarning, match=new):
            assert getattr(jax, old)() == getattr(jax, new)()


def test_the_docstring_of_pmap_recommends_smap():
    assert ":py:func:`jax.shard_map` or ``jax.smap`` instead" in jax.pmap.__doc__
