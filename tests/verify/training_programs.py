"""A small training step three ways, right or with one or several mistakes planted in it.

A network of one hidden layer with batch norm, dropout for each example, weighted examples, clipping and weight decay.
`reference` is the step of one device; `make_step(way, devices, *mistakes)` that of several, for pmap and shard_map
(what one device does, with collectives) or for jit (arrays of the whole batch; a mistake works on `[N, b, ...]`).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.verify.layouts import Layout, replicate, stack

B, D, H, C = 16, 6, 8, 3
RATE, DECAY, LENGTH = 0.1, 0.01, 0.05
LAYOUT = {"pmap": "replicated", "shard_map": "sharded", "jit": "sharded"}


# What the program has in it beside a mistake, where that matters.
OPTIONS = {
    "nonlinear": {"clip": True},
    "same mask": {"positional": True},
    "other random numbers": {"positional": True},
    "local statistics": {"norm": True},
    "averaged statistics": {"norm": True},
    "local normalisation": {"norm": True, "no statistics": True},
}


def start(adam=False):
    random = np.random.default_rng(0)
    params = {
        "hidden": {"w": random.normal(size=(D, H)) / 2, "scale": 1 + random.normal(size=H) / 9, "b": np.zeros(H)},
        "logits": {"w": random.normal(size=(H, C)) / 2, "b": random.normal(size=C) / 9},
    }
    params = jax.tree.map(np.float32, params)
    state = {
        "params": params,
        "opt_state": optax.adam(RATE).init(params) if adam else jax.tree.map(np.zeros_like, params),
        "batch_stats": {"mean": np.zeros(H, np.float32), "var": np.ones(H, np.float32)},
        "step": np.int32(0),
    }
    batch = {
        "x": random.normal(size=(B, D)).astype(np.float32),
        "y": random.integers(0, C, B).astype(np.int32),
        "weight": np.ones(B, np.float32),
        "index": np.arange(B, dtype=np.int32),  # of the example in the global batch, for its random numbers
    }
    return state, batch, jax.random.key(5)


def padded(batch):
    """The last batch: 13 examples, and padding of weight 0."""
    return {**batch, "weight": (np.arange(B) < 13).astype(np.float32)}


def masks(key, index):
    """A mask for each example `[b, H]`, from its index in the global batch."""
    return jax.vmap(lambda i: jax.random.bernoulli(jax.random.fold_in(key, i), 0.7, (H,)))(index) / 0.7


def moments(h):
    return h.mean(0), (h**2).mean(0)


def terms(params, batch, mask, moments_of):
    """Loss and hits of each example `[b]`, and the statistics of the batch."""
    h = batch["x"] @ params["hidden"]["w"]
    mean, square = moments_of(h) if moments_of else (jnp.zeros(H), jnp.ones(H))
    var = square - mean**2
    h = (h - mean) / jnp.sqrt(var + 1e-3) * params["hidden"]["scale"] + params["hidden"]["b"]
    logits = (jnp.tanh(h) * mask) @ params["logits"]["w"] + params["logits"]["b"]
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
    return loss, (logits.argmax(-1) == batch["y"], {"mean": mean, "var": var})


def clip(gradients, length):
    return jax.tree.map(lambda g: g * jnp.minimum(1, length / optax.tree.norm(gradients)), gradients)


def update(state, gradients, statistics, options, rate=RATE, decay=DECAY):
    params = state["params"]
    if options.get("adam"):
        moves, optimizer = optax.adam(rate).update(gradients, state["opt_state"])
    else:
        optimizer = jax.tree.map(lambda m, g: 0.9 * m + g, state["opt_state"], gradients)
        moves = jax.tree.map(lambda m: -rate * m, optimizer)
    params = jax.tree.map(lambda p, move: p + move - rate * decay * p, params, moves)
    old = state["batch_stats"]
    keep = 1.0 if options.get("no statistics") else 0.9
    batch_stats = jax.tree.map(lambda a, b: keep * a + (1 - keep) * b, old, statistics)
    return {"params": params, "opt_state": optimizer, "batch_stats": batch_stats, "step": state["step"] + 1}


def reference(state, batch, key, **options):
    """One device, the whole batch."""
    key = jax.random.fold_in(key, state["step"])
    if options.get("positional"):  # one mask for the batch, as most programs draw it
        mask = jax.random.bernoulli(key, 0.7, (batch["x"].shape[0], H)) / 0.7
    else:
        mask = masks(key, batch["index"])
    count = batch["weight"].sum()

    def loss_of(params):
        loss, rest = terms(params, batch, mask, moments if options.get("norm") else None)
        return (batch["weight"] * loss).sum() / count, rest

    (loss, (hits, statistics)), gradients = jax.value_and_grad(loss_of, has_aux=True)(state["params"])
    if options.get("clip"):
        gradients = clip(gradients, LENGTH)
    accuracy = (batch["weight"] * hits).sum() / count
    return update(state, gradients, statistics, options), {"loss": loss, "accuracy": accuracy}


def on_one_device(state, batch, key, mistakes, N, options):
    """What one device of N does, with the mistakes of these names."""
    data = "data"
    b, d = batch["x"].shape[0], lax.axis_index(data)
    if "key stands still" not in mistakes:
        key = jax.random.fold_in(key, state["step"])
    mask = masks(key, batch["index"])
    if "same mask" in mistakes:
        mask = jax.random.bernoulli(key, 0.7, (b, H)) / 0.7
    if "other random numbers" in mistakes:
        mask = jax.random.bernoulli(jax.random.fold_in(key, d), 0.7, (b, H)) / 0.7
    weight = batch["weight"]
    if "dropped" in mistakes:
        weight = weight * ((d < N - 1) | (jnp.arange(b) < b - 1))
    if "counted twice" in mistakes:
        weight = weight * jnp.where((d == 0) & (jnp.arange(b) == 1), 2, 1)
    if "place decides" in mistakes:
        weight = weight * jnp.where(d == 0, 1.5, 1)
    count = weight.sum() if "mean of means" in mistakes else lax.psum(weight.sum(), data)

    def global_moments(h):
        if mistakes & {"local statistics", "local normalisation"}:
            return moments(h)
        if "averaged statistics" in mistakes:
            return lax.pmean(h.mean(0), data), lax.pmean(h.var(0), data) + lax.pmean(h.mean(0), data) ** 2
        return lax.pmean(moments(h), data)

    def loss_of(params):
        loss, rest = terms(params, batch, mask, global_moments if options.get("norm") else None)
        return (weight * loss).sum() / count, rest

    (loss, (hits, statistics)), gradients = jax.value_and_grad(loss_of, has_aux=True)(state["params"])
    accuracy = (weight * hits).sum() / count
    alone = 1 if "mean of means" in mistakes else N  # what makes a device's own gradient that of its examples
    reduce = lax.pmean if "mean of means" in mistakes else lax.psum
    if "nonlinear" in mistakes:
        gradients = clip(jax.tree.map(lambda g: alone * g, gradients), LENGTH)
        gradients = lax.pmean(gradients, data)
    elif "no all-reduce" in mistakes:
        gradients = jax.tree.map(lambda g: alone * g, gradients)
    elif "left out" in mistakes:
        gradients = reduce({**gradients, "logits": {"w": gradients["logits"]["w"]}}, data) | {
            "logits": {"w": reduce(gradients["logits"]["w"], data), "b": alone * gradients["logits"]["b"]}
        }
    else:
        gradients = reduce(gradients, data)
    if "sum for mean" in mistakes:
        gradients = jax.tree.map(lambda g: g * N, gradients)
    if "averaged twice" in mistakes:
        gradients = jax.tree.map(lambda g: g / N, gradients)
    if options.get("clip") and "nonlinear" not in mistakes:
        gradients = clip(gradients, LENGTH)
    if "local normalisation" in mistakes:
        statistics = lax.pmean(statistics, data)
    if "one device's metrics" in mistakes:
        loss, accuracy = alone * loss, alone * accuracy
    else:
        loss, accuracy = reduce((loss, accuracy), data)
    if "scaled metrics" in mistakes:
        loss = loss * N
    rate = RATE * N if "learning rate" in mistakes else RATE
    decay = DECAY * N if "weight decay" in mistakes else DECAY
    new = update(state, gradients, statistics, options, rate, decay)
    if "drift" in mistakes:
        noise = jax.random.normal(jax.random.fold_in(key, d), (C,))
        new["params"]["logits"]["b"] += 1e-4 * noise
    return new, {"loss": loss, "accuracy": accuracy}


def on_all(state, batch, key, mistakes, N, options):
    """The step of arrays of the whole batch, as jit takes it; a mistake is made in groups `[N, b, ...]`."""
    rows = jnp.arange(B)
    if "key stands still" not in mistakes:
        key = jax.random.fold_in(key, state["step"])
    mask = masks(key, batch["index"])
    if "same mask" in mistakes:
        mask = jnp.tile(jax.random.bernoulli(key, 0.7, (B // N, H)) / 0.7, (N, 1))
    if "other random numbers" in mistakes:
        draw = jax.vmap(lambda d: jax.random.bernoulli(jax.random.fold_in(key, d), 0.7, (B // N, H)))
        mask = draw(jnp.arange(N)).reshape(B, H) / 0.7
    weight = batch["weight"]
    if "dropped" in mistakes:
        weight = weight * (rows < B - 1)
    if "counted twice" in mistakes:
        weight = weight * jnp.where(rows == 1, 2, 1)
    if "place decides" in mistakes:
        weight = weight * (1 + rows / B)
    counts = weight.reshape(N, -1).sum(1)  # [N]

    def grouped_moments(h):
        if not mistakes & {"local statistics", "averaged statistics", "local normalisation"}:
            return moments(h)
        groups = h.reshape(N, -1, H)
        mean, var = groups.mean(1), groups.var(1)  # [N, H]
        if "averaged statistics" not in mistakes:
            return jnp.repeat(mean, B // N, 0), jnp.repeat(var + mean**2, B // N, 0)
        return mean.mean(0), var.mean(0) + mean.mean(0) ** 2

    def group_loss(params):
        loss, rest = terms(params, batch, mask, grouped_moments if options.get("norm") else None)
        return (weight * loss).reshape(N, -1).sum(1), rest  # [N]

    def loss_of(params):
        sums, rest = group_loss(params)
        loss = (sums / counts).mean() if "mean of means" in mistakes else sums.sum() / counts.sum()
        return loss, rest

    (loss, (hits, statistics)), gradients = jax.value_and_grad(loss_of, has_aux=True)(state["params"])
    if options.get("norm") and mistakes & {"local statistics", "local normalisation"}:
        statistics = jax.tree.map(lambda x: x[0], statistics)
    if "nonlinear" in mistakes:
        each = jax.jacrev(lambda params: group_loss(params)[0] / counts)(state["params"])
        gradients = jax.tree.map(lambda g: g.mean(0), jax.vmap(lambda g: clip(g, LENGTH))(each))
    elif options.get("clip"):
        gradients = clip(gradients, LENGTH)
    if "sum for mean" in mistakes:
        gradients = jax.tree.map(lambda g: g * N, gradients)
    if "averaged twice" in mistakes:
        gradients = jax.tree.map(lambda g: g / N, gradients)
    accuracy = (weight * hits).sum() / weight.sum()
    if "one device's metrics" in mistakes:
        sums, _ = group_loss(state["params"])
        loss, accuracy = sums[0] / counts[0], (weight * hits).reshape(N, -1).sum(1)[0] / counts[0]
    if "scaled metrics" in mistakes:
        loss = loss * N
    rate = RATE * N if "learning rate" in mistakes else RATE
    decay = DECAY * N if "weight decay" in mistakes else DECAY
    return update(state, gradients, statistics, options, rate, decay), {"loss": loss, "accuracy": accuracy}


# Mistakes of a Python function around the compiled step.
AROUND = ("replicated in the step", "recompilation", "transfer", "used after donation")


def make_step(way, devices, *mistakes, **options):
    """The step of N devices: `way` is pmap, shard_map or jit."""
    body = functools.partial(
        on_all if way == "jit" else on_one_device, mistakes=set(mistakes), N=len(devices), options=options
    )
    split = PartitionSpec() if "every device computes everything" in mistakes else PartitionSpec("data")
    mesh = Mesh(np.array(devices), ("data",))

    def build():
        function = functools.partial(body)  # a new one every time
        if way == "pmap":
            options = {"axis_name": "data", "in_axes": (None, 0, None), "out_axes": None, "devices": devices}
            return jax.pmap(lambda *arguments: function(*arguments), **options, donate_argnums=0)
        if way == "shard_map":
            specs, vma = (PartitionSpec(), split, PartitionSpec()), "check_vma" in mistakes
            function = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=vma)
        return jax.jit(function, donate_argnums=0, out_shardings=NamedSharding(mesh, PartitionSpec()))

    step = build()

    def around(state, batch, key):
        if "transfer" in mistakes:
            batch = {**batch, "x": np.asarray(batch["x"])}
        if "replicated in the step" in mistakes:
            batch = replicate(batch, devices)
        new, metrics = (build() if "recompilation" in mistakes else step)(state, batch, key)
        if "used after donation" in mistakes:
            metrics |= {"norm": optax.tree.norm(state["params"])}
        return new, metrics

    return around if set(mistakes) & set(AROUND) else step


def layout(way, *mistakes):
    """How that step wants its arguments."""
    if "every device computes everything" in mistakes:
        return Layout(replicate, stack if way == "pmap" else replicate)
    return LAYOUT[way]
