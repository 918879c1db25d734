"""scikit-learn's digits: 1,797 real scans of 8x8 pixels, enlarged to 28x28. Needs no network.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI
Machine Learning Repository, 1998 (CC BY 4.0); the part that scikit-learn ships as
`load_digits`, split by its `train_test_split`. `digits.npz` holds them, because
scikit-learn takes a second to import, a quarter of a short run.
"""

from pathlib import Path

import numpy as np

from pmapdp.data.dataset import DataSet, Split

FILE = Path(__file__).with_suffix(
    ".npz"
)  # {train,test}_scans [n, 8, 8] from 0 to 16, {train,test}_labels [n]; uint8
SIZE = 28


def enlarge(images: np.ndarray) -> np.ndarray:
    """Interpolate `[n, 8, 8]` grey values bilinearly to `[n, 28, 28]`, pixel centres aligned."""
    small = images.shape[1]
    centres = (np.arange(SIZE) + 0.5) * small / SIZE - 0.5
    matrix = np.stack(
        [np.interp(centres, np.arange(small), row) for row in np.eye(small)], axis=1
    )  # [28, 8]
    return matrix @ images @ matrix.T


def load() -> DataSet:
    """Read 1,437 training and 360 test images `[n, 28, 28, 1]` uint8, split with every class in proportion."""

    def part(name: str) -> Split:
        images = np.rint(
            enlarge(arrays[f"{name}_scans"].astype(float)) * (255 / 16)
        ).astype(np.uint8)
        return Split(images[..., None], arrays[f"{name}_labels"].astype(np.int32))

    with np.load(FILE) as arrays:
        return DataSet(part("train"), part("test"), tuple("0123456789"))
