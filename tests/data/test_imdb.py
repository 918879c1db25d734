"""Reading IMDB's reviews from hostile and damaged archives.

`test_real_data.py` reads the real one.
"""

import io
import os
import tarfile

import numpy as np
import pytest

from pmapdp.data import imdb
from pmapdp.errors import UserError

# Three reviews in each of the four folders, in no order; numbers sort as numbers.
REVIEWS = {
    f"aclImdb/{part}/{name}/{number}_{stars}.txt": (
        f"{part} {name} {number} caf\u00e9<br />\u2026"
    )
    for part in ("test", "train")
    for name, stars in (("pos", 10), ("neg", 1))
    for number in (10, 2, 0)
}


def member(name, content=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def archive(*extra) -> bytes:
    """A .tar.gz of the reviews, with `extra` members before them."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for info, content in (
            *extra,
            *(member(name, text.encode()) for name, text in REVIEWS.items()),
        ):
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def read(folder, content: bytes):
    (folder / "aclImdb.tar.gz").write_bytes(content)
    return imdb.load(folder, reviews_per_class=3)


def refusal(folder, content: bytes) -> str:
    """The sentence with which an archive is refused; nothing may have been written."""
    with pytest.raises(UserError) as error:
        read(folder, content)
    assert os.listdir(folder) == ["aclImdb.tar.gz"]
    text = str(error.value)
    assert text.startswith(f"{folder / 'aclImdb.tar.gz'} ")
    assert 'dataset="reviews"' in text
    assert "\n" not in text
    return text


def test_order_of_the_examples(tmp_path):
    """Negative reviews first, each class by rising number, whatever the order in the
    archive.
    """
    corpus = read(tmp_path, archive())
    for part, texts in zip(("train", "test"), corpus.parts.values(), strict=True):
        names = [" ".join(text.split()[:3]) for text in texts.texts]
        negative = [f"{part} neg {number}" for number in (0, 2, 10)]
        positive = [f"{part} pos {number}" for number in (0, 2, 10)]
        assert names == negative + positive
        assert texts.labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert texts.labels.dtype == np.int32
        assert texts.texts[0].endswith("caf\u00e9<br />\u2026")


@pytest.mark.parametrize(
    "extra",
    [
        member("../aclImdb/train/neg/5_1.txt", b"outside"),
        member("aclImdb/train/unsup/5_0.txt", b"without a label"),
        member("aclImdb/train/neg/5_1.txt\n", b"a line break"),
        member(
            "aclImdb/train/neg/5_1.txt", type=tarfile.SYMTYPE, linkname="/etc/hostname"
        ),
        member("aclImdb/train/neg/5_1.txt", type=tarfile.FIFOTYPE),
        member("aclImdb/README", b"x" * (2 << 20)),
        member("aclImdb/train/neg/5_1.txt", b"a" * ((1 << 20) + 1)),
    ],
    ids=lambda extra: f"{extra[0].name!r}, type {extra[0].type.decode()}",
)
def test_what_is_no_plain_file_of_a_review_is_passed_over(tmp_path, extra):
    corpus = read(tmp_path, archive(extra))
    assert [len(part.texts) for part in corpus.parts.values()] == [6, 6]
    assert os.listdir(tmp_path) == ["aclImdb.tar.gz"]


def test_damaged_archives(tmp_path):
    """Cut anywhere, or with any bit altered.

    gzip's checksum at the end finds what the format lets pass.
    """
    whole = archive()
    for length in [*range(0, len(whole), 80), len(whole) - 9, len(whole) - 1]:
        refusal(tmp_path, whole[:length])
    for position in range(20, len(whole), 13):
        altered = bytearray(whole)
        altered[position] ^= 1 << position % 8
        assert "cannot be read (" in refusal(tmp_path, bytes(altered))


def test_other_mistakes(tmp_path):
    assert "codec can't decode" in refusal(
        tmp_path, archive(member("aclImdb/train/neg/5_1.txt", b"\xff\xfe"))
    )
    more = archive(member("aclImdb/train/neg/5_1.txt", b"one more"))
    assert (
        "has 4 reviews in train/neg and 3 in train/pos, where 3 belong in each"
        in refusal(tmp_path, more)
    )
    assert "Not a gzipped file" in refusal(tmp_path, b"hello")
