"""Every leaf has a tolerance of its own: no key, counter or narrow leaf hides a mistake in another."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from pmapdp.verify import VerificationError, one_device, verify

RANDOM = np.random.default_rng(0)
BATCH = {"x": RANDOM.normal(size=(16, 5)).astype("f4"), "y": RANDOM.normal(size=16).astype("f4")}
W = RANDOM.normal(size=5).astype("f4")


def descend(w, batch, average=lambda tree: tree):
    """Linear regression in float32, whatever the types of the arguments are."""

    def loss_of(w):
        return jnp.mean((batch["x"].astype("f4") @ w.astype("f4") - batch["y"].astype("f4")) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(w)
    return (w - 0.1 * average(gradient)).astype(w.dtype), loss


@pytest.mark.parametrize(
    "more",
    [
        lambda: {"key": jax.random.PRNGKey(0)},
        lambda: {"key": jax.random.key(0)},
        lambda: {"tokens": np.int32(0)},
        lambda: {"tokens": np.uint32(0), "done": np.bool_(False)},
    ],
    ids=["a raw key", "a typed key", "a count", "an unsigned count and a flag"],
)
def test_a_missing_all_reduce_is_found_beside_large_whole_numbers(more):
    def plain(state, batch):
        w, loss = descend(state["w"], batch)
        new = {**state, "w": w}
        if "key" in state:
            new["key"] = jax.random.split(state["key"])[0]
        if "tokens" in state:
            new["tokens"] = state["tokens"] + 500_000
        return new, {"loss": loss}

    def step(state, batch):
        state, metrics = plain(state, batch)
        return state, lax.pmean(metrics, "data")

    report = verify(reference=plain, step=jax.pmap(step, "data"), state={"w": W} | more(), batch=BATCH)
    assert report.causes == ["no all-reduce"], str(report)
    assert set(report.compared.exactly) == set(more())


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_a_count_that_is_not_added_up_over_the_devices_is_found(dtype):
    def step(state, batch, average=lambda tree: tree):
        w, _ = descend(state["w"], batch, average)
        return {"w": w, "seen": state["seen"] + jnp.asarray(len(batch["y"]), state["seen"].dtype)}

    mapped = jax.pmap(lambda *given: step(*given, average=lambda tree: lax.pmean(tree, "data")), "data")
    report = verify(reference=step, step=mapped, state={"w": W, "seen": dtype(0)}, batch=BATCH)
    assert report.causes == ["local statistics"], str(report)
    assert list(report.failed[0].leaves) == ["seen"]


@pytest.mark.parametrize(
    ("average", "causes"),
    [
        (lambda tree: lax.pmean(tree, "i"), []),
        (lambda tree: lax.psum(tree, "i"), ["sum for mean"]),
        (lambda tree: tree, ["no all-reduce"]),
        (lambda tree: lax.pmean(jax.tree.map(lambda g: g * (1 + 0.5 * (lax.axis_index("i") == 0)), tree), "i"), None),
    ],
    ids=["right", "psum", "no all-reduce", "one device counts more"],
)
def test_momentum_that_is_stored_in_bfloat16_hides_nothing(average, causes):
    tx = optax.sgd(0.03, momentum=0.9, accumulator_dtype="bfloat16")

    def plain(state, batch, average=lambda tree: tree):
        loss, gradient = jax.value_and_grad(lambda w: descend(w, batch)[1])(state["w"])
        updates, opt = tx.update(average(gradient), state["opt"])
        return {"w": optax.apply_updates(state["w"], updates), "opt": opt}, {"loss": loss}

    def step(state, batch):
        state, metrics = plain(state, batch, average)
        return state, lax.pmean(metrics, "i")

    report = verify(
        reference=plain, step=jax.pmap(step, "i"), state={"w": W, "opt": tx.init(jnp.asarray(W))}, batch=BATCH
    )
    if causes is None:
        assert report.failed, str(report)
        assert set(report.causes) <= {"unknown", "counted unequally"}
    else:
        assert report.causes == causes, str(report)
        assert report.ok == (causes == []), str(report)


def test_gradients_that_both_average_in_bfloat16_pass_with_a_coarse_tolerance():
    def step(w, batch):
        loss, gradient = jax.value_and_grad(lambda w: descend(w, batch)[1])(w)
        return w - 0.1 * lax.pmean(gradient.astype(jnp.bfloat16), "d").astype(w.dtype), {"loss": lax.pmean(loss, "d")}

    report = verify(reference=one_device(step, "d"), step=jax.pmap(step, "d"), state=W, batch=BATCH)
    assert report.ok, str(report)
    assert report.compared.loosest[0] == "the value itself"
    assert 0.01 < report.compared.loosest[1] < 0.2


def chaotic(state, batch, times, average=lambda tree: tree):
    """A state that doubles its error in every step of an inner loop, and that the update depends on."""
    z = lax.fori_loop(0, times, lambda _, z: 3.9 * z * (1 - z), state["z"])
    return {"w": state["w"] - z * average(jax.grad(lambda w: descend(w, batch)[1])(state["w"])), "z": z}


def test_what_rounding_decides_is_not_compared_and_nothing_is_passed():
    state = {"w": W, "z": np.float32(0.3)}

    def noisy(state, batch, average=lambda tree: tree):  # the rounding of a sum enters, and grows in an inner loop
        waves = jnp.sin(jnp.outer(batch["x"].astype("f4") @ state["w"].astype("f4"), jnp.arange(1, 100, dtype="f4")))
        of_sum = average(jnp.mean(waves))
        return chaotic({**state, "z": 0.5 + 0.3 * jnp.sin(of_sum)}, batch, 60, average)

    step = jax.pmap(lambda *given: noisy(*given, average=lambda tree: lax.pmean(tree, "d")), "d")
    report = verify(reference=noisy, step=step, state=state, batch=BATCH, float64=False)
    assert set(report.compared.blind) >= {"z"}, str(report)
    assert not report.ok
    assert report.verdict != "passed"


def test_a_mistake_of_later_updates_is_found_where_the_updates_in_a_row_are_chaotic():
    state = {"w": W.astype("f8"), "z": 0.3, "n": 0}

    def plain(state, batch, average=lambda tree: tree, sign=lambda n: 1.0):
        new = chaotic({"w": state["w"], "z": state["z"]}, batch, 40, lambda tree: sign(state["n"]) * average(tree))
        return new | {"n": state["n"] + 1}

    def step(state, batch):
        return plain(state, batch, lambda tree: lax.pmean(tree, "d"), lambda n: jnp.where(n > 0, -8.0, 1.0))

    report = verify(reference=plain, step=jax.pmap(step, "d"), state=state, batch=BATCH)
    assert [(check.name, check.update) for check in report.failed] == [("same update", 2)], str(report)


def test_a_leaf_that_cannot_be_compared_is_missed_unless_it_is_named():
    """Under Adam in float32 a gradient that is nothing but rounding becomes a whole update."""
    tx = optax.adam(0.1)

    def plain(state, batch, average=lambda tree: tree):
        def loss_of(p):
            outputs = jnp.outer(batch["x"].astype("f4") @ p["w"].astype("f4"), jnp.arange(1, 100, dtype="f4"))
            shifted = jnp.sin(outputs) + p["bias"].astype("f4")
            normal = (shifted - shifted.mean(0)) / jnp.sqrt(shifted.var(0))
            return jnp.mean((normal - batch["y"][:, None].astype("f4")) ** 2)

        gradient = average(jax.grad(loss_of)(state["p"]))
        updates, opt = tx.update(gradient, state["opt"])
        return {"p": optax.apply_updates(state["p"], updates), "opt": opt}

    p = {"w": jnp.asarray(W), "bias": jnp.full(1, 0.3, "f4")}
    state = {"p": p, "opt": tx.init(p)}
    report = verify(reference=plain, step=jax.jit(plain), layout="sharded", state=state, batch=BATCH, float64=False)
    assert not report.failed, str(report)
    assert "p/bias" in report.compared.blind, str(report)
    with pytest.raises(VerificationError, match="p/bias"):
        report.require()
    report.require(not_compared=report.compared.blind)
