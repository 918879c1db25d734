"""Measure the memory that a large file takes: `python -m benchmarks.memory`.

Each type gets a sparse file of the same size, which is opened by `np.load` with
`mmap_mode="r"`, and a process of its own. The peak is of the resident memory, with the
pages of the file that were read (Linux).
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

GIGABYTES = 10
EXAMPLE = (256, 256, 3)
TYPES = ("uint8", "float32", "float64", "int64")
PROGRAM = """
import sys
import numpy as np
from flax import nnx
from pmapdp.config import Config
from pmapdp.data.dataset import DataSet, Split
from pmapdp.train import train

class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.logits = nnx.Linear(256 * 256 * 3, 2, rngs=rngs)

    def __call__(self, images):
        return self.logits(images.reshape(len(images), -1))

images = np.load(sys.argv[1], mmap_mode="r")
labels = np.arange(len(images)) % 2
data = DataSet(Split(images, labels), Split(images[:40], labels[:40]))
config = Config(
    strategy="jit", steps=3, global_batch_size=8, optimizer="sgd", progress=False
)
train(config, model=Net, data=data)
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print("peak", int(line.split()[1]) // 1024)
"""


def measure_peak(dtype: str, folder: Path) -> int:
    """Return the peak memory of three updates, in MiB."""
    file = folder / f"{dtype}.npy"
    count = int(GIGABYTES * 1e9) // (np.dtype(dtype).itemsize * int(np.prod(EXAMPLE)))
    np.lib.format.open_memmap(file, "w+", dtype, (count, *EXAMPLE))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, file],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.rpartition("peak ")[2])


def main() -> None:
    """Print a line for each type."""
    with tempfile.TemporaryDirectory() as folder:
        for dtype in TYPES:
            peak = measure_peak(dtype, Path(folder))
            print(f"{GIGABYTES} GB of {dtype}: {peak:,} MiB", flush=True)


if __name__ == "__main__":
    main()
