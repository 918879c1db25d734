"""scikit-learn's digits: 1,797 real scans of 8x8 pixels, enlarged to 28x28.

The data set needs no network. Source: E. Alpaydin and C. Kaynak, "Optical Recognition
of Handwritten Digits", UCI Machine Learning Repository, 1998 (CC BY 4.0); the part that
scikit-learn ships as `load_digits`, split by its `train_test_split`. `digits.npz` holds
them, because scikit-learn takes a second to import, a quarter of a short run.
"""

from pathlib import Path

import numpy as np

from pmapdp.data.dataset import DataSet, Split

# {train,test}_scans [n, 8, 8] from 0 to 16, {train,test}_labels [n], all uint8.
FILE = Path(__file__).with_suffix(".npz")
SIZE = 28


def enlarge(images: np.ndarray) -> np.ndarray:
    """Interpolate `[n, 8, 8]` grey values bilinearly to `[n, 28, 28]`.

    The centres of the pixels are aligned.
    """
    small = images.shape[1]
    centres = (np.arange(SIZE) + 0.5) * small / SIZE - 0.5
    columns = [np.interp(centres, np.arange(small), row) for row in np.eye(small)]
    matrix = np.stack(columns, axis=1)  # [28, 8]
    # From the left it makes 28 rows of 8, from the right 28 columns.
    return matrix @ images @ matrix.T


def load() -> DataSet:
    """Read 1,437 training and 360 test images `[n, 28, 28, 1]` uint8.

    Every class has the same share of both.
    """
    with np.load(FILE) as arrays:
        train = make_split(arrays["train_scans"], arrays["train_labels"])
        test = make_split(arrays["test_scans"], arrays["test_labels"])
    return DataSet(train, test, classes=tuple("0123456789"))


def make_split(scans: np.ndarray, labels: np.ndarray) -> Split:
    """Make a split of scans `[n, 8, 8]`, from 0 to 16, and labels `[n]`."""
    grey = enlarge(scans.astype(float)) * (255 / 16)
    images = np.rint(grey).astype(np.uint8)
    return Split(images[..., None], labels.astype(np.int32))
