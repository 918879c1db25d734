"""TensorFlow's MirroredStrategy with Keras' fit on the CNN of its tutorial.

    python mirrored_strategy.py DATA.npz DEVICES PER_DEVICE_BATCH EXAMPLES EPOCHS

Prints one line of JSON an epoch: {"examples_per_second": ...}. The devices are logical
CPU devices.
"""

import json
import os
import sys
import time

os.environ.update(
    TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow", CUDA_VISIBLE_DEVICES="-1"
)

import numpy as np
import tensorflow as tf


def main() -> None:
    """Run the command."""
    devices, per_device, examples, epochs = map(int, sys.argv[2:])
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * devices
    )
    with np.load(sys.argv[1]) as data:
        images, labels = (
            data["images"][:examples].astype(np.float32) / 255,
            data["labels"][:examples],
        )
    batch = devices * per_device
    batches = (
        tf.data.Dataset.from_tensor_slices((images, labels)).cache().shuffle(10_000)
    )
    batches = batches.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{device}" for device in range(devices)]
    )
    with strategy.scope():
        layers = tf.keras.layers
        convolution = [
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
        ]
        model = tf.keras.Sequential(
            [*convolution, layers.Dense(64, activation="relu"), layers.Dense(10)]
        )
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(
            optimizer=tf.keras.optimizers.Adam(), loss=loss, metrics=["accuracy"]
        )
    for _ in range(epochs):
        start = time.perf_counter()
        model.fit(batches, verbose=0)
        speed = examples // batch * batch / (time.perf_counter() - start)
        print(json.dumps({"examples_per_second": speed}), flush=True)


if __name__ == "__main__":
    main()
