"""A small and correct training step, in which tests replace lines by wrong ones.

`planted.py` takes the lines from docs/mistakes.py. The network has one hidden layer with
batch norm, dropout for each example, weighted examples, an optimizer and weight decay.

OPTIONS has these settings:

    optimizer    a name in OPTIMIZERS
    key          "argument": the step takes it; "state": it's in the state; "none"
    sums         metrics are returned as (sum, count)
    norm         there is a batch norm
    untracked    the running statistics of batch norm stay as they are
    length       the norm to which gradients are clipped
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

OPTIONS: dict = {}
B = 16  # examples
D = 6  # features
H = 8  # hidden units
C = 3  # classes
OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "momentum in bfloat16": optax.sgd(0.1, momentum=0.9, accumulator_dtype="bfloat16"),
    "adam": optax.adam(0.1),
    "adamw": optax.adamw(0.1),
    "clipping": optax.sgd(0.1, momentum=0.9),  # of clipped gradients
    "loss scale": optax.sgd(0.1, momentum=0.9),  # of a scaled loss
}


def start():
    """Return state and batch, as one device has them."""
    optimizer = OPTIONS.get("optimizer", "momentum")
    random = np.random.default_rng(0)
    params = {
        "hidden": {
            "w": random.normal(size=(D, H)) / 2,
            "scale": 1 + random.normal(size=H) / 9,
            "b": np.zeros(H),
        },
        "logits": {"w": random.normal(size=(H, C)) / 2, "b": random.normal(size=C) / 9},
    }
    params = jax.tree.map(np.float32, params)
    state = {
        "params": params,
        "opt_state": OPTIMIZERS[optimizer].init(params),
        "batch_stats": {"mean": np.zeros(H, np.float32), "var": np.ones(H, np.float32)},
        "step": np.int32(0),
        "loss_scale": np.float32(1),
    }
    if optimizer == "loss scale":
        state["loss_scale"] = np.float32(1024)
    if OPTIONS.get("key") == "state":
        state["key"] = jax.random.PRNGKey(5)
    batch = {
        "x": random.normal(size=(B, D)).astype(np.float32),
        "y": random.integers(0, C, B).astype(np.int32),
        "weight": np.ones(B, np.float32),
    }
    return state, batch


def moments(h):
    return h.mean(0), (h**2).mean(0)


def clip(gradients):
    """Clip to a norm that the gradient exceeds only in some updates, if asked to."""
    if OPTIONS.get("optimizer") != "clipping":
        return gradients
    factor = jnp.minimum(1, OPTIONS.get("length", 0.7) / optax.tree.norm(gradients))
    return jax.tree.map(lambda g: g * factor, gradients)


def draw_mask(key, index):
    """Draw a dropout mask for each example, from its index in the global batch."""
    keys = jax.vmap(partial(jax.random.fold_in, key))(index)
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, 0.7, (H,)))(keys)
    return keep / 0.7


def step(state, batch, *key):
    """Do one device's part of an update, over the axis "data"."""
    N = lax.axis_size("data")  # noqa: F841 (wrong lines use it)
    device = lax.axis_index("data")
    b = len(batch["x"])
    params = state["params"]
    new = {**state, "step": state["step"] + 1}
    weight = batch["weight"]
    mask = jnp.ones((b, H))
    if OPTIONS.get("key") != "none":
        if OPTIONS.get("key") == "state":
            new["key"], key = jax.random.split(state["key"])
        else:
            key = jax.random.fold_in(key[0], state["step"])
        index = device * b + jnp.arange(b)
        mask = draw_mask(key, index)
    count = lax.pmean(weight.sum(), "data")

    def loss_of(params):
        h = batch["x"] @ params["hidden"]["w"]
        mean = jnp.zeros(H)
        square = jnp.ones(H)
        if OPTIONS.get("norm"):
            mean, square = lax.pmean(moments(h), "data")
        var = square - mean**2
        h = (h - mean) / jnp.sqrt(var + 1e-3)
        h = h * params["hidden"]["scale"] + params["hidden"]["b"]
        logits = (jnp.tanh(h) * mask) @ params["logits"]["w"] + params["logits"]["b"]
        labels = batch["y"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        total = (weight * losses).sum()
        hits = (weight * (logits.argmax(-1) == labels)).sum()
        statistics = {"mean": mean, "var": var}
        return total / count * state["loss_scale"], (total, hits, statistics)

    gradients, (total, hits, statistics) = jax.grad(loss_of, has_aux=True)(params)
    gradients = jax.tree.map(lambda g: g / state["loss_scale"], gradients)
    gradients = lax.pmean(gradients, "data")
    gradients = clip(gradients)
    rate, decay = 1, 0.001
    optimizer = OPTIMIZERS[OPTIONS.get("optimizer", "momentum")]
    updates, new["opt_state"] = optimizer.update(gradients, state["opt_state"], params)
    new["params"] = jax.tree.map(lambda p, u: p + rate * u - decay * p, params, updates)
    keep = 0.9
    if OPTIONS.get("untracked"):
        keep = 1.0
    new["batch_stats"] = jax.tree.map(
        lambda a, b: keep * a + (1 - keep) * b, state["batch_stats"], statistics
    )
    total, hits, count = lax.psum((total, hits, weight.sum()), "data")
    norm = lax.pmean(optax.tree.norm(params), "data")
    if OPTIONS.get("sums"):
        return new, {"loss": (total, count), "accuracy": (hits, count), "norm": norm}
    return new, {"loss": total / count, "accuracy": hits / count, "norm": norm}


def make_step(strategy, devices):
    """Make the step over these devices by "pmap", "shard_map" or "jit"."""
    mesh = Mesh(np.array(devices), ("data",))
    keys = int(OPTIONS.get("key", "argument") == "argument")  # arguments of the step
    if strategy == "pmap":
        return jax.pmap(
            step,
            "data",
            in_axes=(None, 0, *[None] * keys),
            out_axes=None,
            devices=devices,
            donate_argnums=0,
        )
    if strategy == "shard_map":
        specs = (P(), P("data"), *[P()] * keys)
        mapped = jax.shard_map(
            step, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False
        )
        return jax.jit(mapped, donate_argnums=0)

    def step_of_all(state, batch, *key):
        """Cut the whole batch into groups, one for each device."""
        batch = lax.with_sharding_constraint(batch, NamedSharding(mesh, P("data")))
        groups = jax.tree.map(
            lambda x: x.reshape(len(devices), -1, *x.shape[1:]), batch
        )
        axes = (None, 0, *[None] * keys)
        results = jax.vmap(step, axes, axis_name="data")(state, groups, *key)
        return jax.tree.map(lambda x: x[0], results)

    replicated = NamedSharding(mesh, P())
    jitted = jax.jit(step_of_all, donate_argnums=0, out_shardings=replicated)
    # Many programs have a plain function around the jitted one.
    return lambda *arguments: jitted(*arguments)
