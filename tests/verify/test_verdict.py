"""Nothing is passed that was not compared on several devices, in every update."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from marks import quick
from right_programs import HALVED, halved

from pmapdp.verify import Layout, VerificationError, verify
from pmapdp.verify.layouts import LAYOUTS


def data(B, seed=0):
    random = np.random.default_rng(seed)
    return {"x": random.normal(size=(B, 6)), "y": random.normal(size=(B, 3))}


def plain(w, batch):
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(w)
    return w - 0.1 * gradient, {"loss": loss}


def averaged(w, batch):
    return lax.pmean(plain(w, batch), "i")


@quick(1, "more", [{"last_batch": data(12)}, {}, {"last_batch": data(11)}])
def test_a_last_batch_that_does_not_divide_does_not_hide_the_others(more):
    made = {"make_step": lambda devices: jax.pmap(plain, "i", devices=devices)}
    report = verify(reference=plain, state=np.ones((6, 3)), batch=data(32), **made, **more)
    assert "no all-reduce" in report.causes, str(report)


@pytest.mark.slow
@pytest.mark.parametrize(("last", "ok"), [(11, False), (12, True)])
def test_a_last_batch_must_be_compared_on_several_devices(last, ok):
    """12 examples divide over 2 and 4 devices, 11 over no number of them."""
    made = {"make_step": lambda devices: jax.pmap(averaged, "i", devices=devices)}
    report = verify(reference=plain, state=np.ones((6, 3)), batch=data(32), last_batch=data(last), **made)
    assert not report.failed, str(report)
    assert report.ok == ok
    assert report.compared.updates[4] == ((1, 2, 4) if ok else (1,))
    assert ok or "its 11 examples do not divide over 2, 4, 8 devices: give a Layout whose place_batch pads" in str(
        report
    )


def test_one_device_alone_proves_nothing():
    report = verify(reference=halved, step=jax.jit(halved), layout="sharded", **HALVED, counts=[1])
    assert (report.failed, report.verdict, report.ok) == ([], "incomplete", False)
    with pytest.raises(VerificationError, match="no update was compared on more than one device"):
        report.require()


def test_require_can_insist_on_checks():
    report = verify(reference=halved, step=jax.jit(halved), layout="sharded", **HALVED)
    report.require(checked=["same update"])
    with pytest.raises(VerificationError, match="not checked: random numbers advance"):
        report.require(checked=["random numbers advance"])


def test_the_json_says_what_was_compared_and_what_was_not():
    report = verify(reference=plain, step=jax.pmap(averaged, "i"), state=np.ones((6, 3)), batch=data(32))
    found = json.loads(report.to_json())
    assert (found["ok"], found["verdict"]) == (True, "passed")
    assert found["compared"]["leaves"] == ["the value itself", "metrics/loss"]
    assert found["compared"]["updates"] == {"1": [8], "2": [8], "3": [8]}
    assert set(found["not_checked"]) == {"random numbers advance", "last batch", "other numbers of devices"}


def test_padding_that_counts_as_examples_is_named_with_the_batch_that_shows_it():
    def loss(w, batch):
        return jnp.mean((jnp.tanh(batch["x"] @ w) - batch["y"]) ** 2)

    def pad(batch, devices):
        filled = {k: np.pad(v, [(0, 32 - len(v)), (0, 0)]) for k, v in batch.items()}
        return LAYOUTS["stacked"].place_batch(filled, devices)

    report = verify(
        reference=lambda w, b: (w, {"loss": loss(w, b)}),
        step=jax.pmap(lambda w, b: (w, {"loss": lax.pmean(loss(w, b), "i")}), "i"),
        state=data(6)["y"], batch=data(32), last_batch=data(29), layout=LAYOUTS["stacked"]._replace(place_batch=pad),
    )  # fmt: skip
    assert report.causes == ["padding counts"], str(report)
    assert report.failed[0].update == 4


def test_only_the_ragged_batch_is_said_to_be_wrong():
    def wrong(w, batch):  # the mean of the devices' means, over padding that is left out
        return w, {"loss": lax.pmean(jnp.sum(batch["y"][:, 0] * batch["w"]) / jnp.maximum(batch["w"].sum(), 1), "i")}

    def right(w, batch):
        return w, {"loss": jnp.sum(batch["y"][:, 0] * batch["w"]) / batch["w"].sum()}

    batch, last = (data(16) | {"w": (np.arange(16) < n).astype(float)} for n in (16, 13))
    report = verify(reference=right, step=jax.pmap(wrong, "i"), state=np.ones(3), batch=batch, last_batch=last)
    assert report.causes == ["mean of means"], str(report)
    assert report.failed[0].update == 4


def test_a_state_that_is_kept_outside_of_what_is_returned_is_found():
    calls = []

    def step(state, batch):  # the first call alone is right
        calls.append(1)
        new, loss = mapped(state, batch)
        return (new * 2 if len(calls) in (2, 4, 6) else new), loss

    mapped = jax.pmap(lambda *given: lax.pmean(halved(*given), "i"), "i")
    report = verify(reference=halved, step=step, **HALVED)
    assert report.failed, str(report)


def test_work_is_taken_of_the_busiest_device():
    """A jitted step that gets its arguments from the host: the first device does everything."""
    on_host = Layout(lambda state, devices: state, lambda batch, devices: batch)
    report = verify(reference=plain, step=jax.jit(plain), state=np.ones((6, 3)), batch=data(32), layout=on_host)
    assert report.causes == ["every device computes everything"], str(report)
    assert "The busiest device makes 100%" in str(report)


def test_half_of_the_work_on_each_of_eight_devices_is_too_much():
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    split, everywhere = (jax.sharding.NamedSharding(mesh, jax.P(*axes)) for axes in ((None, "model"), ()))

    def wide(w, batch):
        loss, g = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(batch["x"] @ w) ** 2))(w)
        return w - 0.1 * g, {"loss": loss}

    step = jax.jit(wide, in_shardings=(split, everywhere), out_shardings=(split, everywhere))
    layout = Layout(lambda s, d: jax.device_put(s, split), lambda b, d: jax.device_put(b, everywhere))
    report = verify(reference=wide, step=step, state=np.ones((6, 64)), batch=data(64), layout=layout)
    assert report.causes == ["every device computes everything"], str(report)


@pytest.mark.parametrize(("by", "causes"), [("rows", []), ("whole", ["every device computes everything"])])
def test_work_in_loops_is_counted_as_often_as_they_run(by, causes):
    """Accumulation over 4 micro-batches: every device takes its rows, or all of them."""

    def accumulated(w, batch):
        parts = jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), batch)
        total = lax.scan(lambda total, part: (total + jax.grad(loss)(w, part), None), jnp.zeros_like(w), parts)[0]
        return w - 0.1 * total / 4

    def loss(w, batch):
        return jnp.mean((jnp.tanh(batch["x"] @ w) - batch["y"]) ** 2)

    def step(w, batch):
        if by == "whole":
            batch = jax.tree.map(lambda x: lax.all_gather(x, "i", tiled=True), batch)
        return lax.pmean(accumulated(w, batch), "i")

    arguments = {"reference": lambda w, batch: w - 0.1 * jax.grad(loss)(w, batch), "state": np.ones((6, 3))}
    report = verify(step=jax.pmap(step, "i"), batch=data(64), **arguments)
    assert report.causes == causes, str(report)
    assert [c.status for c in report.checks if c.name == "the work is split"] == ["FAILED" if causes else "passed"]
