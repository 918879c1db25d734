"""A small training step, right as it stands: tests replace single lines of it by lines of docs/mistakes.py.

A network of one hidden layer with batch norm, dropout for each example, weighted
examples, an update rule and weight decay. OPTIONS: "optimizer"; "key" is an "argument",
in the "state", or "none"; "sums" are metrics as (sum, count); "norm" puts batch norm
in, and "untracked" keeps its statistics as they are.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

OPTIONS: dict = {}
B, D, H, C = 16, 6, 8, 3
RULES = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "momentum in bfloat16": optax.sgd(0.1, momentum=0.9, accumulator_dtype="bfloat16"),
    "adam": optax.adam(0.1),
    "adamw": optax.adamw(0.1),
    "clipping": optax.sgd(0.1, momentum=0.9),  # of clipped gradients
    "loss scale": optax.sgd(0.1, momentum=0.9),  # of a scaled loss
}


def start():
    """State and batch, as one device has them."""
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
        "opt_state": RULES[OPTIONS.get("optimizer", "momentum")].init(params),
        "batch_stats": {"mean": np.zeros(H, np.float32), "var": np.ones(H, np.float32)},
        "step": np.int32(0),
        "loss_scale": np.float32(
            1024 if OPTIONS.get("optimizer") == "loss scale" else 1
        ),
    }
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
    """Clipped to a norm that the gradient exceeds in some updates alone, if the program clips."""
    factor = jnp.minimum(1, OPTIONS.get("length", 0.7) / optax.tree.norm(gradients))
    return (
        jax.tree.map(lambda g: g * factor, gradients)
        if OPTIONS.get("optimizer") == "clipping"
        else gradients
    )


def step(state, batch, *key):
    """One device's part of the work, over the axis "data"."""
    N, device, b = lax.axis_size("data"), lax.axis_index("data"), len(batch["x"])  # noqa: F841
    params, new = state["params"], {**state, "step": state["step"] + 1}
    weight = batch["weight"]
    mask = jnp.ones((b, H))
    if OPTIONS.get("key") != "none":
        if OPTIONS.get("key") == "state":
            new["key"], key = jax.random.split(state["key"])
        else:
            key = jax.random.fold_in(key[0], state["step"])
        index = device * b + jnp.arange(b)  # of the examples in the global batch
        mask = (
            jax.vmap(
                lambda i: jax.random.bernoulli(jax.random.fold_in(key, i), 0.7, (H,))
            )(index)
            / 0.7
        )
    count = lax.pmean(weight.sum(), "data")

    def loss_of(params):
        h = batch["x"] @ params["hidden"]["w"]
        mean, square = jnp.zeros(H), jnp.ones(H)
        if OPTIONS.get("norm"):
            mean, square = lax.pmean(moments(h), "data")
        h = (h - mean) / jnp.sqrt(square - mean**2 + 1e-3) * params["hidden"][
            "scale"
        ] + params["hidden"]["b"]
        logits = (jnp.tanh(h) * mask) @ params["logits"]["w"] + params["logits"]["b"]
        total = (
            weight * optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
        ).sum()
        hits = (weight * (logits.argmax(-1) == batch["y"])).sum()
        return total / count * state["loss_scale"], (
            total,
            hits,
            {"mean": mean, "var": square - mean**2},
        )

    gradients, (total, hits, statistics) = jax.grad(loss_of, has_aux=True)(params)
    gradients = jax.tree.map(lambda g: g / state["loss_scale"], gradients)
    gradients = lax.pmean(gradients, "data")
    gradients = clip(gradients)
    rate, decay = 1, 0.001
    updates, new["opt_state"] = RULES[OPTIONS.get("optimizer", "momentum")].update(
        gradients, state["opt_state"], params
    )
    new["params"] = jax.tree.map(lambda p, u: p + rate * u - decay * p, params, updates)
    keep = 1.0 if OPTIONS.get("untracked") else 0.9
    new["batch_stats"] = jax.tree.map(
        lambda a, b: keep * a + (1 - keep) * b, state["batch_stats"], statistics
    )
    total, hits, count = lax.psum((total, hits, weight.sum()), "data")
    norm = lax.pmean(optax.tree.norm(params), "data")
    if OPTIONS.get("sums"):
        return new, {"loss": (total, count), "accuracy": (hits, count), "norm": norm}
    return new, {"loss": total / count, "accuracy": hits / count, "norm": norm}


def make_step(way, devices):
    """The step over these devices; `way` is pmap, shard_map or jit."""
    mesh, keys = (
        Mesh(np.array(devices), ("data",)),
        OPTIONS.get("key", "argument") == "argument",
    )
    if way == "pmap":
        axes = {"in_axes": (None, 0, *[None] * keys), "out_axes": None}
        return jax.pmap(step, "data", **axes, devices=devices, donate_argnums=0)
    if way == "shard_map":
        specs = (P(), P("data"), *[P()] * keys)
        mapped = jax.shard_map(
            step, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False
        )
        return jax.jit(mapped, donate_argnums=0)

    def whole(
        state, batch, *key
    ):  # arrays of the whole batch, in groups as the devices hold them
        batch = lax.with_sharding_constraint(batch, NamedSharding(mesh, P("data")))
        groups = jax.tree.map(
            lambda x: x.reshape(len(devices), -1, *x.shape[1:]), batch
        )
        results = jax.vmap(step, (None, 0, *[None] * keys), axis_name="data")(
            state, groups, *key
        )
        return jax.tree.map(lambda x: x[0], results)

    jitted = jax.jit(whole, donate_argnums=0, out_shardings=NamedSharding(mesh, P()))
    return lambda *given: jitted(*given)  # a plain function around it, as programs have
