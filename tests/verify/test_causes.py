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
from pmapdp.verify.layouts import LAYOUTS

MESH = Mesh(np.array(jax.devices()), ("i",))


def sharded(step, **more):
    return jax.jit(jax.shard_map(step, mesh=MESH, in_specs=(P(), P("i")), out_specs=P(), **more))


def with_state(**more):
    """A step whose state has other leaves, too: keys, counters and flags of large numbers."""

    def step(state, batch, average=alone):
        w, metrics = float32(state["w"], batch)  # each device's own gradient
        new = {**state, "w": w}
        if "key" in state:
            new["key"] = jax.random.split(state["key"])[0]
        if "seen" in state:
            new["seen"] = state["seen"] + 500_000
        return new, average(metrics)

    return {"reference": step, "step": on_pmap(step), "state": {"w": W, **more}}


def momentum_in_bfloat16(average):
    rule = optax.sgd(0.03, momentum=0.9, accumulator_dtype="bfloat16")

    def step(state, batch, average=alone):
        loss, gradient = jax.value_and_grad(lambda w: float32(w, batch)[1]["loss"])(state["w"])
        updates, opt = rule.update(average(gradient), state["opt"])
        loss = loss if average is alone else mean(loss)
        return {"w": optax.apply_updates(state["w"], updates), "opt": opt}, {"loss": loss}

    state = {"w": W, "opt": rule.init(jnp.asarray(W))}
    return {"reference": step, "step": on_pmap(step, average=average), "state": state}


def adam(reduce, **leaves):
    """Under Adam a bias of a single number may be off by chance as any mistake would have it."""
    rule = optax.adam(1e-2)

    def step(state, batch, average=alone):
        def loss(params):
            return loss_of(params["w"], batch) + jnp.mean((params.get("bias", 0.0) - 0.02) ** 2)

        updates, moments = rule.update(average(jax.grad(loss)(state[0])), state[1])
        return optax.apply_updates(state[0], updates), moments

    params = {"w": W, **leaves}
    return {"reference": step, "step": on_pmap(step, average=reduce), "state": (params, rule.init(params))}


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


def same_key(same):
    """Each device has a key of its own; the mistake takes the first device's."""

    def step(w, batch, key, same=False):
        key = lax.all_gather(key, "i")[0] if same else key
        keep = jax.random.bernoulli(key, 0.7, batch["y"].shape)
        loss, gradient = mean(jax.value_and_grad(loss_of)(w, batch, keep))
        return w - 0.1 * gradient, loss

    keys = lambda n: jax.random.split(jax.random.fold_in(jax.random.PRNGKey(1), n), 8)  # noqa: E731
    given = {"reference": old_program(step, "i", groups=8), "step": on_pmap(step, average=mean) if not same else None}
    given["step"] = jax.pmap(functools.partial(step, same=same), "i")
    return given | {"state": W, "key": keys, "per_device": ["key"]}


def key_that_stands_still(rate_logged):
    """The key in the state is never split; a learning rate among the metrics changes all the same."""

    def step(state, batch, average=alone, advance=True):
        n, b = state["n"], len(batch["y"])
        key = jax.random.fold_in(state["key"], n) if advance else state["key"]
        index = (lax.axis_index("i") * b if average is mean else 0) + jnp.arange(b)
        keep = jax.vmap(lambda i: jax.random.bernoulli(jax.random.fold_in(key, i), 0.7))(index)
        loss, gradient = average(jax.value_and_grad(loss_of)(state["w"], batch, keep))
        rate = 0.1 / (1.0 + n)
        new = {**state, "w": state["w"] - rate * gradient, "n": n + 1}
        return new, {"loss": loss} | ({"rate": rate} if rate_logged else {})

    state = {"w": W, "n": np.int32(0), "key": jax.random.PRNGKey(0)}
    return {"reference": step, "step": on_pmap(step, advance=False), "state": state}


def tracker(name):
    """The gradient is averaged, but a running mean of the inputs is each device's own."""

    def step(state, batch, average=alone):
        w, metrics = descend(state["w"], batch, average)
        return {"w": w, name: 0.9 * state[name] + 0.1 * batch["x"].mean(0)}, metrics

    return {"reference": step, "step": on_pmap(step), "state": {"w": W, name: np.zeros(5, np.float32)}}


def counted(dtype):
    def step(state, batch, average=alone):
        w, metrics = descend(state["w"], batch, average)
        return {"w": w, "seen": state["seen"] + jnp.asarray(len(batch["y"]), dtype)}, metrics

    return {"reference": step, "step": on_pmap(step), "state": {"w": W, "seen": dtype(0)}}


def normalized(B, classes, seed, dtype):
    """Each device normalises its own examples; the loss of one device may be near the average by chance."""

    def step(w, batch, average=alone):
        def loss(w):
            x = batch["x"].astype("f4")
            logits = jax.nn.log_softmax((x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-3) @ w.astype("f4"))
            return -jnp.mean(jnp.take_along_axis(logits, batch["y"][:, None], 1))

        value, gradient = average(jax.value_and_grad(loss)(w))
        return (w - 0.1 * gradient).astype(w.dtype), {"loss": value}

    random = np.random.default_rng(seed)
    batch = {"x": random.normal(size=(B, 8)).astype("f4"), "y": random.integers(0, classes, B)}
    state = (0.1 * random.normal(size=(8, classes))).astype(dtype)
    return {"reference": step, "step": on_pmap(step), "state": state, "batch": batch}


def in_groups(wrong_metric):
    """A reference that takes the whole batch alone: what one device does can't be asked of it."""

    def reference(w, batch):
        groups = jax.tree.map(lambda x: x.reshape(8, 2, *x.shape[1:]), batch)
        loss, gradient = jax.value_and_grad(lambda w: jax.vmap(loss_of, (None, 0))(w, groups).mean())(w)
        return w - 0.1 * gradient / (1 + jnp.linalg.norm(gradient)), {"loss": loss}

    def step(w, batch):
        loss, gradient = jax.value_and_grad(loss_of)(w, batch)
        gradient = mean(gradient) if wrong_metric else gradient
        return w - 0.1 * gradient / (1 + jnp.linalg.norm(gradient)), {"loss": mean(loss) * (1.5 if wrong_metric else 1)}

    return {"reference": reference, "step": jax.pmap(step, "i"), "state": W}


def uneven_weights():
    """Each device divides by its own weights, and the metric is a pair of sums."""
    weight = np.r_[np.ones(11), 0, 1, 0, 1, 0].astype(np.float32)

    def step(w, batch, average=alone, add=alone):
        def error(w):
            return batch["weight"] * (batch["x"] @ w - batch["y"]) ** 2

        gradient = jax.grad(lambda w: error(w).sum() / batch["weight"].sum())(w)
        return w - 0.1 * average(gradient), {"loss": add((error(w).sum(), batch["weight"].sum()))}

    return {"reference": step, "step": on_pmap(step, add=total), "state": W, "batch": BATCH | {"weight": weight}}


def decayed_leaf():
    """Wrong on one device, too, so that no average is at fault; one leaf has almost no gradient."""

    def step(state, batch, average=alone, decay=0.0):
        def loss(w):
            return jnp.mean(jnp.abs(batch["x"] @ w["a"] + 1e-9 * (batch["x"] @ w["b"]) - batch["y"]))

        value, gradient = average(jax.value_and_grad(loss)(state["w"]))
        momentum = jax.tree.map(lambda m, g, w: 0.9 * m + g + decay * w, state["m"], gradient, state["w"])
        return {"w": jax.tree.map(lambda w, m: w - 0.1 * m, state["w"], momentum), "m": momentum}, {"loss": value}

    w = {"a": 1e-3 * W, "b": 0.1 * W}
    make_step = lambda devices: jax.pmap(functools.partial(step, average=mean, decay=1e-4), "i", devices=devices)  # noqa: E731
    return {"reference": step, "make_step": make_step, "state": {"w": w, "m": jax.tree.map(np.zeros_like, w)}}


def over_half_of_the_devices():
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    average = lambda tree: lax.pmean(tree, "i", axis_index_groups=groups)  # noqa: E731
    step = jax.pmap(lambda w, batch: descend(w, batch, average)[0], "i")
    return {"reference": lambda w, batch: descend(w, batch)[0], "step": step, "state": W}


def averaged_parameters(clip_first=False, gradients=1, rate=0.1):
    """An average of the parameters follows their mistakes, and is no statistic."""

    def clip(g):
        return jax.tree.map(lambda x: x * jnp.minimum(1, 0.05 / optax.tree.norm(g)), g)

    def step(state, batch, clip_first=False, gradients=1, rate=0.1):
        def loss(p):
            return jnp.mean((batch["x"] @ p["a"] - batch["y"]) ** 2 + jnp.sin(batch["x"] @ p["b"]))

        value, g = jax.value_and_grad(loss)(state["params"])
        g = clip(mean(clip(g) if clip_first else g))
        g["b"] *= gradients
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], g)
        average = jax.tree.map(lambda e, p: e + rate * (p - e), state["average"], params)
        return {"params": params, "average": average}, mean(value)

    params = {"a": W, "b": RANDOM.normal(size=5).astype(np.float32)}
    state = {"params": params, "average": jax.tree.map(lambda x: x + 1, params)}
    wrong = functools.partial(step, clip_first=clip_first, gradients=gradients, rate=rate)
    return {"reference": one_device(step, "i"), "step": jax.pmap(wrong, "i"), "state": state}


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


def padded_evaluation():
    """The layout pads the last batch, and the padding counts."""

    def pad(batch, devices):
        filled = {k: np.pad(v, [(0, 16 - len(v))] + [(0, 0)] * (v.ndim - 1)) for k, v in batch.items()}
        return LAYOUTS["stacked"].place_batch(filled, devices)

    given = {"reference": lambda w, b: (w, loss_of(w, b)), "step": jax.pmap(lambda w, b: (w, mean(loss_of(w, b))), "i")}
    last = jax.tree.map(lambda x: x[:13], BATCH)
    return given | {"state": W, "last_batch": last, "layout": LAYOUTS["stacked"]._replace(place_batch=pad)}


def on_the_host():
    """The first device does everything, because the loop passes arrays of the host."""
    layout = Layout(lambda state, devices: state, lambda batch, devices: batch)
    wide = {"x": RANDOM.normal(size=(32, 40)), "y": RANDOM.normal(size=(32, 20))}
    return {"reference": descend, "step": jax.jit(descend), "state": np.ones((40, 20)), "batch": wide, "layout": layout}


def half_of_the_work():
    """A mesh of 4 x 2 whose batch is replicated: each device makes half of the work and not an eighth."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    split, everywhere = (jax.sharding.NamedSharding(mesh, P(*axes)) for axes in ((None, "model"), ()))
    wide = {"x": RANDOM.normal(size=(64, 6)), "y": RANDOM.normal(size=(64, 64))}
    step = jax.jit(descend, in_shardings=(split, everywhere), out_shardings=(split, everywhere))
    layout = Layout(lambda s, d: jax.device_put(s, split), lambda b, d: jax.device_put(b, everywhere))
    return {"reference": descend, "step": step, "state": np.ones((6, 64)), "batch": wide, "layout": layout}


def in_a_loop(whole):
    """Accumulation over 4 micro-batches: every device takes its rows, or all of them."""

    def reference(w, batch):
        parts = jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), batch)
        add = lambda total, part: (total + jax.grad(loss_of)(w, part), None)  # noqa: E731
        return w - 0.1 * lax.scan(add, jnp.zeros_like(w), parts)[0] / 4

    def step(w, batch):
        return mean(reference(w, jax.tree.map(lambda x: lax.all_gather(x, "i", tiled=True), batch) if whole else batch))

    wide = {"x": RANDOM.normal(size=(64, 6)), "y": RANDOM.normal(size=(64, 30))}
    return {"reference": reference, "step": jax.pmap(step, "i"), "state": np.ones((6, 30)), "batch": wide}


def weighted(gradient):
    return mean(gradient * (1 + 0.5 * (lax.axis_index("i") == 0)))


def shifted(w, batch):
    return descend(w, batch)[0] + jnp.arange(5), {}


def per_device_ids(w, batch):
    return descend(w, batch, mean)[0], {"loss": mean(loss_of(w, batch)) + lax.axis_index("i")}


ANY = {"unknown", "counted unequally"}
PLAIN = {"reference": one_device(lambda w, b: descend(w, b, mean), "i"), "state": W}
TABLE = {
    "psum": (lambda: PLAIN | {"step": on_pmap(descend, average=total)}, {"sum for mean", "scaled metrics"}),
    "psum under check_vma": (
        lambda: {"reference": descend, "state": W, "layout": "sharded",
                 "step": sharded(lambda w, b: (descend(w, b, total)[0], mean(descend(w, b)[1])))}, {"check_vma"}),
    "pmean under check_vma": (
        lambda: {"reference": descend, "state": W, "layout": "sharded",
                 "step": sharded(lambda w, b: descend(w, b, mean))}, {"check_vma"}),
    "no all-reduce beside a raw key": (lambda: with_state(key=jax.random.PRNGKey(0)), {"no all-reduce"}),
    "no all-reduce beside a typed key": (lambda: with_state(key=jax.random.key(0)), {"no all-reduce"}),
    "no all-reduce beside a count": (lambda: with_state(seen=np.uint32(0), done=np.bool_(False)), {"no all-reduce"}),
    "momentum in bfloat16": (lambda: momentum_in_bfloat16(mean), set()),
    "momentum in bfloat16, psum": (lambda: momentum_in_bfloat16(total), {"sum for mean"}),
    "momentum in bfloat16, none": (lambda: momentum_in_bfloat16(lambda g: g), {"no all-reduce"}),
    "momentum in bfloat16, weighted": (lambda: momentum_in_bfloat16(weighted), ANY),
    "adam, psum": (lambda: adam(total), {"sum for mean"}),
    "adam with a bias, psum": (lambda: adam(total, bias=np.zeros(1, np.float32)), {"sum for mean"}),
    "accumulation": (lambda: accumulation(mean), set()),
    "accumulation, psum": (lambda: accumulation(total), {"sum for mean"}),
    "a key of each device": (lambda: same_key(False), set()),
    "one key for all devices": (lambda: same_key(True), {"same mask"}),
    "a key that stands still": (lambda: key_that_stands_still(False), {"key stands still"}),
    "a rate among the metrics": (lambda: key_that_stands_still(True), {"key stands still"}),
    "a tracker": (lambda: tracker("tracker"), {"local statistics"}),
    "a uint32 count": (lambda: counted(np.uint32), {"local statistics"}),
    "an int32 count": (lambda: counted(np.int32), {"local statistics"}),
    "normalised by device": (lambda: normalized(64, 10, 2, "f4"), {"mean of means"}),
    "normalised, float32": (lambda: normalized(64, 1000, 0, np.float32), {"mean of means", "unknown"}),
    "fixed reference, no all-reduce": (lambda: in_groups(False), {"drift"}),
    "fixed reference, wrong metric": (lambda: in_groups(True), {"unknown"}),
    "uneven weights": (uneven_weights, {"mean of means"}),
    "wrong on one device": (decayed_leaf, {"unknown", "weight decay"}),
    "a mean over half": (over_half_of_the_devices, {"drift"}),
    "clipped first": (lambda: averaged_parameters(clip_first=True), {"mean of means"}),
    "one gradient of two summed": (lambda: averaged_parameters(gradients=8), {"sum for mean", "unknown"}),
    "another average": (lambda: averaged_parameters(rate=0.4), {"unknown"}),
    "a later update": (late, {"unknown"}),
    "hidden state": (hidden_state, {"unknown"}),
    "a metric of each example": (each_example, {"unknown", "scaled metrics"}),
    "padding": (padded_evaluation, {"unknown"}),
    "on the host": (on_the_host, {"every device computes everything"}),
    "half of the work": (half_of_the_work, {"every device computes everything"}),
    "rows in a loop": (lambda: in_a_loop(False), set()),
    "all in a loop": (lambda: in_a_loop(True), {"every device computes everything"}),
    "something else": (lambda: {"reference": descend, "step": jax.jit(shifted), "state": W, "layout": "sharded",
                                "updates": 1} | {"reference": lambda w, b: (descend(w, b)[0], {})}, {"unknown"}),
    "a metric of each device": (
        lambda: {"reference": descend, "step": jax.pmap(per_device_ids, "i"), "state": W}, {"one device's metrics"}),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_no_cause_is_named_but_these(name):
    given, causes = TABLE[name]
    report = verify(**{"batch": BATCH} | given())
    assert bool(report.failed) == bool(causes), str(report)
    assert set(report.causes) <= causes, str(report)
    assert report.ok == (not causes), str(report)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a later update", ["from update 2 on", "the devices hold the same values", "docs/mistakes.md"]),
        ("padding", ["from update 4 on, the only one with 13 examples"]),
        ("wrong on one device", ["one device is off, too"]),
        ("fixed reference, wrong metric", ["Wrong: 1 of 2 leaves, from update 1 on"]),
        ("on the host", ["The busiest device makes 100% of", "its part would be"]),
        ("psum under check_vma", ["64 times as large, under check_vma=True"]),
    ],
)
def test_what_is_sure_is_said(name, said):
    report = str(verify(**{"batch": BATCH} | TABLE[name][0]()))
    assert all(text in report for text in said), report
