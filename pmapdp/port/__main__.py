"""List each construct of pmap in a program, and what replaces it under shard_map and under jit.

    python -m pmapdp.port train.py
    python -m pmapdp.port my_project           # a folder
    python -m pmapdp.port train.ipynb --json   # a notebook; one JSON object

The program is read, and neither run nor changed. The exit status is 1 if a line of it fails with this JAX, 0 otherwise,
and 2 if the command is wrong.
"""

import json
import logging
import sys
from dataclasses import MISSING, dataclass
from importlib.metadata import version

from pmapdp import cli
from pmapdp.config import setting
from pmapdp.errors import FailedError
from pmapdp.port.constructs import find
from pmapdp.port.names import place
from pmapdp.port.report import as_json, as_text
from pmapdp.port.sources import read


@dataclass(frozen=True)
class Options:
    """List each construct of pmap in a program, and what stands there under shard_map and under jit."""

    path: str = setting("arguments", MISSING, "A file of Python, a notebook, or a folder of both.", place="PATH")
    json: bool = setting("options", False, "Print one JSON object.")


def main(arguments: list[str]) -> None:
    """The command."""
    options = cli.parse(Options, arguments, __doc__)
    sys.setrecursionlimit(20_000)  # a long sum is a deep tree
    logging.getLogger("absl").setLevel(logging.ERROR)  # Flax warns when its modules are looked up
    files, unread = read(options.path)
    findings, mapped = find(files)
    report = as_json(findings, mapped, files, unread)
    print(json.dumps(report) if options.json else as_text(report))
    broken = [each for each in findings if each.row.status in ("gone", "fails")]
    if broken:
        first, several = broken[0], f"{len(broken)} lines fail" if len(broken) > 1 else "1 line fails"
        where = f"{first.path}:{place(first.line)}"
        raise FailedError(f"{several} with jax {version('jax')}, first {where}: {first.row.today}")


if __name__ == "__main__":
    sys.exit(cli.run(main))
