"""Keras 3 on JAX with the loop of its guide to multi-device training, on the guide's
batch-norm convnet.

    python keras_jax.py DATA.npz DEVICES GLOBAL_BATCH EXAMPLES EPOCHS

Prints one line of JSON an epoch: {"examples_per_second": ...}. The devices are
simulated CPU devices.
"""

import importlib.metadata
import json
import os
import sys
import time

DEVICES = int(sys.argv[2])
cores = len(os.sched_getaffinity(0))
os.environ.update(
    KERAS_BACKEND="jax", XLA_FLAGS=f"--xla_force_host_platform_device_count={DEVICES}"
)
if tuple(map(int, importlib.metadata.version("jax").split(".")[:2])) < (0, 12):
    os.environ["NPROC"] = str(
        max(cores, 2 * DEVICES)
    )  # fewer threads than that deadlock

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from keras import layers


def convnet() -> keras.Model:
    """The guide's network."""
    images = x = keras.Input((28, 28, 1))
    x = layers.Rescaling(1 / 255)(x)
    for convolution in (
        layers.Conv2D(12, 3, padding="same", use_bias=False),
        layers.Conv2D(24, 6, strides=2, use_bias=False),
        layers.Conv2D(32, 6, strides=2, padding="same", name="large_k"),
    ):
        x = layers.ReLU()(layers.BatchNormalization(scale=False)(convolution(x)))
    x = layers.Dense(256, activation="relu")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(images, layers.Dense(10)(layers.Dropout(0.5)(x)))


def main() -> None:
    """Run the command."""
    batch, examples, epochs = map(int, sys.argv[3:])
    with np.load(sys.argv[1]) as data:
        images, labels = (
            data["images"][:examples].astype(np.float32),
            data["labels"][:examples],
        )
    model, optimizer = convnet(), keras.optimizers.Adam(1e-3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    def compute_loss(trainable, non_trainable, x, y):
        predictions, non_trainable = model.stateless_call(
            trainable, non_trainable, x, training=True
        )
        return loss(y, predictions), non_trainable

    @jax.jit
    def train_step(state, x, y):
        trainable, non_trainable, slots = state
        gradient = jax.value_and_grad(compute_loss, has_aux=True)
        (value, non_trainable), gradients = gradient(trainable, non_trainable, x, y)
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        return value, (trainable, non_trainable, slots)

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:DEVICES]), ("batch",))
    split, whole = (
        NamedSharding(mesh, PartitionSpec("batch")),
        NamedSharding(mesh, PartitionSpec()),
    )
    variables = (
        model.trainable_variables,
        model.non_trainable_variables,
        optimizer.variables,
    )
    state = jax.device_put(
        [[variable.value for variable in group] for group in variables], whole
    )
    steps = examples // batch
    for epoch in range(epochs):
        order = (
            np.random.default_rng(epoch)
            .permutation(examples)[: steps * batch]
            .reshape(steps, batch)
        )
        start, total = time.perf_counter(), 0.0
        for rows in order:
            value, state = train_step(
                state, *jax.device_put((images[rows], labels[rows]), split)
            )
            total += value
        jax.block_until_ready(total)
        print(
            json.dumps(
                {"examples_per_second": steps * batch / (time.perf_counter() - start)}
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
