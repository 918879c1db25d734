"""The collectives in a compiled program: which kinds, how many, how many bytes, and the line of source that asks.

The compiler inserts, combines and splits collectives, so only its final text (HLO) tells what the devices exchange.
Lessons 06 and 09 read such a text.

    collectives(jax.jit(f).lower(x).compile().as_text())
"""

import linecache
import math
import os
import re
from typing import Any, NamedTuple

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
METADATA = re.compile(r'metadata=\{op_name="([^"]*)"(?:.*?stack_frame_id=(\d+))?')
LIBRARIES = ("site-packages", "dist-packages")


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
    for each in instructions(hlo):
        found.setdefault(each["kind"], []).append(each["bytes"])
    return [Collective(kind, len(found[kind]), sum(found[kind])) for kind in KINDS if kind in found]


def instructions(hlo: str) -> list[dict[str, Any]]:
    """Every collective in the text: its kind, bytes and number of arrays, the operations of the program from which it
    comes, and the line of source that makes them: where it is, and its text (both empty where HLO has none).

    One that the compiler combined from several may have the operations and the line of one of them.
    """
    found = []
    for line in hlo.splitlines():
        # Comments number the entries of a long tuple; layouts may hold brackets of their own.
        plain = re.sub(r"/\*.*?\*/|\{[^{}]*\}", "", line)
        if match := INSTRUCTION.match(plain.strip().removeprefix("ROOT ")):
            sizes = list(map(size, ARRAY.finditer(match["type"])))
            origin = METADATA.search(line)
            name, frame = origin.groups() if origin else ("", None)
            operations = list(dict.fromkeys(re.findall(r"(\w+)\)*(?=:|$)", name)))
            source, text = source_line(hlo, int(frame)) if frame else ("", "")
            inputs = re.search(rf"{match['kind']}[\w-]*\((.*?)\)", plain)
            short = f"{match['kind']}({inputs[1]})" if inputs else match["kind"]
            origin_of = {"operations": operations, "source": source, "text": text, "instruction": short}
            found.append({"kind": match["kind"], "arrays": len(sizes), "bytes": sum(sizes), **origin_of})
    return found


def size(array: re.Match[str]) -> int:
    """Bytes of an array type such as `f32[512,10]`; `pred` takes a byte, and a `token` nothing."""
    bits = int(array["bits"] or {"pred": 8}.get(array["dtype"], 0))
    elements = math.prod(int(dimension.lstrip("<=")) for dimension in array["dimensions"].split(",") if dimension)
    return math.ceil(elements * bits / 8)


def source_line(hlo: str, frame: int) -> tuple[str, str]:
    """The innermost line of a stack frame that is not a library's, for example `steps/pmap.py:33`, and its text; by the
    tables at the top of HLO."""

    def table(name: str) -> dict[int, str]:
        rows = re.search(rf"^{name}\n((?:\d+ .*\n)*)", hlo, re.MULTILINE)
        return {int(row.split(" ", 1)[0]): row.split(" ", 1)[1] for row in rows[1].splitlines()} if rows else {}

    def numbers(row: str) -> dict[str, int]:
        return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", row)}

    files, locations, frames = table("FileNames"), table("FileLocations"), table("StackFrames")
    while frame in frames:
        entry = numbers(frames[frame])
        place = numbers(locations[entry["file_location_id"]])
        file = files[place["file_name_id"]].strip('"')
        if not any(library in file.split(os.sep) for library in LIBRARIES):
            where = f"{os.sep.join(file.split(os.sep)[-2:])}:{place['line']}"
            return where, linecache.getline(file, place["line"]).partition("  #")[0].strip()  # without its comment
        frame = entry["parent_frame_id"] - 1  # counted from 1 for none, as the outermost says
    return "", ""
