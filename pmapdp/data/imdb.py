"""IMDB's film reviews, read from their archive without unpacking it to disk.

Source: Maas, Daly, Pham, Huang, Ng and Potts, "Learning word vectors for sentiment
analysis", ACL-HLT 2011. A review is in `aclImdb/train/neg/ID_STARS.txt`, and likewise
in `test` and `pos`. All other files are passed over.
"""

import gzip
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from pmapdp.data.dataset import DataSet, Texts
from pmapdp.errors import UserError
from pmapdp.files import open_file

# The archive as it is published, or packed again.
ARCHIVES = ("aclImdb_v1.tar.gz", "aclImdb.tar.gz")
REVIEW = re.compile(
    r"(?:\./)?aclImdb/(train|test)/(neg|pos)/([0-9]{1,9})_[0-9]{1,2}\.txt", re.ASCII
)
SENTIMENTS = ("negative", "positive")
LARGEST_REVIEW = 2**20  # bytes; the longest has 14 kB
ADVICE = (
    f"get {ARCHIVES[0]} from ai.stanford.edu/~amaas/data/sentiment, name another "
    "--data-dir, or use --dataset reviews"
)


def load(data_dir: Path, *, reviews_per_class: int = 12_500) -> DataSet:
    """Read 25,000 reviews to train and 25,000 to test.

    The negative ones come first, and each class is in the order of its numbers.
    """
    paths = [data_dir / name for name in ARCHIVES]
    present = [path for path in paths if os.path.exists(path)]
    if not present:
        raise UserError(f"--dataset imdb is not in {data_dir}: {ADVICE}")
    path = present[0]
    reviews = read_archive(path)
    parts = {}
    for part in ("train", "test"):
        # An archive that was packed again may have another order of files.
        keys = sorted(key for key in reviews if key[0] == part)
        labels = np.array([folder == "pos" for _, folder, _ in keys], np.int32)
        negative, positive = np.bincount(labels, minlength=2)
        if negative != reviews_per_class or positive != reviews_per_class:
            raise UserError(
                f"{path} has {negative:,} reviews in {part}/neg and {positive:,} in "
                f"{part}/pos, where {reviews_per_class:,} belong in each: {ADVICE}"
            )
        parts[part] = Texts([reviews[key] for key in keys], labels)
    return DataSet(parts["train"], parts["test"], classes=SENTIMENTS)


def read_archive(path: Path) -> dict[tuple[str, str, int], str]:
    """Return the reviews in a .tar.gz by part, folder of the class, and number.

    Only plain files with a review's name are read, and no link is followed.
    """
    reviews = {}
    with (
        open_file(path, advice=ADVICE) as file,
        gzip.open(file) as unpacked,
        tarfile.open(fileobj=unpacked, mode="r:") as archive,
    ):
        for member in archive:
            match = REVIEW.fullmatch(member.name)
            if match and member.isreg() and member.size <= LARGEST_REVIEW:
                review: Any = archive.extractfile(member)
                reviews[match[1], match[2], int(match[3])] = review.read().decode()
        # gzip has its checksum at the end of the file.
        while unpacked.read(2**20):
            pass
    return reviews
