"""The collectives in a compiled program: which kinds, how many, how many bytes.

The compiler inserts, combines and splits collectives, so only its final text (HLO) tells what the devices exchange.
Lessons 06 and 09 read such a text.

    collectives(jax.jit(f).lower(x).compile().as_text())
"""

import math
import re
from typing import NamedTuple

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# `%name = TYPE all-reduce(`. An asynchronous one is split into `-start` and `-done`: the type of the second is that of
# the result alone.
INSTRUCTION = re.compile(rf"%?[\w.-]+ = (?P<type>.+?) (?P<kind>{'|'.join(KINDS)})(-done)?\(")
ARRAY = re.compile(r"(?P<dtype>[a-z]+)(?P<bits>\d*)\w*\[(?P<dimensions>[\d,<=]*)\]")


class Collective(NamedTuple):
    """All collectives of one kind in a program.

    Attributes:
        kind: its name in HLO, for example `all-reduce`.
        count: number of instructions; one inside a loop counts once, and so does one in a branch, entered or not.
        bytes: size of their results on one device. One instruction may reduce many arrays (a tuple): all count.
    """

    kind: str
    count: int  # type: ignore[assignment]  # the tuple's own method of this name is not needed
    bytes: int


def collectives(hlo: str) -> list[Collective]:
    """The collectives in the text of an optimized HLO module, one entry per kind, in the order of `KINDS`."""
    found: dict[str, list[int]] = {}
    for line in hlo.splitlines():
        # Comments number the entries of a long tuple; layouts may hold brackets of their own.
        plain = re.sub(r"/\*.*?\*/|\{[^{}]*\}", "", line)
        if match := INSTRUCTION.match(plain.strip().removeprefix("ROOT ")):
            found.setdefault(match["kind"], []).append(sum(map(size, ARRAY.finditer(match["type"]))))
    return [Collective(kind, len(found[kind]), sum(found[kind])) for kind in KINDS if kind in found]


def size(array: re.Match[str]) -> int:
    """Bytes of an array type such as `f32[512,10]`; `pred` takes a byte, and a `token` nothing."""
    bits = int(array["bits"] or {"pred": 8}.get(array["dtype"], 0))
    elements = math.prod(int(dimension.lstrip("<=")) for dimension in array["dimensions"].split(",") if dimension)
    return math.ceil(elements * bits / 8)
