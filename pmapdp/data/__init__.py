"""Data sets, one file per source, and the order in which a run visits their examples."""

import os
from pathlib import Path

from pmapdp.data import digits, mnist
from pmapdp.data.dataset import DataSet


def default_data_dir() -> Path:
    """`$PMAPDP_DATA`, or a cache folder in the user's home."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PMAPDP_DATA") or Path(cache) / "pmapdp" / "data")


def load(name: str, data_dir: str | None = None) -> DataSet:
    """Read a data set, downloading it first where it is missing.

    Args:
        name: `digits`, `mnist` or `fashion-mnist`.
        data_dir: folder of downloaded data sets; default: `default_data_dir()`.

    Raises:
        UserError: the files are missing and cannot be had, or are damaged.
    """
    if name == "digits":
        return digits.load()
    return mnist.load(name, Path(data_dir) if data_dir else default_data_dir())
