"""Steps of a few lines, each with the causes that `verify` may name: the table, and what the sentences say of them.

Among them are those that earlier versions took for another mistake, or passed.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from marks import quick
from steps import BATCH, RANDOM, W, alone, descend, loss_of, mean, on_pmap, total

from pmapdp.verify import Layout, verify

MESH = Mesh(np.array(jax.devices()), ("i",))


def sharded(step, **more):
    return jax.jit(jax.shard_map(step, mesh=MESH, in_specs=(P(), P("i")), out_specs=P(), **more))


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
    """The gradient is averaged, but a running mean of the inputs and a count of them are each device's own."""

    def step(state, batch, average=alone):
        w, metrics = descend(state["w"], batch, average)
        mean, seen = 0.9 * state["mean"] + 0.1 * batch["x"].mean(0), state["seen"] + jnp.uint32(len(batch["y"]))
        return {"w": w, "mean": mean, "seen": seen}, metrics

    state = {"w": W, "mean": np.zeros(5, np.float32), "seen": np.uint32(0)}
    return {"reference": step, "step": on_pmap(step), "state": state}


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
    """Each device shortens its own gradient; an average of the parameters, which is wrong too, is no statistic."""

    def step(state, batch, average=alone):
        gradient = jax.grad(loss_of)(state["w"], batch)
        w = state["w"] - 0.1 * average(gradient / jnp.linalg.norm(gradient))
        return {"w": w, "average": 0.9 * state["average"] + 0.1 * w}, {}

    return {"reference": step, "step": on_pmap(step), "state": {"w": W, "average": W}}


def late():
    """The first update is right; numbers that rounding doubles in every step of a loop hide no mistake."""

    def step(state, batch, average=alone, wrong=False):
        z = lax.fori_loop(0, 40, lambda _, z: 3.9 * z * (1 - z), state["z"])
        gradient = average(jax.grad(loss_of)(state["w"], batch)) * jnp.where(wrong & (state["n"] > 0), -8.0, 1.0)
        return {"w": state["w"] - z * gradient, "z": z, "n": state["n"] + 1}

    state = {"w": W, "z": np.float32(0.3), "n": np.int32(0)}
    return {"reference": step, "step": on_pmap(step, wrong=True), "state": state}


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
    "a tracker": (tracker, {"local statistics"}),
    "a later update": (late, {"unknown"}),
    "on the host": (on_the_host, {"every device computes everything"}),
    "a rate among the metrics": (key_that_stands_still, {"key stands still"}),
    "fixed reference, wrong metric": (in_groups, {"unknown"}),
    "an average of parameters": (averaged_parameters, {"mean of means"}),
    "a metric of each example": (each_example, {"unknown", "scaled metrics"}),
    "all in a loop": (in_a_loop, {"every device computes everything"}),
    "a metric of each device": (
        lambda: {"reference": descend, "step": jax.pmap(per_device_ids, "i"), "state": W}, {"one device's metrics"}),
}  # fmt: skip


SAID = {
    "a later update": ["from update 2 on", "the devices hold the same values", "docs/mistakes.md"],
    "fixed reference, wrong metric": ["Wrong: 1 of 2 leaves, from update 1 on"],
    "on the host": ["The busiest device makes 100% of", "its part would be"],
    "psum under check_vma": ["64 times as large, under check_vma=True"],
    "a tracker": ["mean: these are the statistics", "Largest difference: 14 in seen"],
}


@quick(4, "name", TABLE)
def test_no_cause_is_named_but_these(name):
    given, causes = TABLE[name]
    report = verify(**{"batch": BATCH} | given())
    assert report.failed, str(report)
    assert set(report.causes) <= causes, str(report)
    assert all(text in " ".join(str(report).split()) for text in SAID.get(name, ())), str(report)


def test_work_that_a_plain_function_places_is_not_called_split():
    """The compiler's counts would leave its `device_put` out, so nothing is said of the work."""

    @jax.jit
    def step(w, batch):
        return descend(w, batch)

    def around(w, batch):
        return step(w, jax.device_put(batch, NamedSharding(MESH, P())))

    report = verify(step=around, reference=descend, state=W, layout="sharded", batch=BATCH)
    (check,) = (check for check in report.checks if check.name == "the work is split")
    assert check.status == "not checked"
    assert "the function around your step places arrays" in check.sentence
