"""Images from folders, with a ResNet of Flax's own layers and augmentation.

    $ python examples/images_in_folders.py
    ...
    epoch 3/3  train loss 0.6779 accuracy 0.9687  test loss 0.2283 accuracy 0.9750
    test accuracy: best 0.9750 (epoch 3), last 0.9750

It first writes scikit-learn's digits as PNG files. Then it reads them as it would read
your photos: threads decode them while the devices compute. The test accuracy is above
0.97 with any strategy. Takes half a minute on two cores.
"""

import functools
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
        conv = functools.partial(nnx.Conv, use_bias=False, rngs=rngs)
        norm = functools.partial(nnx.BatchNorm, momentum=0.9, rngs=rngs)
        self.conv1 = conv(inputs, outputs, (3, 3), strides=stride)
        self.norm1 = norm(outputs)
        self.conv2 = conv(outputs, outputs, (3, 3))
        self.norm2 = norm(outputs)
        self.shortcut = conv(inputs, outputs, (1, 1), strides=stride)

    def __call__(self, x):
        hidden = nnx.relu(self.norm1(self.conv1(x)))
        return nnx.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))


class ResNet(nnx.Module):
    def __init__(self, *, rngs):
        first = Block(3, 16, 1, rngs=rngs)
        second = Block(16, 32, 2, rngs=rngs)
        third = Block(32, 64, 2, rngs=rngs)
        self.blocks = nnx.List([first, second, third])
        self.logits = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images):
        images = images / 255
        for block in self.blocks:
            images = block(images)
        return self.logits(images.mean((1, 2)))


def shift(image, key):  # up to two pixels to any side
    padded = jnp.pad(image, ((2, 2), (2, 2), (0, 0)))
    row, column = jax.random.randint(key, (2,), 0, 5)
    return jax.lax.dynamic_slice(padded, (row, column, 0), image.shape)


def main(folder=Path("digits_as_png"), strategy="jit", **settings):
    for part, digits in load_data("digits").parts.items():
        for number, image in enumerate(digits.inputs):
            of_class = folder / part / str(digits.labels[number])
            of_class.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[..., 0]).save(of_class / f"{number}.png")
    train_images = ImageFolder(folder / "train", size=(16, 16))
    test_images = ImageFolder(folder / "test", size=(16, 16))
    data = DataSet(train_images, test_images, augment=shift)
    config = Config(strategy=strategy, epochs=3, **settings)
    return train(config, model=ResNet, data=data)


if __name__ == "__main__":
    main(strategy=sys.argv[1] if sys.argv[1:] else "jit")
