"""Where a command may write: not onto what it reads, a file of a run, or a file of another kind.

A command calls `check_outputs` once, as soon as it knows its flags, and writes to the paths that it returns: code of
the user's, which may change the current folder or the files, runs later.
"""

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pmapdp.errors import UserError
from pmapdp.files.reading import require_path, saying
from pmapdp.files.writing import WRITE_ADVICE, require_writable

# How a file of each kind begins. Lines are appended, to those of other runs; files of the other kinds are replaced.
JSON, LINES, HTML = (re.compile(start, re.IGNORECASE) for start in (rb"{", rb'{"event": ', b"<!doctype html>"))
MODEL = re.compile(rb"PK\x03\x04.{26}arrays/", re.DOTALL)  # a zip, in which what is exported is first
ENDINGS = {".json": (JSON, LINES), ".html": (HTML,)}

# What a run has in its folder, and how the names of its files for TensorBoard begin.
RUN = ("config.json", "metrics.jsonl", "log.txt", "pmapdp.lock", "checkpoints", "damaged", "profile")
EVENTS = "events.out."


class Output(NamedTuple):
    """A file that a command writes.

    Attributes:
        name: how the command line calls it, for example `--json`.
        path: as it was given; None where it was not.
        kind: how such files begin. Only one of this kind, or an empty one, is replaced or appended to.
    """

    name: str
    path: str | Path | None
    kind: re.Pattern[bytes]


def check_outputs(
    *outputs: Output, inputs: Iterable[str | Path | None] = (), run: str | Path | None = None
) -> list[Path | None]:
    """The absolute paths of the outputs, links followed; None for one that was not asked for.

    Args:
        outputs: what the command will write.
        inputs: the files that it reads, None among them for those that were not given.
        run: the folder of the run that writes them, which may not exist yet.

    Raises:
        UserError: one cannot be written, or is an input, another output, a file of any run, or a file of another kind.
    """
    taken = {place_of(stream): "where this command prints" for stream in ("/dev/stdout", "/dev/stderr")}
    taken |= {place_of(path): "a file that this command reads" for path in inputs if path}
    targets: list[Path | None] = [None] * len(outputs)
    for number, (name, path, kind) in enumerate(outputs):
        if path is None:
            continue
        require_path(path)
        given = f"{name} {str(path) or repr('')}"
        with saying(given, "written", WRITE_ADVICE):
            target = targets[number] = Path(os.path.realpath(path))
            inside = run is not None and target.is_relative_to(os.path.realpath(run))
        what = taken.get(place_of(path)) or file_of_a_run(target, run)
        if not inside or target.parent.exists():  # the folder of a new run is made later
            require_writable(path, named=given)
            if not what and target.exists():
                with saying(given, "read", WRITE_ADVICE), open(target, "rb") as file:
                    if (start := file.read(100)) and not kind.match(start):
                        what = "a file of another kind, which would be lost"
                    elif kind is LINES and os.fstat(file.fileno()).st_nlink > 1:
                        what = "a file with several names, under each of which it would change"
        if not what and kind not in ENDINGS.get(target.suffix, [kind]):
            what = "the name of a file of another kind"
        if what:
            raise UserError(f"{given} is {what}: name another file")
        taken[place_of(path)] = f"also what {name} names"
    return targets


def place_of(path: str | Path) -> Any:
    """What two names of one file have in common: its place on the disk, or the full path where there is none yet."""
    try:
        found = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    except ValueError:  # a zero byte, which no file has in its name
        return path
    return found.st_dev, found.st_ino


def file_of_a_run(target: Path, run: str | Path | None) -> str | None:
    """What a path is, if the run in a folder above it has or will have a file there; None for any other."""
    for folder in target.parents:
        first = target.relative_to(folder).parts[0]
        if first not in RUN and not first.startswith(EVENTS):
            continue
        is_run = (folder / "pmapdp.lock").exists() or (run is not None and folder == Path(os.path.realpath(run)))
        with contextlib.suppress(OSError), open(folder / "config.json", "rb") as file:
            is_run |= b'"pmapdp run ' in file.read(1000)
        if is_run:
            return f"a file of the run in {folder}"
    return None
