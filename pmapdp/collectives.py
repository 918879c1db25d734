"""List a compiled program's collectives: how often, how large, and from which line.

The compiler inserts, combines and splits collectives, so only the text of the compiled
program (HLO) tells what the devices exchange. Lessons 06 and 09 read such a text.

    collectives(jax.jit(f).lower(x).compile().as_text())
"""

import linecache
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.filesize import decimal

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# The operations of JAX that ask for a collective. If a collective comes from none of
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
    rf"(?:ROOT )?%?[\w.-]+ = (.+?) ({'|'.join(KINDS)})(?:-done)?\("
)
ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([\d,<=]*)\]")
METADATA = re.compile(r'metadata=\{op_name="([^"]*)"(?:.*?stack_frame_id=(\d+))?')
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{$")
# What an instruction runs: the body of a loop, a function, the branches of a condition.
RUNS = re.compile(
    r"(body|condition|calls|to_apply|\w+_computations?)=\{?([^,{}]+(?:, %[^,{}]+)*)"
)
TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclass(frozen=True)
class Collective:
    """All collectives of one kind in a program.

    Attributes:
        kind: The kind's name in HLO, for example `all-reduce`.
        count: The number of instructions.
        bytes: The size of their results on one device, all arrays together, if each
            runs once.
        runs: How often they run, all together, in one call of the program. In a loop,
            an instruction runs as often as the loop. In a branch, it counts as if the
            branch were taken. None: a loop's length isn't known before it runs.
    """

    kind: str
    count: int
    bytes: int
    runs: int | None


@dataclass(frozen=True)
class Instruction:
    """One collective in a compiled program.

    Attributes:
        kind: The name of its kind in HLO.
        bytes: The size of its results on one device.
        arrays: The number of its results.
        runs: How often it runs in one call, or None if that isn't known.
        in_branch: True if it's in a branch of a condition, so it may run less often.
        operations: The JAX operations that it comes from. If the compiler has combined
            several, some may be missing.
        source: The file and the number of the line that it comes from, or empty if HLO
            doesn't have them.
        text: The line itself.
        written: True if the program asks for it, and False if the compiler added it.
        hlo: Its line in the compiled program.
    """

    kind: str
    bytes: int
    arrays: int
    runs: int | None
    in_branch: bool
    operations: list[str]
    source: str
    text: str
    written: bool
    hlo: str = ""


def collectives(hlo: str) -> list[Collective]:
    """Add up the collectives of a compiled program by kind, in the order of `KINDS`."""
    rows_of = group_by_kind(instructions(hlo))
    result = []
    for name in KINDS:
        rows = rows_of.get(name, [])
        if rows:
            total = sum(row.bytes for row in rows)
            result.append(Collective(name, len(rows), total, add_runs(rows)))
    return result


def group_by_kind(rows: Sequence[Instruction]) -> dict[str, list[Instruction]]:
    """Return the instructions of each kind."""
    rows_of: dict[str, list[Instruction]] = {}
    for row in rows:
        rows_of.setdefault(row.kind, []).append(row)
    return rows_of


def add_runs(rows: Sequence[Instruction]) -> int | None:
    """Return how often instructions run together, or None if that isn't known."""
    total = 0
    for row in rows:
        if row.runs is None:
            return None
        total += row.runs
    return total


def instructions(hlo: str) -> list[Instruction]:
    """List every collective in a compiled program, the largest first."""
    runs_of = count_runs(hlo)
    computation = ""
    rows = []
    for line in hlo.splitlines():
        start = COMPUTATION.match(line)
        if start:
            computation = start[2]
        # Numbers of tuple entries and layouts would hide the shapes.
        plain = re.sub(r"/\*.*?\*/|\{[^{}]*\}", "", line)
        match = INSTRUCTION.match(plain.strip())
        if not match:
            continue
        sizes = [array_bytes(*array) for array in ARRAY.findall(match[1])]
        runs, in_branch = runs_of.get(computation, (1, False))
        operations: list[str] = []
        source = ""
        text = ""
        origin = METADATA.search(line)
        if origin:
            operations = re.findall(r"(\w+)\)*(?=:|$)", origin[1])
            if origin[2]:
                source, text = source_line(hlo, origin[2])
        instruction = Instruction(
            kind=match[2],
            bytes=sum(sizes),
            arrays=len(sizes),
            runs=runs,
            in_branch=in_branch,
            operations=list(dict.fromkeys(operations)),
            source=source,
            text=text,
            written=bool(WRITTEN & set(operations)),
            hlo=line.strip(),
        )
        rows.append(instruction)
    return sorted(rows, key=lambda row: -row.bytes)


class Caller(NamedTuple):
    """An instruction that runs a computation.

    Attributes:
        computation: The computation that the instruction is in.
        times: How often it runs the other computation. None: a loop of unknown length.
        is_branch: It runs the other computation only under a condition.
    """

    computation: str
    times: int | None
    is_branch: bool


def count_runs(hlo: str) -> dict[str, tuple[int | None, bool]]:
    """Count how often each computation of a program runs in one call.

    Returns:
        For each computation: the number, None if a loop's length isn't known, and True
        if it's in a branch of a condition, so that it may run less often.
    """
    callers = find_callers(hlo)
    return {name: multiply_runs(name, callers) for name in callers}


def find_callers(hlo: str) -> dict[str, list[Caller]]:
    """Find what runs each computation of a program. Nothing runs the first one.

    XLA writes a loop's length beside the loop, `known_trip_count`, if it's known.
    """
    callers: dict[str, list[Caller]] = {}
    computation = ""
    for line in hlo.splitlines():
        start = COMPUTATION.match(line)
        if start:
            computation = start[2]
            callers.setdefault(computation, [])
            continue
        for role, names in RUNS.findall(line):
            times: int | None = 1
            if role in ("body", "condition"):
                trips = TRIP_COUNT.search(line)
                times = None
                if trips:
                    times = int(trips[1])
            caller = Caller(computation, times, is_branch="_computation" in role)
            for name in names.split(", "):
                callers.setdefault(name.strip(" %"), []).append(caller)
    return callers


def multiply_runs(
    name: str, callers: dict[str, list[Caller]]
) -> tuple[int | None, bool]:
    """Count a computation's runs, from its callers up to the program's entry."""
    if not callers.get(name):  # the program's entry
        return 1, False
    total: int | None = 0
    in_branch = False
    for caller in callers[name]:
        outer, outer_in_branch = multiply_runs(caller.computation, callers)
        in_branch = in_branch or caller.is_branch or outer_in_branch
        if total is None or outer is None or caller.times is None:
            total = None
        else:
            total += outer * caller.times
    return total, in_branch


def array_bytes(dtype: str, bits: str, dimensions: str) -> int:
    """Return the bytes of an array type such as `f32[512,10]`.

    A `pred` (a truth value) takes a byte, and a `token` none.
    """
    sizes = [int(part.lstrip("<=")) for part in dimensions.split(",") if part]
    width = 0
    if dtype == "pred":
        width = 8
    elif bits:
        width = int(bits)
    return math.ceil(math.prod(sizes) * width / 8)


def source_line(hlo: str, frame: str) -> tuple[str, str]:
    """Return the innermost line of a stack frame that isn't in a library, and its text.

    The line is given as `steps/pmap.py:33`.
    """
    files = read_table(hlo, "FileNames")
    locations = read_table(hlo, "FileLocations")
    frames = read_table(hlo, "StackFrames")
    while frame in frames:
        entry = dict(re.findall(r"(\w+)=(\d+)", frames[frame]))
        place = dict(re.findall(r"(\w+)=(\d+)", locations[entry["file_location_id"]]))
        file = files[place["file_name_id"]].strip('"')
        line = int(place["line"])
        folders = file.split(os.sep)
        if not {"site-packages", "dist-packages"} & set(folders):
            text = linecache.getline(file, line)
            without_comment = text.partition("  #")[0].strip()
            return f"{os.sep.join(folders[-2:])}:{line}", without_comment
        frame = str(int(entry["parent_frame_id"]) - 1)  # counted from 1 for none
    return "", ""


def read_table(hlo: str, name: str) -> dict[str, str]:
    """Read a table at the top of HLO: its lines by their numbers."""
    table = re.search(rf"^{name}\n((?:\d+ .*\n)*)", hlo, re.MULTILINE)
    if table is None:
        return {}
    return dict(re.findall(r"^(\d+) (.*)", table[1], re.MULTILINE))


def describe_exchange(rows: Sequence[Instruction]) -> str:
    """Say what devices exchange: `1 all-reduce, 576 bytes`.

    With a loop, for example: `4 all-reduces, run 16 times an update, 2.3 kB: 4 times at
    accumulate.py:81`.
    """
    rows_of = group_by_kind(rows)
    texts = [describe_rows(name, rows_of[name]) for name in rows_of]
    return "; ".join(texts) or "no collective"


def describe_rows(name: str, rows: Sequence[Instruction]) -> str:
    """Say how often the collectives of one kind run, how large they are, and where."""
    text = f"{len(rows)} {name}"
    if len(rows) > 1:
        text += "s"
    loops = [row for row in rows if row.runs != 1]
    runs = add_runs(rows)
    if runs is None:
        text += ", in a loop whose length only the run shows"
    elif loops:
        text += f", run {runs} times an update"
    total = sum(row.bytes * (row.runs or 1) for row in rows)
    text += f", {decimal(total)}"
    places = [
        f"{row.runs or '?'} times at {row.source.rpartition('/')[2]}"
        for row in loops
        if row.source
    ]
    if places:
        text += f": {', '.join(places[:3])}"
    if any(row.in_branch for row in rows):
        text += " (at most: some are in a branch that may not be taken)"
    return text
