"""IMDB's film reviews, from the folder `aclImdb` or straight from an archive of it, which is never unpacked to disk.

Source: Maas, Daly, Pham, Huang, Ng and Potts, "Learning word vectors for sentiment analysis", ACL-HLT 2011.
The file of a review is `aclImdb/train/neg/ID_STARS.txt`, with `test` and `pos` likewise; all others are passed over.
"""

import gzip
import re
import struct
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pmapdp.data.dataset import DataSet, Texts
from pmapdp.errors import UserError

FOLDER, ARCHIVES = "aclImdb", ("aclImdb.tar.gz", "aclImdb_v1.tar.gz")
MEMBER = re.compile(r"(?:\./)?aclImdb/(train|test)/(neg|pos)/([0-9]{1,9})_[0-9]{1,2}\.txt", re.ASCII)
CLASSES = {"neg": 0, "pos": 1}
SENTIMENTS = ("negative", "positive")
REVIEWS_PER_CLASS = 12_500
# The longest review has 14 kB, and the whole of the original archive about 0.4 GB.
LARGEST_REVIEW, LARGEST_ARCHIVE = 1 << 20, 1 << 30
# What tarfile and gzip raise on damaged bytes, depending on where they lie.
DAMAGE = (tarfile.TarError, OSError, EOFError, zlib.error, struct.error, ValueError, OverflowError, RecursionError)

Key = tuple[str, int, int]  # part, class, number of the review


def load(data_dir: Path, *, reviews_per_class: int = REVIEWS_PER_CLASS) -> DataSet:
    """25,000 reviews to train and 25,000 to test; in both first the negative ones, each class by rising number.

    Args:
        data_dir: holds the folder `aclImdb`, or an archive of it: `aclImdb.tar.gz` or `aclImdb_v1.tar.gz`.
        reviews_per_class: how many must be there in each of the four folders.

    Raises:
        UserError: there is neither, or what is there is damaged or incomplete.
    """
    sources = [path for name in (FOLDER, *ARCHIVES) if (path := data_dir / name).exists()]
    if not sources:
        raise UserError(
            f"--dataset imdb is in {data_dir} neither as the folder {FOLDER} nor as {ARCHIVES[1]}: put that file there "
            "(from ai.stanford.edu/~amaas/data/sentiment), name another --data-dir, or use --dataset reviews"
        )
    source = sources[0]
    found: dict[Key, str] = {}
    try:
        for key, content in read_folder(source) if source.is_dir() else read_archive(source):
            if key in found:
                raise ValueError(f"two reviews have the number {key[2]}")
            found[key] = content.decode()
    except DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{source} cannot be read ({reason}): get {ARCHIVES[1]} again, name another --data-dir, or use "
            "--dataset reviews"
        ) from None
    for part in ("train", "test"):
        for name, number in CLASSES.items():
            reviews = sum(key[:2] == (part, number) for key in found)
            if reviews != reviews_per_class:
                raise UserError(
                    f"{source} has {reviews:,} reviews in {part}/{name} where {reviews_per_class:,} belong: get "
                    f"{ARCHIVES[1]} again, name another --data-dir, or use --dataset reviews"
                )
    return DataSet(part_of(found, "train"), part_of(found, "test"), SENTIMENTS)


def part_of(found: dict[Key, str], part: str) -> Texts:
    """The reviews of `train` or `test` in their order."""
    keys = sorted(key for key in found if key[0] == part)
    return Texts([found[key] for key in keys], np.array([label for _, label, _ in keys], np.int32))


def key_of(name: str) -> Key | None:
    """What the name of a file says about the review in it; None for the name of anything else."""
    match = MEMBER.fullmatch(name)
    return (match[1], CLASSES[match[2]], int(match[3])) if match else None


def read_folder(folder: Path) -> Iterator[tuple[Key, bytes]]:
    """The reviews in the unpacked tree."""
    for part in ("train", "test"):
        for name in CLASSES:
            for path in (folder / part / name).iterdir():
                if key := key_of(f"{FOLDER}/{part}/{name}/{path.name}"):
                    with open(path, "rb") as file:
                        content = file.read(LARGEST_REVIEW + 1)
                    check_size(path.name, len(content))
                    yield key, content


def read_archive(path: Path) -> Iterator[tuple[Key, bytes]]:
    """The reviews in a .tar.gz. Only plain files with the name of a review are read, and no link is followed."""
    with gzip.open(path) as unpacked:
        bounded: Any = Bounded(unpacked)
        with tarfile.open(fileobj=bounded, mode="r:") as archive:
            for member in archive:
                key = key_of(member.name)
                if key and member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
                    check_size(member.name, member.size)
                    file = archive.extractfile(member)
                    assert file is not None  # only links and folders have none
                    yield key, file.read()
        while bounded.read(LARGEST_REVIEW):  # to the end of the file, where gzip has its checksum
            bounded.seek(bounded.tell())


def check_size(name: str, size: int) -> None:
    """Refuse a review that is longer than any real one."""
    if size > LARGEST_REVIEW:
        raise ValueError(f"{name} is longer than {LARGEST_REVIEW:,} bytes")


class Bounded:
    """A file that a few packed bytes cannot blow up: neither one read nor the whole goes beyond a limit.

    tarfile reads the extended headers of a member at once, however long they say to be.
    """

    def __init__(self, file: gzip.GzipFile):
        self.file = file

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end."""
        if size > LARGEST_REVIEW:
            raise ValueError(f"a part of it is longer than {LARGEST_REVIEW:,} bytes")
        return self.file.read(size)

    def seek(self, position: int) -> int:
        """Go to a position, counted from the start."""
        if position > LARGEST_ARCHIVE:
            raise ValueError(f"unpacked it is longer than {LARGEST_ARCHIVE:,} bytes")
        return self.file.seek(position)

    def tell(self) -> int:
        """The position, counted from the start."""
        return self.file.tell()
