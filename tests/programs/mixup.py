"""Mixup inside each device, with a key that is folded by device, and momentum in bfloat16."""

from functools import partial

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax

tx = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9, accumulator_dtype=jnp.bfloat16))


def init(rng):
    first, second = jax.random.split(rng)
    return {"w": 0.3 * jax.random.normal(first, (6, 16)), "v": 0.3 * jax.random.normal(second, (16, 3))}


def mixup(rng, *things, p=0.2):
    """Mixes every example with the one before it, by a share that this device has drawn."""
    rng, rng_m = jax.random.split(rng)
    a = jax.random.beta(rng_m, p, p)
    a = jnp.maximum(a, 1.0 - a)
    return rng, [a * thing + (1.0 - a) * jnp.roll(thing, shift=1, axis=0) for thing in things]


def norm(tree):
    return jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree_util.tree_leaves(tree)))


@partial(jax.pmap, axis_name="batch", donate_argnums=(0, 1))
def update_fn(params, opt, rng, images, labels):
    rng, rng_model = jax.random.split(rng, 2)
    rng_local = jax.random.fold_in(rng_model, jax.lax.axis_index("batch"))
    rng_local, (images, labels) = mixup(rng_local, images, labels)

    def loss_fn(params, images, labels):
        hidden = jax.nn.relu(images @ params["w"])
        keep = jax.random.bernoulli(rng_local, 0.9, hidden.shape)
        logits = jnp.where(keep, hidden / 0.9, 0.0) @ params["v"]
        return -(labels * jax.nn.log_softmax(logits)).sum(-1).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params, images, labels)
    loss, grads = jax.lax.pmean((loss, grads), axis_name="batch")
    updates, opt = tx.update(grads, opt, params)
    params = optax.apply_updates(params, updates)
    measurements = {"l2_grads": norm(grads), "l2_params": norm(params)}
    return params, opt, rng, loss, measurements


def batches(steps, rows):
    random = np.random.default_rng(0)
    for _ in range(steps):
        image = random.normal(size=(rows, 6)).astype(np.float32)
        yield image, np.eye(3, dtype=np.float32)[np.argmax(image[:, :3], 1)]


def main():
    params = init(jax.random.PRNGKey(0))
    params_repl, opt_repl = map(flax.jax_utils.replicate, (params, tx.init(params)))
    rngs_loop = flax.jax_utils.replicate(jax.random.PRNGKey(1))
    for images, labels in batches(4, 32):
        split = lambda x: x.reshape((jax.local_device_count(), -1) + x.shape[1:])  # noqa: E731, RUF005
        params_repl, opt_repl, rngs_loop, loss, measurements = update_fn(
            params_repl, opt_repl, rngs_loop, split(images), split(labels)
        )
    params, opt = jax.tree_util.tree_map(lambda x: x[0], (params_repl, opt_repl))
    return jax.device_get((params, opt)), loss[0], {name: x[0] for name, x in measurements.items()}


if __name__ == "__main__":
    print(main()[1])
