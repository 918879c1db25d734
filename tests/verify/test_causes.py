"""Steps of a few lines, each with the causes that `verify` may name: the table, and what the sentences say of them.

Among them are those that earlier versions took for another mistake, or passed.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from steps import BATCH, RANDOM, W, alone, descend, float32, loss_of, mean, on_pmap, total

from pmapdp.verify import Layout, old_program, one_device, verify

MESH = Mesh(np.array(jax.devices()), ("i",))


def sharded(step, **more):
    return jax.jit(jax.shard_map(step, mesh=MESH, in_specs=(P(), P("i")), out_specs=P(), **more))


def momentum_in_bfloat16(average):
    rule = optax.sgd(0.03, momentum=0.9, accumulator_dtype="bfloat16")

    def step(state, batch, average=alone):
        loss, gradient = jax.value_and_grad(lambda w: float32(w, batch)[1]["loss"])(state["w"])
        updates, opt = rule.update(average(gradient), state["opt"])
        loss = loss if average is alone else mean(loss)
        return {"w": optax.apply_updates(state["w"], updates), "opt": opt}, {"loss": loss}

    state = {"w": W, "opt": rule.init(jnp.asarray(W))}
    return {"reference": step, "step": on_pmap(step, average=average), "state": state}


def adam(reduce):
    """Only Adam's moments show how large the gradient was."""
    rule = optax.adam(1e-2)

    def step(state, batch, average=alone):
        updates, moments = rule.update(average(jax.grad(loss_of)(state[0], batch)), state[1])
        return optax.apply_updates(state[0], updates), moments

    return {"reference": step, "step": on_pmap(step, average=reduce), "state": (W, rule.init(jnp.asarray(W)))}


def accumulation(reduce):
    """Two calls for an update, the all-reduce inside lax.cond."""
    rule = optax.adam(0.1)

    def step(state, batch, average=mean):
        (params, opt), gradient, count = state
        gradient = gradient + jax.grad(loss_of)(params, batch) / 2

        def update(state):
            updates, opt = rule.update(average(gradient), state[1])
            return optax.apply_updates(state[0], updates), opt

        new = lax.cond(count == 1, update, lambda state: state, (params, opt))
        return new, jnp.where(count == 1, 0, gradient), 1 - count

    state = ((W, rule.init(jnp.asarray(W))), np.zeros((8, 5), np.float32), np.int32(0))
    given = {"reference": old_program(step, "i", groups=8), "step": on_pmap(step, average=reduce)}
    return given | {"state": state, "per_device": ["/1"]}


def same_key():
    """Each device has a key of its own; the mistake takes the first device's."""

    def step(w, batch, key, same=False):
        key = lax.all_gather(key, "i")[0] if same else key
        keep = jax.random.bernoulli(key, 0.7, batch["y"].shape)
        loss, gradient = mean(jax.value_and_grad(loss_of)(w, batch, keep))
        return w - 0.1 * gradient, loss

    keys = lambda n: jax.random.split(jax.random.fold_in(jax.random.PRNGKey(1), n), 8)  # noqa: E731
    mapped = jax.pmap(functools.partial(step, same=True), "i")
    reference = old_program(step, "i", groups=8)
    return {"reference": reference, "step": mapped, "state": W, "key": keys, "per_device": ["key"]}


def key_that_stands_still():
    """The key in the state is never split; a learning rate among the metrics changes all the same."""

    def step(state, batch, average=alone, advance=True):
        n, b = state["n"], len(batch["y"])
        key = jax.random.fold_in(state["key"], n) if advance else state["key"]
        index = (lax.axis_index("i") * b if average is mean else 0) + jnp.arange(b)
        keep = jax.vmap(lambda i: jax.random.bernoulli(jax.random.fold_in(key, i), 0.7))(index)
        loss, gradient = average(jax.value_and_grad(loss_of)(state["w"], batch, keep))
        rate = 0.1 / (1.0 + n)
        new = {**state, "w": state["w"] - rate * gradient, "n": n + 1}
        return new, {"loss": loss, "rate": rate}

    state = {"w": W, "n": np.int32(0), "key": jax.random.PRNGKey(0)}
    return {"reference": step, "step": on_pmap(step, advance=False), "state": state}


def tracker():
    """The gradient is averaged, but a running mean of the inputs is each device's own."""

    def step(state, batch, average=alone):
        w, metrics = descend(state["w"], batch, average)
        return {"w": w, "mean": 0.9 * state["mean"] + 0.1 * batch["x"].mean(0)}, metrics

    return {"reference": step, "step": on_pmap(step), "state": {"w": W, "mean": np.zeros(5, np.float32)}}


def counted():
    def step(state, batch, average=alone):
        w, metrics = descend(state["w"], batch, average)
        return {"w": w, "seen": state["seen"] + jnp.uint32(len(batch["y"]))}, metrics

    return {"reference": step, "step": on_pmap(step), "state": {"w": W, "seen": np.uint32(0)}}


def in_groups():
    """A reference that takes the whole batch alone: what one device does can't be asked of it."""

    def reference(w, batch):
        groups = jax.tree.map(lambda x: x.reshape(8, 2, *x.shape[1:]), batch)
        loss, gradient = jax.value_and_grad(lambda w: jax.vmap(loss_of, (None, 0))(w, groups).mean())(w)
        return w - 0.1 * gradient, {"loss": loss}

    def step(w, batch):
        loss, gradient = mean(jax.value_and_grad(loss_of)(w, batch))
        return w - 0.1 * gradient, {"loss": 1.5 * loss}

    return {"reference": reference, "step": jax.pmap(step, "i"), "state": W}


def averaged_parameters():
    """An average of the parameters, at another rate, is no statistic."""

    def step(state, batch, rate=0.1):
        w, metrics = descend(state["w"], batch, mean)
        return {"w": w, "average": state["average"] + rate * (w - state["average"])}, metrics

    step_at_another_rate = jax.pmap(functools.partial(step, rate=0.4), "i")
    return {"reference": one_device(step, "i"), "step": step_at_another_rate, "state": {"w": W, "average": W + 1}}


def late():
    """The first update is right; numbers that rounding doubles in every step of a loop hide no mistake."""

    def step(state, batch, average=alone, wrong=False):
        z = lax.fori_loop(0, 40, lambda _, z: 3.9 * z * (1 - z), state["z"])
        gradient = average(jax.grad(loss_of)(state["w"], batch)) * jnp.where(wrong & (state["n"] > 0), -8.0, 1.0)
        return {"w": state["w"] - z * gradient, "z": z, "n": state["n"] + 1}

    state = {"w": W, "z": np.float32(0.3), "n": np.int32(0)}
    return {"reference": step, "step": on_pmap(step, wrong=True), "state": state}


def hidden_state():
    """The step counts its calls in a variable of Python."""
    calls, mapped = [], on_pmap(descend)

    def step(w, batch):
        calls.append(1)
        new, metrics = mapped(w, batch)
        return (new * 2 if len(calls) % 2 == 0 else new), metrics

    return {"reference": descend, "step": step, "state": W}


def each_example():
    """A metric with a row for each example; check_vma=True sums its gradients over the devices."""

    def step(w, x):
        return w, {"each": jax.vmap(jax.grad(lambda w, x: jnp.sum(x * w) ** 2), (None, 0))(w, x)}

    out = (P(), {"each": P("i")})
    mapped = jax.jit(jax.shard_map(step, mesh=MESH, in_specs=(P(), P("i")), out_specs=out))
    return {"reference": step, "step": mapped, "state": W, "batch": BATCH["x"], "layout": "sharded"}


def on_the_host():
    """The first device does everything, because the loop passes arrays of the host."""
    layout = Layout(lambda state, devices: state, lambda batch, devices: batch)
    wide = {"x": RANDOM.normal(size=(32, 40)), "y": RANDOM.normal(size=(32, 20))}
    return {"reference": descend, "step": jax.jit(descend), "state": np.ones((40, 20)), "batch": wide, "layout": layout}


def in_a_loop():
    """Accumulation over 4 micro-batches: every device takes all rows."""

    def reference(w, batch):
        parts = jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), batch)
        add = lambda total, part: (total + jax.grad(loss_of)(w, part), None)  # noqa: E731
        return w - 0.1 * lax.scan(add, jnp.zeros_like(w), parts)[0] / 4

    def step(w, batch):
        return mean(reference(w, jax.tree.map(lambda x: lax.all_gather(x, "i", tiled=True), batch)))

    wide = {"x": RANDOM.normal(size=(64, 6)), "y": RANDOM.normal(size=(64, 30))}
    return {"reference": reference, "step": jax.pmap(step, "i"), "state": np.ones((6, 30)), "batch": wide}


def per_device_ids(w, batch):
    return descend(w, batch, mean)[0], {"loss": mean(loss_of(w, batch)) + lax.axis_index("i")}


TABLE = {
    "psum under check_vma": (
        lambda: {"reference": descend, "state": W, "layout": "sharded",
                 "step": sharded(lambda w, b: (descend(w, b, total)[0], mean(descend(w, b)[1])))}, {"check_vma"}),
    "pmean under check_vma": (
        lambda: {"reference": descend, "state": W, "layout": "sharded",
                 "step": sharded(lambda w, b: descend(w, b, mean))}, {"check_vma"}),
    "momentum in bfloat16": (lambda: momentum_in_bfloat16(mean), set()),
    "momentum in bfloat16, psum": (lambda: momentum_in_bfloat16(total), {"sum for mean"}),
    "adam, psum": (lambda: adam(total), {"sum for mean"}),
    "accumulation, psum": (lambda: accumulation(total), {"sum for mean"}),
    "one key for all devices": (same_key, {"same mask"}),
    "a rate among the metrics": (key_that_stands_still, {"key stands still"}),
    "a tracker": (tracker, {"local statistics"}),
    "a uint32 count": (counted, {"local statistics"}),
    "fixed reference, wrong metric": (in_groups, {"unknown"}),
    "another average": (averaged_parameters, {"unknown"}),
    "a later update": (late, {"unknown"}),
    "hidden state": (hidden_state, {"unknown"}),
    "a metric of each example": (each_example, {"unknown", "scaled metrics"}),
    "on the host": (on_the_host, {"every device computes everything"}),
    "all in a loop": (in_a_loop, {"every device computes everything"}),
    "a metric of each device": (
        lambda: {"reference": descend, "step": jax.pmap(per_device_ids, "i"), "state": W}, {"one device's metrics"}),
}  # fmt: skip


SAID = {
    "a later update": ["from update 2 on", "the devices hold the same values", "docs/mistakes.md"],
    "fixed reference, wrong metric": ["Wrong: 1 of 2 leaves, from update 1 on"],
    "on the host": ["The busiest device makes 100% of", "its part would be"],
    "psum under check_vma": ["64 times as large, under check_vma=True"],
}
BY_DAY = ("psum under check_vma", "a tracker", "a later update", "on the host")


@pytest.mark.parametrize(
    "name", [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.slow) for name in TABLE]
)
def test_no_cause_is_named_but_these(name):
    given, causes = TABLE[name]
    report = verify(**{"batch": BATCH} | given())
    assert bool(report.failed) == bool(causes), str(report)
    assert set(report.causes) <= causes, str(report)
    assert report.ok == (not causes), str(report)
    assert all(text in " ".join(str(report).split()) for text in SAID.get(name, ())), str(report)
