"""What a report says of checks that fail or cannot be made, on steps of a few lines."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from right_programs import HALVED, halved

from pmapdp.verify import Layout, old_program, verify
from pmapdp.verify.mistakes import named


def test_an_error_of_the_step_is_shown_with_its_line():
    def step(state, batch):
        return state, batch["z"]

    report = verify(reference=halved, step=step, **HALVED, counts=[2])
    assert [check.name for check in report.failed] == ["runs"]
    assert re.search(r"test_reports\.py:\d+ in step: KeyError: 'z'", str(report))


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda state, loss: state, "the step returns no leaf the value itself of the metrics, which the reference"),
        (lambda state, loss: (state, {"loss": loss}), "return it from both, or from neither"),
        (lambda state, loss: (state[:2], loss), "the leaf the value itself of the state is [2] in the step and [3] in"),
        (lambda state, loss: {"new": state}, "the step returns a dict, in which there is no new state of the form of"),
    ],
)
def test_a_step_that_returns_something_else_is_said_once(returned, said):
    report = verify(
        reference=lambda *given: halved(*given), step=jax.jit(lambda *given: returned(*halved(*given))),
        layout="sharded", **HALVED,
        counts=[1, 2],
    )  # fmt: skip
    assert [(check.name, check.devices) for check in report.failed] == [("runs", (1, 2))]
    assert said in str(report)


def test_a_message_of_jax_is_given_whole():
    """Its first line says that shapes do not fit, and the others which."""

    def step(state, batch):
        return jax.lax.cond(state.sum() > 0, lambda: state, lambda: batch["x"]), 0.0

    report = verify(reference=halved, step=step, **HALVED, counts=[2], layout="sharded")
    with pytest.raises(TypeError) as raised:
        step(HALVED["state"], HALVED["batch"])
    assert str(raised.value).splitlines()[-1].strip()[-20:] in str(report)


def test_metrics_that_differ_between_devices_are_those_of_each_device():
    def step(state, batch):
        return halved(state, batch)[0], halved(state, batch)[1] ** 2 + jax.lax.axis_index("data")

    report = verify(reference=halved, step=jax.pmap(step, "data"), **HALVED, counts=[2])
    assert report.causes == ["one device's metrics"], str(report)


def test_a_loss_and_a_count_of_each_device_have_one_cause():
    """The counts of all devices are equal, a quarter of that of the batch."""

    def step(state, batch, add=jax.lax.psum):
        new, _ = halved(state, batch)
        sums = jnp.sum(batch["y"]), batch["y"].size, batch["x"].size
        return jax.lax.pmean(new, "i"), add(sums, "i")

    given = HALVED | {"batch": {"x": HALVED["batch"]["x"], "y": np.arange(8.0)}, "devices": jax.devices()[:4]}
    wrong = jax.pmap(functools.partial(step, add=lambda sums, _: sums), "i", devices=given["devices"])
    report = verify(reference=old_program(step, "i", groups=4), step=wrong, **given)
    assert report.causes == ["one device's metrics"], str(report)


@pytest.mark.parametrize(
    ("change", "cause", "said"),
    [
        ({"rate": 0.15}, "unknown", "moves 1.5 times as far as in the reference"),
        ({"weight": 1 + np.arange(8)}, "unknown", "The result changes when the same examples come in another order"),
    ],
)
def test_what_is_sure_of_an_unknown_cause_is_said(change, cause, said):
    """A gradient of length 1, so that the weights of the examples cannot be read from the update."""

    def step(state, batch, rate=0.1, weight=1):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean(weight * (batch["x"] @ w - batch["y"]) ** 2))(state)
        return state - rate * gradient / jnp.linalg.norm(gradient), loss if "rate" in change else 0.0

    batch = {"x": np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32), "y": HALVED["batch"]["y"]}
    changed = jax.jit(functools.partial(step, **change))
    report = verify(reference=step, step=changed, layout="sharded", **HALVED | {"batch": batch}, counts=[2])
    assert set(report.causes) <= {cause, "another scale"}, str(report)
    assert said in str(report) or report.causes == ["another scale"], str(report)


def test_a_sentence_in_which_nothing_more_is_sure_has_no_gap():
    assert "several. Compare" in named("unknown", ["w"], facts="")[1]


def test_a_key_that_stands_still_in_the_reference_too_hides_no_other_mistake():
    def reference(state, batch):
        w, key = state
        new, loss = halved(w, batch)
        return (new, key), loss + jax.random.normal(key)

    def shifted(state, batch):
        (w, key), loss = reference(state, batch)
        return (w + jnp.arange(3), key), loss

    given = HALVED | {"layout": "sharded", "counts": [2]}
    given |= {"state": (HALVED["state"], jax.random.PRNGKey(0))}
    report = verify(reference=reference, step=jax.jit(shifted), **given)
    assert report.causes == ["unknown", "key stands still"], str(report)
    (metrics,) = (check for check in report.checks if check.name == "same metrics")
    assert all(far <= most for far, most in metrics.leaves.values()), str(report)  # in a row they follow the state


def noisy(state, batch, key, fold=False):
    """A step that draws from its key, and folds the update's number into it or leaves that to its loop."""
    w, update = state
    new, loss = halved(w, batch)
    return (new, update + 1), loss + jax.random.normal(jax.random.fold_in(key, update) if fold else key)


@pytest.mark.parametrize(("each", "verdict"), [(False, "incomplete"), (True, "passed")])
def test_one_key_for_every_update_is_neither_failed_nor_passed(each, verdict):
    """Whether the loop passes another key every time is not known where one is given."""
    key = jax.random.key if each else jax.random.key(0)
    given = HALVED | {"state": (HALVED["state"], np.int32(0)), "layout": "sharded", "counts": [2], "key": key}
    report = verify(reference=noisy, step=jax.jit(noisy), **given)
    assert report.verdict == verdict, str(report)
    assert [check.name for check in report.missing] == ["random numbers advance"] * (verdict == "incomplete")
    assert ("give key=lambda update" in str(report)) == (verdict == "incomplete")


@pytest.mark.parametrize("length", [1e-3, 1e3])
def test_a_scale_that_clipping_hides_is_said_not_to_be_checked(length):
    def step(w, batch, average):
        g = average(jax.grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(w), "i")
        return w - g * jnp.minimum(1, length / jnp.linalg.norm(g))

    mean, total = (functools.partial(step, average=average) for average in (jax.lax.pmean, jax.lax.psum))
    mapped = jax.pmap(total, "i", devices=jax.devices()[:2])
    report = verify(reference=old_program(mean, "i", groups=2), step=mapped, devices=jax.devices()[:2], **HALVED)
    hidden = "not checked  the scale of the gradient (2 devices): clipping hides it in every update" in str(report)
    assert (hidden, bool(report.failed)) == ((True, False) if length == 1e-3 else (False, True)), str(report)


def test_a_key_for_each_device_that_stays_the_same_is_answered_with_keys_for_each_device():
    def step(w, batch, key):
        new, loss = halved(w, batch)
        return jax.lax.pmean((new, loss + jax.random.normal(key)), "i")

    given = HALVED | {"key": jax.random.split(jax.random.key(0), 2), "per_device": ["key"]}
    mapped = jax.pmap(step, "i", devices=jax.devices()[:2])
    report = verify(reference=old_program(step, "i", groups=2), step=mapped, devices=jax.devices()[:2], **given)
    assert "give key=lambda update: jax.random.split(jax.random.fold_in(key, update), 2)" in str(report)


def test_a_step_that_draws_from_the_key_alone_beside_a_reference_that_folds_fails():
    given = HALVED | {"state": (HALVED["state"], np.int32(0)), "layout": "sharded", "counts": [2]}
    report = verify(reference=functools.partial(noisy, fold=True), step=jax.jit(noisy), key=jax.random.key(0), **given)
    assert "key stands still" in report.causes, str(report)


def test_a_metric_of_another_size_hides_no_random_numbers():
    """The noise is clearly more than rounding in the reference, and less than that in a tenth of it."""

    def reference(state, batch, key, share=1.0):
        w, update = state
        new, _ = halved(w, batch)
        return (new, update + 1), share * (100 + jax.random.normal(jax.random.fold_in(key, update)))

    given = HALVED | {"state": (HALVED["state"], np.int32(0)), "layout": "sharded", "counts": [2], "float64": False}
    step = jax.jit(functools.partial(reference, share=0.1))
    report = verify(reference=reference, step=step, key=jax.random.key(0), **given)
    assert "key stands still" not in report.causes, str(report)


def test_a_counter_of_one_device_moves_a_fraction_as_far():
    def step(state, batch, rows):
        return (halved(state[0], batch)[0], state[1] + rows(batch["y"].size))

    plain = functools.partial(step, rows=lambda b: jax.lax.psum(b, "i"))
    given = HALVED | {"state": (HALVED["state"], np.int32(0)), "counts": [2], "devices": jax.devices()[:2]}
    wrong = jax.pmap(functools.partial(step, rows=lambda b: b), "i", devices=jax.devices()[:2])
    report = verify(reference=old_program(plain, "i", groups=2), step=wrong, **given)
    assert "1 moves 0.5 times as far as in the reference" in str(report)


@pytest.mark.parametrize(
    ("length", "local", "average", "cause"),
    [(1.0, 9.0, jax.lax.psum, "sum for mean"), (9.0, 0.3, jax.lax.pmean, "unknown")],
    ids=["psum", "clipped before"],
)
def test_a_cause_under_clipping_and_a_momentum_in_half_precision(length, local, average, cause):
    """The sum differs by a few roundings, and exactly as predicted. Gradients of nearly equal length that each device
    clips are nearly a multiple of the gradient, and no multiple."""

    def clip(g, most):
        return g * jnp.minimum(1, most / jnp.linalg.norm(g))

    def step(state, batch, average=jax.lax.pmean, local=9.0):
        w, momentum = state
        g = average(clip(jax.grad(lambda w: jnp.mean(jnp.tanh(batch["x"] @ w)))(w), local), "i")
        momentum = (clip(g, length) + 0.9 * momentum.astype(g.dtype)).astype(jnp.bfloat16)
        return w - 0.01 * momentum, momentum

    random = np.random.default_rng(0)
    batch = {"x": 0.25 + 0.09 * random.normal(size=(4, 9)).astype(np.float32)}
    given = {"state": (np.zeros(9, np.float32), jnp.zeros(9, jnp.bfloat16)), "batch": batch}
    wrong = jax.pmap(functools.partial(step, average=average, local=local), "i", devices=jax.devices()[:4])
    report = verify(reference=old_program(step, "i", groups=4), step=wrong, **given, devices=jax.devices()[:4])
    assert report.causes == [cause], str(report)


def test_a_key_of_each_device_that_is_returned_as_that_of_all_is_no_statistic():
    def step(params, rng, batch, own=False):
        rng, _ = jax.random.split(rng)
        gradient = jax.lax.pmean(jax.grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(params), "data")
        return params - 0.1 * gradient, jax.random.fold_in(rng, jax.lax.axis_index("data")) if own else rng

    given = {"state": (HALVED["state"], jax.random.PRNGKey(0)), "batch": HALVED["batch"], "counts": [2]}
    wrong = jax.pmap(functools.partial(step, own=True), "data")
    report = verify(reference=old_program(step, "data", groups=2), step=wrong, **given)
    assert report.causes == ["drift"], str(report)


def test_a_mean_over_half_of_the_devices_is_no_missing_all_reduce():
    halves = [[0, 1, 2, 3], [4, 5, 6, 7]]

    def plain(w, batch, mean=lambda gradient: gradient):
        return w - 0.1 * mean(jax.grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(w))

    def step(w, batch):
        return plain(w, batch, lambda gradient: jax.lax.pmean(gradient, "d", axis_index_groups=halves))

    random = np.random.default_rng(0)
    batch = {"x": random.normal(size=(16, 5)), "y": random.normal(size=16)}
    report = verify(reference=plain, step=jax.pmap(step, "d"), state=np.zeros(5), batch=batch)
    assert report.causes == ["drift"], str(report)


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


def test_a_layout_that_leaves_arrays_on_the_host_is_no_mistake_of_the_step():
    on_host = Layout(lambda state, devices: state, lambda batch, devices: batch)
    report = verify(reference=halved, step=jax.jit(halved), layout=on_host, **HALVED, counts=[1])
    assert not report.failed, str(report)
    assert "not checked  no implicit transfers (1 device): the layout leaves batch/x on the host" in str(report)


def test_a_layout_of_functions_is_taken_as_it_is():
    everywhere = Layout(
        lambda state, devices: jax.device_put(state, devices[0]),
        lambda batch, devices: jax.device_put(batch, devices[0]),
    )
    report = verify(reference=halved, step=jax.jit(halved), layout=everywhere, **HALVED, counts=[1])
    assert not report.failed, str(report)


def test_a_step_for_a_mesh_of_the_users_takes_the_sharding_of_its_batch():
    """`jax.make_mesh` makes the shardings part of the types, so that arrays on another mesh do not fit."""
    mesh = jax.make_mesh((len(jax.devices()),), ("dp",))

    def device_step(state, batch):
        return jax.lax.pmean(halved(state, batch), "dp")

    specs = {"in_specs": (PartitionSpec(), PartitionSpec("dp")), "out_specs": PartitionSpec()}
    step = jax.jit(jax.shard_map(device_step, mesh=mesh, **specs))
    report = verify(reference=halved, step=step, layout=NamedSharding(mesh, PartitionSpec("dp")), **HALVED)
    assert report.ok, str(report)
