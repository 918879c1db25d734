"""Images from folders, with a ResNet of Flax's own layers and augmentation: `python examples/images_in_folders.py jit`.

It writes scikit-learn's digits as PNG files and reads them as anybody's photos, decoded
by threads while the devices compute. More than 97 % of the test images are classified
right after 3 epochs, on any strategy.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from PIL import Image

from pmapdp.config import Config
from pmapdp.custom.images import ImageFolder
from pmapdp.data.dataset import DataSet
from pmapdp.registry import load_data
from pmapdp.train import train


class Block(nnx.Module):
    def __init__(self, inputs, outputs, stride, *, rngs):
        self.conv1 = nnx.Conv(
            inputs, outputs, (3, 3), strides=stride, use_bias=False, rngs=rngs
        )
        self.conv2 = nnx.Conv(outputs, outputs, (3, 3), use_bias=False, rngs=rngs)
        self.norm1, self.norm2 = (
            nnx.BatchNorm(outputs, momentum=0.9, rngs=rngs) for _ in range(2)
        )
        self.shortcut = nnx.Conv(
            inputs, outputs, (1, 1), strides=stride, use_bias=False, rngs=rngs
        )

    def __call__(self, x):
        return nnx.relu(
            self.norm2(self.conv2(nnx.relu(self.norm1(self.conv1(x)))))
            + self.shortcut(x)
        )


class ResNet(nnx.Module):
    def __init__(self, *, rngs):
        self.blocks = nnx.List(
            [
                Block(3, 16, 1, rngs=rngs),
                Block(16, 32, 2, rngs=rngs),
                Block(32, 64, 2, rngs=rngs),
            ]
        )
        self.logits = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images):
        images = images / 255
        for block in self.blocks:
            images = block(images)
        return self.logits(images.mean((1, 2)))


def shift(image, key):  # up to two pixels to any side
    padded = jnp.pad(image, ((2, 2), (2, 2), (0, 0)))
    return jax.lax.dynamic_slice(
        padded, (*jax.random.randint(key, (2,), 0, 5), 0), image.shape
    )


def main(folder=Path("digits_as_png"), strategy="pmap", **settings):
    for part, digits in load_data("digits").parts.items():
        for number, (image, label) in enumerate(
            zip(digits.inputs, digits.labels, strict=True)
        ):
            (folder / part / str(label)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[..., 0]).save(
                folder / part / str(label) / f"{number}.png"
            )
    data = DataSet(
        *(ImageFolder(folder / part, size=(16, 16)) for part in ("train", "test")),
        augment=shift,
    )
    return train(
        Config(strategy=strategy, epochs=3, **settings), model=ResNet, data=data
    )


if __name__ == "__main__":
    main(strategy=sys.argv[1] if sys.argv[1:] else "pmap")
