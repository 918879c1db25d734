"""Data that are larger than the memory stay in their file."""

import numpy as np
import pytest
from launch import python

PROGRAM = """
import sys
import numpy as np
from flax import nnx
from pmapdp.config import Config
from pmapdp.data.dataset import DataSet, Split
from pmapdp.train import train

class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(3, 10, rngs=rngs)

    def __call__(self, images):
        return self.out(images.mean((1, 2)) / 255)

images = np.load(sys.argv[1], mmap_mode="r")
labels = np.arange(len(images)) % 10
data = DataSet(Split(images, labels), Split(images[:100], labels[:100]))
config = Config(strategy="jit", devices=2, steps=5, workdir=sys.argv[2], progress=False)
assert int(train(config, model=Net, data=data).state.step) == 5
# Of this program alone: getrusage would begin with what the process that started it has taken.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("peak of", peak // 1024, "MiB")
"""


@pytest.mark.slow
def test_a_hundred_gigabytes_train_within_one(tmp_path):
    """Five updates from a sparse file, in a workdir, for which the content of the data is sampled. The peak of the
    resident memory has the pages of the file in it."""
    file, shape = tmp_path / "images.npy", (510_000, 256, 256, 3)
    np.lib.format.open_memmap(file, "w+", np.uint8, shape)
    assert file.stat().st_size > 100e9
    done = python("-c", PROGRAM, file, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "510,000 to train, 100 to test, content" in done.stdout
    assert "from one in" in done.stdout
    assert int(done.stdout.split("peak of ")[1].split()[0]) < 1024
