"""What reading images costs: `python -m benchmarks.images [--images 20000] [--devices 1]`.

Small JPEG files, 64 x 64 pixels, are written once, in folders of ten classes. Three speeds are measured one after the
other, in images a second: decoding alone, as the trainer reads; training alone, from the same images in memory; and
training from the files. The last should be at least 0.8 of the slower of the first two. Each is the second epoch. Where
the devices are the same cores that decode, no program can do better than 1 / (1/decoding + 1/training), which is shown.
"""

import contextlib
import io
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from flax import nnx
from PIL import Image

from benchmarks import at_least_one, make_parser
from pmapdp import cli
from pmapdp.config import Config
from pmapdp.custom.data import make_data_set
from pmapdp.custom.images import ImageFolder
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import DataSet, Split
from pmapdp.train import train

SIZE, CLASSES, BATCH = 64, 10, 64


class Net(nnx.Module):
    """Three convolutions, 10 million products an image."""

    def __init__(self, *, rngs: nnx.Rngs):
        channels = ((3, 32), (32, 64), (64, 128))
        self.convolutions = nnx.List([nnx.Conv(a, b, (3, 3), strides=2, rngs=rngs) for a, b in channels])
        self.logits = nnx.Linear(128, CLASSES, rngs=rngs)

    def __call__(self, images):
        """`[b, H, W, 3]` to logits `[b, C]`."""
        x = images / 255
        for convolution in self.convolutions:
            x = nnx.relu(convolution(x))
        return self.logits(x.mean((1, 2)))


def write_images(folder: Path, number: int) -> None:
    """So many JPEG files, with content of low and high frequencies, as photos have."""
    random = np.random.default_rng(0)
    for index in range(number):
        coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).resize((SIZE, SIZE))
        image = np.asarray(coarse) // 2 + random.integers(0, 64, (SIZE, SIZE, 3), np.uint8)
        path = folder / str(index % CLASSES) / f"{index}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image.astype(np.uint8)).save(path, quality=90)


def decoding(folder: Path) -> float:
    """Images a second that the trainer's reader gives, where nobody computes."""
    batches = Batches(make_data_set(DataSet(ImageFolder(folder))).train, BATCH, shuffle_seed=0)
    for epoch in range(2):
        start = time.perf_counter()
        number = sum(int((batch.weights > 0).sum()) for batch in batches.epoch(epoch))
    return number / (time.perf_counter() - start)


def training(data: DataSet, devices: int) -> float:
    """Images a second of the second epoch."""
    config = Config(strategy="jit", devices=devices, epochs=2, global_batch_size=BATCH, progress=False)
    with contextlib.redirect_stdout(io.StringIO()):
        return train(config, model=Net, data=data).epochs[-1]["examples_per_second"]


def main(arguments: list[str]) -> None:
    """The command."""
    parser = make_parser(__doc__, "images", "--images 2000")
    parser.add_argument("--images", type=at_least_one, default=20_000)
    parser.add_argument("--devices", type=at_least_one, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder, options.images)
        images, labels = zip(*ImageFolder(folder), strict=True)
        speeds = {
            "decoding": decoding(folder),
            "training": training(DataSet(Split(np.stack(images), np.array(labels))), options.devices),
            "both": training(DataSet(ImageFolder(folder)), options.devices),
        }
    for what, speed in speeds.items():
        print(f"{what:<9} {speed:8,.0f} images/s")
    both, slower = speeds["both"], min(speeds["decoding"], speeds["training"])
    best = 1 / (1 / speeds["decoding"] + 1 / speeds["training"])
    print(f"both is {both / slower:.2f} of the slower; where the same cores do both, {best / slower:.2f} at best")


if __name__ == "__main__":
    sys.exit(cli.run(main))
