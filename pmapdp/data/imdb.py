"""IMDB's film reviews, read straight from their archive, which is never unpacked to disk.

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

ARCHIVES = (
    "aclImdb_v1.tar.gz",
    "aclImdb.tar.gz",
)  # as it is published, or packed again
REVIEW = re.compile(
    r"(?:\./)?aclImdb/(train|test)/(neg|pos)/([0-9]{1,9})_[0-9]{1,2}\.txt", re.ASCII
)
SENTIMENTS = ("negative", "positive")
LARGEST_REVIEW = 2**20  # bytes; the longest has 14 kB
ADVICE = f"get {ARCHIVES[0]} from ai.stanford.edu/~amaas/data/sentiment, name another --data-dir, or use --dataset reviews"


def load(data_dir: Path, *, reviews_per_class: int = 12_500) -> DataSet:
    """Read 25,000 reviews to train and 25,000 to test: first the negative ones, each class by rising number."""
    path = next(
        (path for name in ARCHIVES if os.path.exists(path := data_dir / name)), None
    )
    if path is None:
        raise UserError(f"--dataset imdb is not in {data_dir}: {ADVICE}")
    reviews, parts = read_archive(path), dict[str, Texts]()
    for part in ("train", "test"):
        keys = sorted(key for key in reviews if key[0] == part)
        labels = np.array([name == "pos" for _, name, _ in keys], np.int32)
        counts = np.bincount(labels, minlength=2).tolist()
        if counts != [reviews_per_class] * 2:
            raise UserError(
                f"{path} has {counts[0]:,} reviews in {part}/neg and {counts[1]:,} in {part}/pos, where "
                f"{reviews_per_class:,} belong in each: {ADVICE}"
            )
        parts[part] = Texts([reviews[key] for key in keys], labels)
    return DataSet(parts["train"], parts["test"], classes=SENTIMENTS)


def read_archive(path: Path) -> dict[tuple[str, str, int], str]:
    """Read the reviews in a .tar.gz. Only plain files with a review's name are read, and no link is followed."""
    reviews: dict[
        tuple[str, str, int], str
    ] = {}  # by part, folder of the class, and number
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
        while unpacked.read(
            2**20
        ):  # to the end of the file, where gzip has its checksum
            pass
    return reviews
