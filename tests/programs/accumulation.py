"""Gradient accumulation on every device.

Micro-batches in a loop, then one all-reduce and one update.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax, pmap

tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))


def init(rng):
    first, second = jax.random.split(rng)
    params = {
        "w": 0.3 * jax.random.normal(first, (5, 16)),
        "v": 0.3 * jax.random.normal(second, (16, 3)),
    }
    return params, tx.init(params)


def loss_fn(params, images, labels):
    logits = jnp.tanh(images @ params["w"]) @ params["v"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def accumulate_gradient(loss_and_grad_fn, params, images, labels, accum_steps):
    if not accum_steps or accum_steps == 1:
        return loss_and_grad_fn(params, images, labels)
    step_size = images.shape[0] // accum_steps
    total = loss_and_grad_fn(params, images[:step_size], labels[:step_size])

    def add(i, total):
        rows = [
            lax.dynamic_slice_in_dim(x, i * step_size, step_size)
            for x in (images, labels)
        ]
        return jax.tree_util.tree_map(jnp.add, total, loss_and_grad_fn(params, *rows))

    total = lax.fori_loop(1, accum_steps, add, total)
    return jax.tree_util.tree_map(lambda x: x / accum_steps, total)


def update_fn(params, opt, batch):
    loss_and_grad = jax.value_and_grad(loss_fn)
    loss, grads = accumulate_gradient(
        loss_and_grad, params, batch["image"], batch["label"], 2
    )
    loss, grads = lax.pmean((loss, grads), axis_name="batch")
    updates, opt = tx.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, loss


p_update_fn = pmap(update_fn, axis_name="batch", donate_argnums=(0, 1))


def batches(steps, rows):
    random = np.random.default_rng(0)
    for _ in range(steps):
        image = random.normal(size=(rows, 5)).astype(np.float32)
        yield {"image": image, "label": np.argmax(image[:, :3], 1)}


def main():
    devices = jax.local_device_count()
    params, opt = pmap(init)(jnp.stack([jax.random.PRNGKey(0)] * devices))
    for batch in batches(4, 64):
        batch = {
            name: x.reshape(devices, -1, *x.shape[1:]) for name, x in batch.items()
        }
        params, opt, loss = p_update_fn(params, opt, batch)
    return jax.device_get(jax.tree_util.tree_map(lambda x: x[0], (params, opt))), loss[
        0
    ]


if __name__ == "__main__":
    print(main()[1])
