"""List the collectives of a compiled program: kinds, sizes, and the line of source that each comes from.

The compiler inserts, combines and splits collectives, so only its final text (HLO)
tells what the devices exchange. Lessons 06 and 09 read one.

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
# The operations of JAX that ask for a collective. If an all-reduce comes from none of
# them, the compiler added it.
WRITTEN = {
    "psum",
    "pmean",
    "pmax",
    "pmin",
    "all_gather",
    "psum_scatter",
    "reduce_scatter",
    "ppermute",
    "all_to_all",
}
# `%name = TYPE all-reduce(`. An asynchronous one has two lines, `-start` and `-done`.
# The second has the result's type.
INSTRUCTION = re.compile(
    rf"(?:ROOT )?%?[\w.-]+ = (.+?) ({'|'.join(KINDS)})(?:-done)?(\(.*?\))"
)
ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([\d,<=]*)\]")
METADATA = re.compile(r'metadata=\{op_name="([^"]*)"(?:.*?stack_frame_id=(\d+))?')


class Collective(NamedTuple):
    """All collectives of one kind in a program.

    Attributes:
        kind: its name in HLO, for example `all-reduce`.
        count: number of instructions. One in a loop or in a branch counts once.
        bytes: size of their results on one device, all arrays together.
    """

    kind: str
    count: int  # type: ignore[assignment]  # hides a method of tuples, which nobody needs
    bytes: int


def collectives(hlo: str) -> list[Collective]:
    """Add up the collectives of each kind in the text of a compiled program, in the order of `KINDS`."""
    found: dict[str, list[int]] = {}
    for each in instructions(hlo):
        found.setdefault(each["kind"], []).append(each["bytes"])
    return [
        Collective(kind, len(found[kind]), sum(found[kind]))
        for kind in KINDS
        if kind in found
    ]


def instructions(hlo: str) -> list[dict[str, Any]]:
    """List every collective in the text, the largest first, as dictionaries.

    - kind, bytes, arrays: as in HLO; `arrays` is their number
    - instruction: its text, without types
    - operations: the JAX operations that it comes from; of a combined one, perhaps not
      all
    - written: a line of the program asks for it
    - source, text: that line's file and number, and the line. Both are empty if HLO
      doesn't have them.
    """
    found = []
    for line in hlo.splitlines():
        plain = re.sub(
            r"/\*.*?\*/|\{[^{}]*\}", "", line
        )  # without numbers of tuple entries, and layouts
        if match := INSTRUCTION.match(plain.strip()):
            types, kind, inputs = match.groups()
            sizes = [size(*array) for array in ARRAY.findall(types)]
            origin = METADATA.search(line)
            operations = (
                list(dict.fromkeys(re.findall(r"(\w+)\)*(?=:|$)", origin[1])))
                if origin
                else []
            )
            source, text = (
                source_line(hlo, origin[2]) if origin and origin[2] else ("", "")
            )
            found.append(
                {
                    "kind": kind,
                    "bytes": sum(sizes),
                    "arrays": len(sizes),
                    "instruction": kind + inputs,
                }
                | {"operations": operations, "written": bool(WRITTEN & set(operations))}
                | {"source": source, "text": text}
            )
    return sorted(found, key=lambda each: -each["bytes"])


def size(dtype: str, bits: str, dimensions: str) -> int:
    """Return the bytes of an array type such as `f32[512,10]`. `pred` takes a byte, and a `token` none."""
    elements = math.prod(
        int(each.lstrip("<=")) for each in dimensions.split(",") if each
    )
    return math.ceil(elements * int(bits or 8 * (dtype == "pred")) / 8)


def source_line(hlo: str, frame: str) -> tuple[str, str]:
    """Return the innermost line of a stack frame that isn't in a library: `steps/pmap.py:33`, and its text."""
    tables = []
    for name in ("FileNames", "FileLocations", "StackFrames"):  # at the top of HLO
        rows = re.search(rf"^{name}\n((?:\d+ .*\n)*)", hlo, re.MULTILINE)
        tables.append(
            dict(re.findall(r"^(\d+) (.*)", rows[1], re.MULTILINE)) if rows else {}
        )
    files, locations, frames = tables
    while frame in frames:
        entry = dict(re.findall(r"(\w+)=(\d+)", frames[frame]))
        place = dict(re.findall(r"(\w+)=(\d+)", locations[entry["file_location_id"]]))
        file, line = files[place["file_name_id"]].strip('"'), int(place["line"])
        folders = file.split(os.sep)
        if not {"site-packages", "dist-packages"} & set(folders):
            text = (
                linecache.getline(file, line).partition("  #")[0].strip()
            )  # without its comment
            return f"{os.sep.join(folders[-2:])}:{line}", text
        frame = str(int(entry["parent_frame_id"]) - 1)  # counted from 1 for none
    return "", ""
