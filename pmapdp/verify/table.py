"""Read the facts and the usual mistakes that look like them, from `mistakes.toml`."""

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TABLE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("mistakes.toml").read_text(encoding="utf-8")
)
SENTENCES: dict[str, str] = TABLE["facts"]
MISTAKES: dict[str, dict[str, Any]] = TABLE["mistakes"]


class Fact(NamedTuple):
    """A result of an experiment: its name in the rules, and its sentence."""

    name: str
    sentence: str


def fact(name: str, leaves: Iterable[str] = (), **numbers: Any) -> Fact:
    """Fill what was found into the sentence of a fact."""
    return Fact(name, SENTENCES[name].format(leaves=few(leaves), **numbers))


def few(names: Iterable[Any]) -> str:
    """Return the first three names, and how many more there are."""
    texts = [str(name) for name in names]
    shown = ", ".join(texts[:3])
    if len(texts) > 3:
        shown += f" and {len(texts) - 3} more"
    return shown


def find_rows(facts: Sequence[Fact]) -> tuple[str, ...]:
    """Return the names of the rows whose rule holds, three at most.

    A rule is a Python expression over the names of facts, each True or False.
    """
    names = dict.fromkeys(SENTENCES, False)
    for known in facts:
        names[known.name] = True
    rows = []
    for row, mistake in MISTAKES.items():
        if eval(mistake["rule"], {"__builtins__": {}}, names):
            rows.append(row)
    return tuple(rows[:3])
