"""A small training step three ways, right or with one or several mistakes planted in it.

A network of one hidden layer with batch norm, dropout for each example, weighted examples and weight decay, under one
of `OPTIMIZERS`. `reference` is the step of one device; `make_step(way, devices, *mistakes)` that of several, for pmap
and shard_map (what one device does, with collectives) or for jit (arrays of the whole batch; a mistake works on
`[N, b, ...]`). Options: "optimizer"; "key" is in the state, or an argument, or absent; "sums" are the metrics as (sum,
count), "norm" puts batch norm in, "positional" draws one mask for the batch.
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
# The gradient of the batch is shorter than LENGTH in some updates, so that a multiple of it is clipped to another one.
RATE, DECAY, LENGTH, SHORT = 0.1, 0.01, 0.7, 0.05
LAYOUT = {"pmap": "replicated", "shard_map": "sharded", "jit": "sharded"}


# What the program has in it beside a mistake, where that matters.
OPTIONS = {
    "nonlinear": {"optimizer": "clipping", "length": SHORT},
    "same mask": {"positional": True, "key": "argument"},
    "other random numbers": {"positional": True, "key": "argument"},
    "key stands still": {"key": "argument"},
    "local statistics": {"norm": True},
    "averaged statistics": {"norm": True},
    "local normalisation": {"norm": True, "no statistics": True},
}


def optimizer(options, rate=RATE):
    """The update rule of one device."""
    return {
        "sgd": lambda: optax.sgd(rate),
        "momentum": lambda: optax.sgd(rate, momentum=0.9),
        "momentum in bfloat16": lambda: optax.sgd(rate, momentum=0.9, accumulator_dtype="bfloat16"),
        "adam": lambda: optax.adam(rate),
        "adamw": lambda: optax.adamw(rate),
        "clipping": lambda: optax.sgd(rate, momentum=0.9),  # of clipped gradients
        "loss scale": lambda: optax.sgd(rate, momentum=0.9),  # of a scaled loss
    }[options.get("optimizer", "momentum")]()


OPTIMIZERS = ("sgd", "momentum in bfloat16", "adam", "adamw", "clipping", "loss scale")


def start(**options):
    random = np.random.default_rng(0)
    params = {
        "hidden": {"w": random.normal(size=(D, H)) / 2, "scale": 1 + random.normal(size=H) / 9, "b": np.zeros(H)},
        "logits": {"w": random.normal(size=(H, C)) / 2, "b": random.normal(size=C) / 9},
    }
    params = jax.tree.map(np.float32, params)
    state = {
        "params": params,
        "opt_state": optimizer(options).init(params),
        "batch_stats": {"mean": np.zeros(H, np.float32), "var": np.ones(H, np.float32)},
        "step": np.int32(0),
    }
    if options.get("optimizer") == "loss scale":
        state["loss_scale"] = {"value": np.float32(1024), "good": np.int32(0)}
    if options.get("key") == "state":
        state["key"] = jax.random.PRNGKey(5)
    batch = {
        "x": random.normal(size=(B, D)).astype(np.float32),
        "y": random.integers(0, C, B).astype(np.int32),
        "weight": np.ones(B, np.float32),
        "index": np.arange(B, dtype=np.int32),  # of the example in the global batch, for its random numbers
    }
    return state, batch, jax.random.key(5) if options.get("key", "argument") == "argument" else None


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


def maybe_clip(gradients, options):
    """Clipped, where the program clips."""
    return clip(gradients, options.get("length", LENGTH)) if options.get("optimizer") == "clipping" else gradients


def update(state, gradients, statistics, options, rate=RATE, decay=DECAY):
    params = state["params"]
    moves, opt_state = optimizer(options, rate).update(gradients, state["opt_state"], params)
    changed = jax.tree.map(lambda p, move: p + move - rate * decay * p, params, moves)
    keep = 1.0 if options.get("no statistics") else 0.9
    batch_stats = jax.tree.map(lambda a, b: keep * a + (1 - keep) * b, state["batch_stats"], statistics)
    new = {"params": changed, "opt_state": opt_state, "batch_stats": batch_stats, "step": state["step"] + 1}
    if "loss_scale" in state:  # a dynamic one: an update that is not finite is left out
        finite = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(gradients)]))
        choose = lambda a, b: jax.tree.map(lambda x, y: jnp.where(finite, x, y), a, b)  # noqa: E731
        new["params"], new["opt_state"] = choose((changed, opt_state), (params, state["opt_state"]))
        value, good = state["loss_scale"]["value"], state["loss_scale"]["good"]
        grown = jnp.where(good > 1000, value * 2, value)
        new["loss_scale"] = {"value": jnp.where(finite, grown, value / 2), "good": jnp.where(finite, good + 1, 0)}
    if "key" in state:
        new["key"] = jax.random.split(state["key"])[0]
    return new


def scale_of(state):
    """By how much the loss is scaled before it is differentiated."""
    return state["loss_scale"]["value"] if "loss_scale" in state else 1


def mask_key(state, key, advances=True):
    """The key of this update's masks, or None where the program has no dropout."""
    if "key" in state:
        return jax.random.split(state["key"])[1] if advances else jax.random.PRNGKey(5)
    return None if not key else jax.random.fold_in(key[0], state["step"]) if advances else key[0]


def metrics_of(loss, hits, count, options):
    """The means, or sums and counts."""
    if options.get("sums"):
        return {"loss": (loss, count), "accuracy": (hits, count)}
    return {"loss": loss / count, "accuracy": hits / count}


def reference(state, batch, *key, **options):
    """One device, the whole batch."""
    key = mask_key(state, key)
    if key is None:
        mask = 1
    elif options.get("positional"):  # one mask for the batch, as most programs draw it
        mask = jax.random.bernoulli(key, 0.7, (batch["x"].shape[0], H)) / 0.7
    else:
        mask = masks(key, batch["index"])
    count = batch["weight"].sum()

    def loss_of(params):
        loss, rest = terms(params, batch, mask, moments if options.get("norm") else None)
        total = (batch["weight"] * loss).sum()
        return total / count * scale_of(state), (total, *rest)

    gradients, (total, hits, statistics) = jax.grad(loss_of, has_aux=True)(state["params"])
    gradients = maybe_clip(jax.tree.map(lambda g: g / scale_of(state), gradients), options)
    metrics = metrics_of(total, (batch["weight"] * hits).sum(), count, options)
    return update(state, gradients, statistics, options), metrics


def on_one_device(state, batch, *key, mistakes, N, options):
    """What one device of N does, with the mistakes of these names."""
    data = "data"
    b, d = batch["x"].shape[0], lax.axis_index(data)
    key = mask_key(state, key, "key stands still" not in mistakes)
    mask = 1 if key is None else masks(key, batch["index"])
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
        total = (weight * loss).sum()
        return total / count * scale_of(state), (total, *rest)

    gradients, (total, hits, statistics) = jax.grad(loss_of, has_aux=True)(state["params"])
    gradients = jax.tree.map(lambda g: g / scale_of(state), gradients)
    hits = (weight * hits).sum()
    alone = 1 if "mean of means" in mistakes else N  # what makes a device's own gradient that of its examples
    reduce = lax.pmean if "mean of means" in mistakes else lax.psum
    if "nonlinear" in mistakes:
        gradients = maybe_clip(jax.tree.map(lambda g: alone * g, gradients), options)
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
    if "nonlinear" not in mistakes:
        gradients = maybe_clip(gradients, options)
    if "local normalisation" in mistakes:
        statistics = lax.pmean(statistics, data)
    if "one device's metrics" in mistakes:
        metrics = metrics_of(total, hits, weight.sum(), options)
    elif "mean of means" in mistakes and not options.get("sums"):
        metrics = lax.pmean(metrics_of(total, hits, count, options), data)
    else:
        metrics = metrics_of(*lax.psum((total, hits, weight.sum()), data), options)
    if "scaled metrics" in mistakes:
        metrics["loss"] = jax.tree.map(lambda x: x * N, metrics["loss"])
    rate = RATE * N if "learning rate" in mistakes else RATE
    decay = DECAY * N if "weight decay" in mistakes else DECAY
    new = update(state, gradients, statistics, options, rate, decay)
    if "drift" in mistakes:
        new["params"]["logits"]["b"] += 1e-4 * jax.random.normal(
            jax.random.key(d), (C,), new["params"]["logits"]["b"].dtype
        )
    return new, metrics


def on_all(state, batch, *key, mistakes, N, options):
    """The step of arrays of the whole batch, as jit takes it; a mistake is made in groups `[N, b, ...]`."""
    rows = jnp.arange(B)
    key = mask_key(state, key, "key stands still" not in mistakes)
    mask = 1 if key is None else masks(key, batch["index"])
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
        return loss * scale_of(state), (sums, *rest)

    gradients, (sums, hits, statistics) = jax.grad(loss_of, has_aux=True)(state["params"])
    gradients = jax.tree.map(lambda g: g / scale_of(state), gradients)
    hits = (weight * hits).reshape(N, -1).sum(1)
    if options.get("norm") and mistakes & {"local statistics", "local normalisation"}:
        statistics = jax.tree.map(lambda x: x[0], statistics)
    if "nonlinear" in mistakes:
        each = jax.jacrev(lambda params: group_loss(params)[0] / counts)(state["params"])
        gradients = jax.tree.map(lambda g: g.mean(0), jax.vmap(lambda g: maybe_clip(g, options))(each))
    if "sum for mean" in mistakes:
        gradients = jax.tree.map(lambda g: g * N, gradients)
    if "averaged twice" in mistakes:
        gradients = jax.tree.map(lambda g: g / N, gradients)
    if "nonlinear" not in mistakes:
        gradients = maybe_clip(gradients, options)
    metrics = metrics_of(sums.sum(), hits.sum(), counts.sum(), options)
    if "mean of means" in mistakes and not options.get("sums"):
        metrics = {"loss": (sums / counts).mean(), "accuracy": (hits / counts).mean()}
    if "one device's metrics" in mistakes:
        metrics = metrics_of(sums[0], hits[0], counts[0], options)
    if "scaled metrics" in mistakes:
        metrics["loss"] = jax.tree.map(lambda x: x * N, metrics["loss"])
    rate = RATE * N if "learning rate" in mistakes else RATE
    decay = DECAY * N if "weight decay" in mistakes else DECAY
    return update(state, gradients, statistics, options, rate, decay), metrics


# Mistakes of a Python function around the compiled step.
AROUND = ("replicated in the step", "recompilation", "transfer", "used after donation")


def make_step(way, devices, *mistakes, **options):
    """The step of N devices: `way` is pmap, shard_map or jit."""
    body = functools.partial(
        on_all if way == "jit" else on_one_device, mistakes=set(mistakes), N=len(devices), options=options
    )
    split = PartitionSpec() if "every device computes everything" in mistakes else PartitionSpec("data")
    mesh = Mesh(np.array(devices), ("data",))
    keys = 1 if options.get("key", "argument") == "argument" else 0  # arguments

    def build():
        function = functools.partial(body)  # a new one every time
        if way == "pmap":
            axes = {"axis_name": "data", "in_axes": (None, 0, *[None] * keys), "out_axes": None, "devices": devices}
            return jax.pmap(lambda *arguments: function(*arguments), **axes, donate_argnums=0)
        if way == "shard_map":
            specs, vma = (PartitionSpec(), split, *[PartitionSpec()] * keys), "check_vma" in mistakes
            function = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=vma)
        return jax.jit(function, donate_argnums=0, out_shardings=NamedSharding(mesh, PartitionSpec()))

    step = build()

    def around(state, batch, *key):
        if "transfer" in mistakes:
            batch = {**batch, "x": np.asarray(batch["x"])}
        if "replicated in the step" in mistakes:
            batch = replicate(batch, devices)
        new, metrics = (build() if "recompilation" in mistakes else step)(state, batch, *key)
        if "used after donation" in mistakes:
            metrics |= {"norm": optax.tree.norm(state["params"])}
        return new, metrics

    return around if set(mistakes) & set(AROUND) else step


def layout(way, *mistakes):
    """How that step wants its arguments."""
    if "every device computes everything" in mistakes:
        return Layout(replicate, stack if way == "pmap" else replicate)
    return LAYOUT[way]


# The plants, each with the sentence that names it: its own, where none is given here.
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
NOT_UNDER_JIT = {"no all-reduce", "left out", "drift"}  # arrays are those of the whole batch there
WAYS = ("pmap", "shard_map", "jit")


def ways(mistake):
    """Under which of `WAYS` a mistake can be made."""
    if mistake in ("check_vma", "replicated in the step"):
        return ("shard_map",) if mistake == "check_vma" else ("jit",)
    return tuple(way for way in WAYS if not (way == "jit" and mistake in NOT_UNDER_JIT))


@functools.cache
def jitted_reference(options):
    """The reference with these options, compiled once for all mistakes."""
    return jax.jit(functools.partial(reference, **dict(options)))


def given(way, *mistakes, **options):
    """The arguments of `verify` for the program with these mistakes, on 4 devices."""
    for mistake in mistakes:
        of_mistake = OPTIONS.get(mistake, {})
        options |= {
            name: value for name, value in of_mistake.items() if not (name == "key" and options.get("key") == "state")
        }
    state, batch, key = start(**options)
    return {
        "reference": jitted_reference(tuple(sorted(options.items()))),
        "make_step": lambda devices: make_step(way, devices, *mistakes, **options),
        "state": state, "batch": batch, "key": key, "layout": layout(way, *mistakes), "counts": [4],
        "last_batch": padded(batch),
    }  # fmt: skip
