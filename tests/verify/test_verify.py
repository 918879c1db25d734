"""`pmapdp.verify`: every planted mistake is found by its sentence, and right programs pass.

The plants are in `training_programs.py`: one mistake each in a program that is right without it, as a test here shows.
Tolerances are those of `pmapdp.verify.rounding`. The table in mistakes.md is checked against the plants.
"""

import functools
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import right_programs
import training_programs as programs
from jax.sharding import Mesh, PartitionSpec
from launch import environment, python

from pmapdp.errors import run_command
from pmapdp.verify import Layout, VerificationError, trees, verify
from pmapdp.verify.__main__ import main
from pmapdp.verify.mistakes import mistakes
from pmapdp.verify.rounding import call_reference, reference_updates

WAYS = ("pmap", "shard_map", "jit")
# Under jit, arrays are those of the whole batch and the compiler adds the collectives: these cannot be made there.
NOT_UNDER_JIT = {"no all-reduce", "left out", "drift"}
# The plants of `training_programs.py`, each with the sentence that names it: its own, where none is given here.
PLANTS = (
    "no all-reduce", "left out", "sum for mean", "learning rate", "check_vma", "averaged twice", "weight decay",
    "mean of means", "local normalisation", "local statistics", "averaged statistics", "nonlinear", "same mask",
    "other random numbers", "key stands still", "dropped", "counted twice", "place decides", "drift",
    "one device's metrics", "scaled metrics", "every device computes everything", "replicated in the step",
    "recompilation", "transfer", "used after donation",
)  # fmt: skip
CAUSE = {
    "left out": "no all-reduce", "learning rate": "sum for mean", "local normalisation": "mean of means",
    "averaged statistics": "local statistics", "counted twice": "counted unequally",
    "place decides": "counted unequally", "replicated in the step": "every device computes everything",
}  # fmt: skip


def ways(mistake):
    """Under which of `WAYS` a mistake can be made."""
    if mistake in ("check_vma", "replicated in the step"):
        return ("shard_map",) if mistake == "check_vma" else ("jit",)
    return tuple(way for way in WAYS if not (way == "jit" and mistake in NOT_UNDER_JIT))


QUICK = {
    ("no all-reduce", "pmap"), ("sum for mean", "jit"), ("check_vma", "shard_map"), ("mean of means", "pmap"),
    ("local statistics", "shard_map"), ("same mask", "pmap"), ("dropped", "jit"), ("nonlinear", "shard_map"),
    ("one device's metrics", "pmap"), ("replicated in the step", "jit"), ("used after donation", "pmap"),
}  # fmt: skip
PAGE = Path(__file__).parents[2] / "pmapdp" / "verify" / "mistakes.md"


def report_on(way, mistake, **arguments):
    """The report on the program of `training_programs.py` with a mistake, on 4 devices."""
    options = programs.OPTIONS.get(mistake, {})
    state, batch, key = programs.start()
    return verify(
        **{
            "reference": functools.partial(programs.reference, **options),
            "make_step": lambda devices: programs.make_step(way, devices, mistake, **options),
            "state": state, "batch": batch, "key": key, "layout": programs.layout(way, mistake), "counts": [4],
            "last_batch": programs.padded(batch), **arguments,
        }
    )  # fmt: skip


def pattern(cause):
    """The sentence of a cause as a regular expression, for any values in it."""
    return re.sub(r"\\{.*?\\}", ".+", re.escape(mistakes()[cause]))


@pytest.mark.parametrize(
    ("mistake", "way"),
    [
        pytest.param(mistake, way, marks=() if (mistake, way) in QUICK else pytest.mark.slow)
        for mistake in PLANTS
        for way in ways(mistake)
    ],
)
def test_a_planted_mistake_is_found_and_named(mistake, way):
    report, cause = report_on(way, mistake), CAUSE.get(mistake, mistake)
    assert report.causes == [cause], str(report)
    assert any(re.search(pattern(cause), check.sentence) for check in report.failed), str(report)
    assert "One mistake can hide others" in str(report)
    with pytest.raises(VerificationError, match=pattern(cause)):
        report.require()


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["sum for mean", "no all-reduce", "nonlinear"])
def test_a_mistake_is_found_in_float32_too(mistake):
    assert report_on("shard_map" if mistake == "nonlinear" else "pmap", mistake, float64=False).causes == [mistake]


def test_a_missing_all_reduce_under_adam_with_global_batch_norm_is_seen_in_the_moments():
    """No device makes the update of its examples alone there, and only Adam's first moments have the right mean."""
    options = {"adam": True, "norm": True}
    report = report_on(
        "pmap", "no all-reduce", state=programs.start(adam=True)[0],
        reference=functools.partial(programs.reference, **options),
        make_step=lambda devices: programs.make_step("pmap", devices, "no all-reduce", **options),
    )  # fmt: skip
    assert report.causes == ["no all-reduce"], str(report)


@pytest.mark.slow
def test_a_gradient_summed_under_adam_is_found_although_the_parameters_hardly_show_it():
    state, _, _ = programs.start(adam=True)
    report = verify(
        **right_programs.adam_with_pmap()
        | {"make_step": lambda devices: programs.make_step("pmap", devices, "sum for mean", adam=True), "state": state}
    )
    assert report.causes == ["sum for mean"], str(report)


@pytest.mark.parametrize("float64", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, marks=() if program.__name__ in right_programs.QUICK else pytest.mark.slow)
        for program in right_programs.RIGHT
    ],
    ids=lambda program: program.__name__,
)
def test_a_right_program_passes(program, float64):
    report = verify(**program(), float64=float64)
    assert report.ok, str(report)
    same = [check.devices for check in report.checks if check.name == "same update" and check.status == "passed"]
    assert same == [(1, 2, 4, 8)], str(report)


@pytest.mark.parametrize(
    "program",
    [
        right_programs.batch_norm_and_dropout_with_jit, right_programs.adam_with_pmap, right_programs.zero_1,
        right_programs.stacked_pmap_with_linen, right_programs.plain_arrays_with_pmap,
        right_programs.mixed_precision_with_pmap,
    ],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_the_tolerance_covers_the_rounding_of_another_order_of_the_batch(program):
    """None of these depends on the order. Half of the tolerance is enough."""
    given = program()
    keys = [(given["key"],)] if "key" in given else [()]
    (update,) = reference_updates(given["reference"], given["state"], [given["batch"]], keys)
    order = np.random.default_rng(0).permutation(update.examples)
    permuted = call_reference(given["reference"], update._replace(batch=trees.rows(update.batch, order)).arguments)
    for part, tolerance in update.tolerance.items():
        found = trees.values(permuted[part])
        for name, most in tolerance.items():
            assert trees.distance(found[name], update.values[part][name]) <= most / 2, name


@pytest.mark.slow
def test_a_right_program_in_mixed_precision_passes():
    report = verify(**right_programs.mixed_precision_with_pmap())
    assert report.ok, str(report)
    assert "given float64, it computes in bfloat16" in report.precision


def test_a_device_with_padding_alone_that_divides_by_its_own_count_is_named():
    _, batch, _ = programs.start()
    last = {**batch, "weight": (np.arange(programs.B) < 7).astype(np.float32)}
    report = report_on("pmap", "mean of means", last_batch=last)
    assert report.causes == ["mean of means"], str(report)
    assert "inf" in str(report)


def test_which_examples_and_which_leaves_are_named():
    dropped = report_on("jit", "dropped").failed[0]
    assert "Examples 15 have no influence" in dropped.sentence
    left_out = report_on("pmap", "left out").failed[0]
    assert left_out.sentence.startswith("opt_state/logits/b, params/logits/b: every device makes")


def halved(state, batch):
    loss = jnp.mean((batch["x"] @ state - batch["y"]) ** 2)
    return state / 2, loss


HALVED = {"state": np.ones(3, np.float32), "batch": {"x": np.ones((8, 3), np.float32), "y": np.ones(8, np.float32)}}


def test_an_error_of_the_step_is_shown_with_its_line():
    def step(state, batch):
        return state, batch["z"]

    report = verify(reference=halved, step=step, **HALVED, counts=[2])
    assert [check.name for check in report.failed] == ["runs"]
    assert re.search(r"test_verify\.py:\d+ in step: KeyError: 'z'", str(report))


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda state, loss: state, "the step must return (state, metrics), and returns a single "),
        (lambda state, loss: (state, {"loss": loss}), "the leaf loss of the metrics is [] in the step and absent in"),
        (lambda state, loss: (state[:2], loss), "the leaf the value itself of the state is [2] in the step and [3] in"),
    ],
)
def test_a_step_that_returns_something_else_is_said(returned, said):
    report = verify(
        reference=halved, step=jax.jit(lambda *given: returned(*halved(*given))), layout="sharded", **HALVED, counts=[2]
    )
    assert [check.name for check in report.failed] == ["runs"]
    assert said in str(report)


def test_a_result_that_check_vma_refuses_is_named_with_its_cure():
    def reference(state, batch):
        return (state - 0.1 * batch["x"].mean(0)), batch["x"].mean()

    def device_step(state, batch):
        gathered = jax.lax.all_gather(batch["x"], "data", tiled=True)
        return state - 0.1 * gathered.mean(0), gathered.mean()

    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec()}
    report = verify(
        reference=reference, step=jax.jit(jax.shard_map(device_step, mesh=mesh, **specs)), layout="sharded",
        **HALVED, counts=[2],
    )  # fmt: skip
    assert report.causes == ["unseen replication"]
    assert re.search(pattern("unseen replication"), str(report))


def test_a_layout_that_leaves_arrays_on_the_host_is_no_mistake_of_the_step():
    on_host = Layout(lambda state, devices: state, lambda batch, devices: batch)
    report = verify(reference=halved, step=jax.jit(halved), layout=on_host, **HALVED, counts=[1])
    assert report.ok, str(report)
    assert "not checked  no implicit transfers (1 device): the layout leaves batch/x on the host" in str(report)


def test_metrics_that_differ_between_devices_are_those_of_each_device():
    def step(state, batch):
        return halved(state, batch)[0], halved(state, batch)[1] ** 2 + jax.lax.axis_index("data")

    report = verify(reference=halved, step=jax.pmap(step, "data"), **HALVED, counts=[2])
    assert report.causes == ["one device's metrics"], str(report)


@pytest.mark.parametrize(
    ("change", "cause"), [({"rate": 0.15}, "another scale"), ({"weight": 1 + np.arange(8)}, "order")]
)
def test_a_scale_and_an_order_without_a_mistake_that_explains_them_are_named(change, cause):
    """A gradient of length 1, so that the weights of the examples cannot be read from the update."""

    def step(state, batch, rate=0.1, weight=1):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean(weight * (batch["x"] @ w - batch["y"]) ** 2))(state)
        return state - rate * gradient / jnp.linalg.norm(gradient), loss if cause == "another scale" else 0.0

    batch = {"x": np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32), "y": HALVED["batch"]["y"]}
    changed = jax.jit(functools.partial(step, **change))
    report = verify(reference=step, step=changed, layout="sharded", **HALVED | {"batch": batch}, counts=[2])
    assert report.causes == [cause], str(report)


def test_a_cause_that_cannot_be_asked_of_part_of_the_batch_is_unknown():
    def reference(state, batch):
        return halved(state, {"x": batch["x"].reshape(8, 3), "y": batch["y"]})

    def shifted(state, batch):
        state, loss = halved(state, batch)
        return state + jnp.arange(3), loss

    report = verify(reference=reference, step=jax.jit(shifted), layout="sharded", **HALVED, counts=[2])
    assert report.causes == ["unknown"], str(report)


def test_numbers_of_devices_that_do_not_divide_the_batch_are_not_checked():
    arguments = {"reference": halved, "layout": "sharded", "state": HALVED["state"]}
    batch = jax.tree.map(lambda x: x[:6], HALVED["batch"])
    report = verify(**arguments, make_step=lambda devices: jax.jit(halved), batch=batch)
    assert report.ok
    assert "not checked  runs (4 devices): 6 examples do not divide over 4 devices" in str(report)
    with pytest.raises(ValueError, match="nothing can be checked: 6 examples do not divide over 4 devices"):
        verify(**arguments, step=jax.jit(halved), batch=batch, counts=[4])


def test_what_was_not_checked_is_said_with_its_reason():
    report = verify(reference=halved, step=jax.jit(halved), layout="sharded", **HALVED)
    unchecked = {check.name: check.sentence for check in report.checks if check.status == "not checked"}
    assert report.ok
    assert unchecked["random numbers advance"] == "the step takes no key and has none in its state"
    assert "give last_batch" in unchecked["last batch"]
    assert "give make_step" in unchecked["other numbers of devices"]
    assert set(json.loads(report.to_json())["checks"][0]) >= {"name", "status", "devices", "sentence", "cause"}


def test_a_program_that_does_not_keep_float64_is_compared_in_its_own_type():
    def reference(state, batch):
        return (state - 0.1 * batch["x"].mean(0)).astype(np.float32), batch["x"].sum()

    report = verify(reference=reference, step=jax.jit(reference), layout="sharded", **HALVED)
    assert report.ok
    assert "given float64, it computes in float32" in report.precision


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either step, for all devices, or make_step"),
        ({"step": halved, "counts": [9000]}, r"counts=\[9000\]: give a list of numbers from 1 to"),
        ({"step": halved, "counts": 4}, "counts=4: give a list of numbers from 1 to"),
        ({"step": halved, "devices": 4}, "devices=4: give a list of devices, for example"),
        ({"step": halved, "updates": 0}, "updates=0: give a whole number of 1 or more, for example 3"),
        ({"step": halved, "updates": 2.5}, "updates=2.5: give a whole number"),
        ({"step": halved, "reference": None}, "reference=None cannot be called: give a function of"),
        ({"step": "halved"}, "step='halved' cannot be called: give a function of"),
        ({"step": halved, "state": {"name": "net"}}, r"type <class 'str'>.*\['name'\].* Give arrays, numbers or keys"),
        ({"step": halved, "layout": 3}, "unknown layout 3: choose from stacked"),
        ({"step": halved, "reference": lambda w, batch: (w, 0.0, 1)}, "must return .* and returns 3 values"),
        (
            {"step": halved, "state": np.full(3, np.nan, np.float32)},
            "update 1 of the reference returns NaN in the state",
        ),
        ({"step": halved, "layout": "staked"}, "unknown layout 'staked': choose from stacked"),
        ({"step": halved, "batch": {"x": np.ones((8, 3)), "y": np.ones(4)}}, "x \\[8, 3\\], y \\[4\\]"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        verify(**{"reference": halved, **HALVED, **arguments})


FILE = """
import jax, numpy as np
def reference(w, batch):
    loss, g = jax.value_and_grad(lambda w: ((batch["x"] @ w) ** 2).mean())(w)
    return w - 0.1 * g, loss
def device_step(w, batch):
    loss, g = jax.value_and_grad(lambda w: ((batch["x"] @ w) ** 2).mean())(w)
    return w - 0.1 * jax.lax.REDUCE(g, "data"), jax.lax.pmean(loss, "data")
def check():
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    return dict(reference=reference, step=jax.pmap(device_step, "data"), state=np.ones(3, np.float32), batch={"x": x})
def broken():
    return check() | dict(reference=lambda w, batch: 1 / 0)
def stopped():
    raise SystemExit(0)
def listed():
    return [check()]
def misspelt():
    return check() | dict(layuot="stacked")
def incomplete():
    return dict(reference=reference, step=jax.pmap(device_step, "data"))
"""


@pytest.mark.parametrize(
    ("reduce", "target", "status", "said"),
    [
        ("pmean", "step.py:check", 0, "checks passed"),
        ("psum", "step.py:check", 1, "use lax.pmean in place of lax.psum"),
        ("pmean", "step.py:broken", 1, "step.py:13 in <lambda>: ZeroDivisionError"),
        ("pmean", "step.py:absent", 2, "has no 'absent': use one of broken, check, device_step, incomplete, listed"),
        ("pmean", "step.py:listed", 2, "step.py:listed does not return the arguments of verify ('list' object is not"),
        ("pmean", "step.py:misspelt", 2, "(got an unexpected keyword argument 'layuot'): return them in a dictionary"),
        ("pmean", "step.py:incomplete", 2, "(missing a required argument: 'state'): return them in a dictionary"),
        ("pmean", "absent.py:check", 2, "there is no file"),
        ("pmean", "step.py", 2, "names no file and what to take from it: try my_file.py:verification"),
        ("pmean", "step.py:stopped", 1, "step.py:15 in stopped: SystemExit: 0"),
        ("1 / 0", "step.py:check", 2, "step.py fails at line 8 (invalid syntax"),
    ],
)
def test_the_command_verifies_a_file(tmp_path, reduce, target, status, said):
    (tmp_path / "step.py").write_text(FILE.replace("REDUCE", reduce))
    done = python("-m", "pmapdp.verify", tmp_path / target, "--devices", 4, "--json", tmp_path / "report.json")
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
    assert done.stderr.count("\n") == (status > 0)
    if target == "step.py:check" and status < 2:
        assert json.loads((tmp_path / "report.json").read_text())["ok"] == (status == 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: FILE.py:FUNCTION: try python -m pmapdp.verify my_step.py"),
        (["step.py:check", "--device", "4"], "unknown argument '--device': did you mean '--devices'?"),
        (["step.py:check", "--devices", "0"], "0 devices cannot be simulated: use 1 or more"),
        (["step.py:check", "--json", "nowhere/report.json"], "nowhere/report.json cannot be written"),
    ],
)
def test_a_wrong_command_is_one_sentence(capsys, arguments, said):
    assert run_command(main, arguments) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: {said}")
    assert line.count("\n") == 1


def test_the_table_shows_under_which_of_them_each_mistake_is_planted():
    table = PAGE.read_text()
    for cause in {CAUSE.get(mistake, mistake): None for mistake in PLANTS}:
        possible = {way for mistake in PLANTS if CAUSE.get(mistake, mistake) == cause for way in ways(mistake)}
        found = " | ".join("found" if way in possible else "cannot be made" for way in WAYS)
        assert f"| {cause} | {found} | " in table, cause


def test_importing_does_not_start_jax():
    code = "import pmapdp.verify, jax; assert not jax._src.xla_bridge._backends"
    assert python("-c", code, env=environment()).returncode == 0


def test_a_layout_of_functions_is_taken_as_it_is():
    everywhere = Layout(
        lambda state, devices: jax.device_put(state, devices[0]),
        lambda batch, devices: jax.device_put(batch, devices[0]),
    )
    report = verify(reference=halved, step=jax.jit(halved), layout=everywhere, **HALVED, counts=[1])
    assert report.ok, str(report)
