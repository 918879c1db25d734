"""Data sets, one file per source, and the order in which a run visits their examples."""

import os
from pathlib import Path
from typing import Any

from pmapdp.data import digits, imdb, mnist, reviews
from pmapdp.data.dataset import Corpus, DataSet, Split
from pmapdp.data.tfidf import Tfidf
from pmapdp.data.tokens import Tokens

CORPORA = ("imdb", "reviews")
# What turns the texts of a corpus into the inputs of a model.
TEXT_VIEWS: dict[str, Any] = {"tfidf": Tfidf, "tokens": Tokens}


def default_data_dir() -> Path:
    """`$PMAPDP_DATA`, or a cache folder in the user's home."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PMAPDP_DATA") or Path(cache) / "pmapdp" / "data")


def load(name: str, data_dir: str | None = None, view: str = "images") -> DataSet:
    """Read a data set, downloading it first where it is missing and can be had.

    Args:
        name: `digits`, `mnist`, `fashion-mnist`, `imdb` or `reviews`.
        data_dir: folder of downloaded data sets; default: `default_data_dir()`.
        view: what the model takes: `images`, or of texts `tfidf` or `tokens`.

    Raises:
        UserError: the files are missing and cannot be had, or are damaged.
    """
    if name in CORPORA:
        return load_with_view(name, data_dir, view)[0]
    if name == "digits":
        return digits.load()
    return mnist.load(name, Path(data_dir) if data_dir else default_data_dir())


def load_corpus(name: str, data_dir: str | None = None) -> Corpus:
    """The texts of `imdb` or `reviews`; arguments and errors as of `load`."""
    return reviews.load() if name == "reviews" else imdb.load(Path(data_dir) if data_dir else default_data_dir())


def load_with_view(name: str, data_dir: str | None, view: str) -> tuple[DataSet, Any]:
    """A corpus through a view fitted to its training texts, and that view; arguments and errors as of `load`."""
    train, test = load_corpus(name, data_dir)
    text_view, inputs = TEXT_VIEWS[view].fit(train.texts)
    return DataSet(Split(inputs, train.labels), Split(text_view(test.texts), test.labels)), text_view
