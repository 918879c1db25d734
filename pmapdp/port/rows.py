"""The table of the constructs of pmap, from `rows.toml`, and the row of a name."""

import importlib
import tomllib
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pmapdp.port.names import LIBRARIES

# The places of the statuses in a report: first comes what stops a program.
PLACES = {
    "gone": 0,
    "fails": 0,
    "wrong": 1,
    "check": 2,
    "slow": 3,
    "old": 4,
    "fine": 5,
}
# What a row says under jit if it's the same as under shard_map.
SAME = "as under shard_map"


@dataclass(frozen=True)
class Row:
    """A construct of pmap, and what becomes of it. The texts are Markdown.

    Attributes:
        name: A short name, which is also the row's anchor in docs/constructs.md.
        status: "gone" (the library no longer has the name), "fails" (the call
            raises), "wrong" (it runs, and the numbers are wrong), "check" (it depends
            on the rest of the step), "slow" (there's a faster way), "old" (deprecated,
            but it runs) or "fine".
        written: How people write it.
        shard_map, jit: What it becomes in a port.
        today: What JAX 0.10 and later do with it, if the status doesn't say it all.
        names: The names by which it's found: dotted ones of a library, `.attribute`,
            and `function(keyword)` for any function with that last name. A row without
            names is found by a function of `constructs.py`, or by a person only.
    """

    name: str
    status: str
    written: str
    shard_map: str
    jit: str
    today: str = ""
    names: tuple[str, ...] = ()


TABLE = tomllib.loads(Path(__file__).with_name("rows.toml").read_text())
ROWS = {name: Row(name, **fields) for name, fields in TABLE.items()}
ROW_OF_NAME: dict[str, str] = {}
for row in ROWS.values():
    ROW_OF_NAME |= dict.fromkeys(row.names, row.name)


@cache
def row_of_path(path: str) -> str:
    """Find the row of a dotted path or of its beginning.

    It's "gone" if the installed libraries lack the name.
    """
    parts = path.split(".")
    for number in range(len(parts), 1, -1):
        name = ".".join(parts[:number])
        if name in ROW_OF_NAME:
            return ROW_OF_NAME[name]
    if parts[0] in LIBRARIES and parts[-1] != "*" and is_missing(path):
        return "gone"
    return ""


def is_missing(path: str) -> bool:
    """Return True if the installed JAX, Flax, Optax or NumPy lacks a name.

    A module that's there, and needs another library, isn't missing.
    """
    module, *names = path.split(".")
    with warnings.catch_warnings(action="ignore"):
        value: Any = importlib.import_module(module)
        for name in names:
            module = f"{module}.{name}"
            try:
                if hasattr(value, name):
                    value = getattr(value, name)
                else:
                    value = importlib.import_module(module)
            except ModuleNotFoundError as error:
                return module.startswith(error.name or module)
            except Exception:  # it's there, and needs a library or what a run sets up
                return False
    return False
