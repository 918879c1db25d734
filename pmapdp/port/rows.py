"""The table of the constructs of pmap, one row each, from `rows.toml`."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """A construct of pmap, and what becomes of it. The texts are Markdown.

    Attributes:
        name: A short name, which is also the row's anchor in docs/constructs.md.
        status: "gone" (JAX, Flax or Optax no longer has the name), "fails" (the call
            raises), "wrong" (it runs, and the numbers are wrong), "check" (it depends
            on the rest of the step), "slow" (there's a faster way), "old" (deprecated,
            but it runs) or "fine".
        written: How people write it.
        shard_map, jit: What it becomes in a port.
        today: What JAX 0.10 and later do with it, if the status doesn't say it all.
        names: Dotted names in a library by which it's found.
        keywords: Functions, by their last name, with the arguments by which it's found.
            A row without names and keywords is found by a function of `find`, or by a
            person only.
    """

    name: str
    status: str
    written: str
    shard_map: str
    jit: str
    today: str = ""
    names: tuple[str, ...] = ()
    keywords: dict[str, list[str]] = field(default_factory=dict)


TABLE = tomllib.loads(Path(__file__).with_name("rows.toml").read_text())
ROWS = {name: Row(name, **fields) for name, fields in TABLE.items()}
