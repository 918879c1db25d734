"""The built-in data set.

Sizes, the fixed split, and the enlargement against a hand computation.
"""

import hashlib

import numpy as np
import pytest

from pmapdp.data.digits import FILE, enlarge
from pmapdp.registry import load_data

SHA256 = {
    "train": (1437, "c24abaa7d545b68c114035fb95db202b474672032a6759cddb88a02dfdf0446d"),
    "test": (360, "694fef7a1fc0c828fd54448dffe73c8eddbafc3830703360ec926125db16d990"),
}


@pytest.mark.slow
def test_the_file_holds_what_scikit_learn_gives():
    """It was made from their digits, by their split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    theirs = load_digits()
    wanted = train_test_split(
        theirs.data,
        theirs.target,
        test_size=360,
        stratify=theirs.target,
        random_state=0,
    )
    with np.load(FILE) as arrays:
        for name, values in zip(
            ("train_scans", "test_scans", "train_labels", "test_labels"),
            wanted,
            strict=True,
        ):
            assert arrays[name].dtype == np.uint8
            np.testing.assert_array_equal(arrays[name].reshape(values.shape), values)


def test_the_split_never_changes():
    """Figures of different versions of this project can be compared only as long as
    these hashes stand.
    """
    for name, split in load_data("digits").parts.items():
        examples, wanted = SHA256[name]
        assert (split.inputs.shape, split.inputs.dtype) == (
            (examples, 28, 28, 1),
            np.uint8,
        )
        assert (split.labels.shape, split.labels.dtype) == ((examples,), np.int32)
        content = split.inputs.tobytes() + split.labels.astype("<i4").tobytes()
        assert hashlib.sha256(content).hexdigest() == wanted


def test_enlarge_by_hand():
    """One bright row: pixel centres of the enlarged rows lie at (i + 1/2) * 2/7 - 1/2
    of the small ones.
    """
    image = np.zeros((1, 8, 8))
    image[0, 1] = 14
    column = enlarge(image)[0, :, 0]
    # Centres -5/14 and -1/14: the edge is repeated.
    np.testing.assert_allclose(column[:2], 0, atol=1e-12)
    # 3/14, 7/14, 11/14, 15/14, ...
    np.testing.assert_allclose(column[2:9], [3, 7, 11, 13, 9, 5, 1], atol=1e-12)
    np.testing.assert_allclose(column[9:], 0, atol=1e-12)
