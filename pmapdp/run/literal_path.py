"""Folders of checkpoints whose names are taken literally."""

import glob
from collections.abc import Iterator

from etils.epath.gpath import PosixGPath


class LiteralPath(PosixGPath):  # type: ignore[misc] # etils has no types
    """A local folder for Orbax.

    The path of etils reads the folder's own name as a part of the pattern when Orbax lists files in it: `run[1]` then
    holds none, and no checkpoint is complete. And it takes a local `/gs/run` for an address of Google's cloud.
    """

    _uri_scheme = None

    def glob(self, pattern: str) -> Iterator["LiteralPath"]:
        """The paths in this folder that match the pattern."""
        for name in glob.glob(pattern, root_dir=self):
            yield self / name
