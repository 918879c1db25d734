"""scikit-learn's digits: 1,797 real scans of 8x8 pixels, enlarged to 28x28. Needs no network.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
Repository, 1998 (CC BY 4.0); the part that scikit-learn ships as `load_digits`.
"""

import numpy as np

from pmapdp.data.dataset import DataSet, Split

TEST_EXAMPLES = 360
SIZE = 28


def enlarge(images: np.ndarray) -> np.ndarray:
    """Bilinear interpolation of `[n, 8, 8]` grey values to `[n, 28, 28]`, pixel centres aligned."""
    small = images.shape[1]
    centres = (np.arange(SIZE) + 0.5) * small / SIZE - 0.5
    matrix = np.stack([np.interp(centres, np.arange(small), row) for row in np.eye(small)], axis=1)  # [28, 8]
    return matrix @ images @ matrix.T


def load() -> DataSet:
    """1,437 training and 360 test images `[n, 28, 28, 1]` uint8; a fixed split with every class in proportion."""
    # scikit-learn takes about a second to import, which runs on other data need not spend.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    pixels = np.rint(enlarge(images.reshape(-1, 8, 8)) * (255 / 16)).astype(np.uint8)[..., None]
    parts = train_test_split(pixels, labels.astype(np.int32), test_size=TEST_EXAMPLES, stratify=labels, random_state=0)
    return DataSet(Split(parts[0], parts[2]), Split(parts[1], parts[3]))
