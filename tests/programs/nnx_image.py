"""An image trainer in Flax NNX in the maintained form of pmap: the model is replicated and not stacked."""

import functools

import jax
import numpy as np
import optax
from flax import nnx


class CNN(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.linear = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.linear(nnx.relu(self.conv(x)).mean((1, 2)))


tx = optax.adam(1e-2)


def loss_fn(model, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


def train_step(model, opt_state, images, labels):
    loss, grads = jax.value_and_grad(loss_fn)(model, images, labels)
    loss, grads = jax.lax.pmean((loss, grads), "data")
    updates, opt_state = tx.update(grads, opt_state, model)
    return optax.apply_updates(model, updates), opt_state, loss


def batches(steps, rows):
    random = np.random.default_rng(0)
    for _ in range(steps):
        labels = random.integers(0, 3, rows)
        images = random.normal(size=(rows, 6, 6, 1)) + labels[:, None, None, None]
        yield images.astype(np.float32), labels


def main():
    data_parallel = functools.partial(jax.pmap, axis_name="data")
    p_train_step = data_parallel(train_step, in_axes=(None, None, 0, 0), out_axes=None)
    model = CNN(nnx.Rngs(0))
    opt_state = tx.init(model)
    for batch in batches(4, 32):
        images, labels = (x.reshape(jax.device_count(), -1, *x.shape[1:]) for x in batch)
        model, opt_state, loss = p_train_step(model, opt_state, images, labels)
    return jax.device_get(nnx.state(model)), jax.device_get(opt_state), float(loss)


if __name__ == "__main__":
    print(main()[2])
