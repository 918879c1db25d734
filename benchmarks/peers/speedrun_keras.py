"""The recipe `speedrun` in Keras 3 with `fit`: the same network, order of the examples and schedule.

    KERAS_BACKEND=jax python speedrun_keras.py DATA.npz SETTINGS          # or tensorflow

SETTINGS are those of the recipe, as JSON. Prints one line of JSON: the seconds of training, without the first update,
and the test accuracy.
"""

import json
import os
import sys
import time

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import numpy as np
from keras import layers


class Examples(keras.utils.PyDataset):
    """The batches of all epochs, one after the other; each image moved by up to `pixels` in each direction."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, settings: dict):
        super().__init__()
        n, self.B, self.pixels = len(images), settings["global_batch_size"], settings["pixels"]
        generators = [np.random.default_rng([settings["seed"], epoch]) for epoch in range(settings["epochs"])]
        self.batches = [
            order[start : start + self.B]
            for order in (generator.permutation(n) for generator in generators)
            for start in range(0, n, self.B)
        ]
        edges = ((0, 0), (self.pixels, self.pixels), (self.pixels, self.pixels), (0, 0))
        self.windows = np.lib.stride_tricks.sliding_window_view(np.pad(images, edges), (28, 28), (1, 2))
        self.labels, self.random = np.eye(10, dtype=np.float32)[labels], np.random.default_rng(settings["seed"])

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int):
        rows = self.batches[number]
        i, j = self.random.integers(0, 2 * self.pixels + 1, (2, len(rows)))
        return self.windows[rows, i, j].transpose(0, 2, 3, 1), self.labels[rows]


class Clock(keras.callbacks.Callback):
    """Starts after the first update, which compiles."""

    def on_train_batch_end(self, batch, logs=None):
        """An update was made."""
        self.start = time.perf_counter() if batch == 0 else self.start


def main() -> None:
    """The command."""
    settings = json.loads(sys.argv[2])
    keras.utils.set_random_seed(settings["seed"])
    with np.load(sys.argv[1]) as data:
        examples = Examples(data["train_inputs"], data["train_labels"], settings)
        test = data["test_inputs"], data["test_labels"]
    first, second, hidden = settings["widths"]
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Rescaling(1 / 255),
            *(layers.Conv2D(first, 5, activation="relu"), layers.MaxPooling2D()),
            *(layers.Conv2D(second, 3, activation="relu"), layers.MaxPooling2D()),
            *(layers.Flatten(), layers.Dense(hidden, activation="relu"), layers.Dense(10)),
        ]
    )
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0 if settings["warmup_steps"] else settings["learning_rate"],
        len(examples) - settings["warmup_steps"],
        warmup_target=settings["learning_rate"] if settings["warmup_steps"] else None,
        warmup_steps=settings["warmup_steps"],
    )
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=settings["label_smoothing"])
    model.compile(optimizer=keras.optimizers.Adam(schedule, *settings["betas"], epsilon=1e-8), loss=loss)
    clock = Clock()
    model.fit(examples, shuffle=False, verbose=0, callbacks=[clock])
    seconds = time.perf_counter() - clock.start
    right = (model.predict(test[0], batch_size=1000, verbose=0).argmax(1) == test[1]).mean()
    print(json.dumps({"train_seconds": seconds, "test_accuracy": float(right)}))


if __name__ == "__main__":
    main()
