"""Memory over time, from the compiler's own schedule: lessons 13 and 16 draw it."""

import re
from collections.abc import Collection
from typing import Any

from pmapdp.collectives import ARRAY, array_bytes

INSTRUCTION = re.compile(r"(?:ROOT )?%?([\w.-]+) = (.+?) ([\w-]+)\((.*)")
NO_MEMORY_OF_ITS_OWN = {
    "parameter",
    "constant",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "while",
    "copy-done",
}


def curve(compiled: Any) -> list[float]:
    """Megabytes of temporary arrays on one device, after each instruction of a compiled program in its order.

    An array counts from the instruction that makes it to the last one that reads it. An
    all-reduce and a loop's round write in place, and results take the place of donated
    arguments. Other shared buffers count twice.
    """
    computations: dict[str, list[re.Match[str]]] = {}
    entry = name = ""
    for line in compiled.as_text().splitlines():
        plain = re.sub(r"/\*.*?\*/", "", line)
        if header := re.match(r"(ENTRY )?%?([\w.-]+) .*\{$", plain):
            name = header[2]
            entry, computations[name] = name if header[1] else entry, []
        elif instruction := INSTRUCTION.match(
            re.sub(r"(?<=\])\{[\d,]*\}", "", plain).strip()
        ):
            computations[name].append(instruction)
    root = computations[entry][-1]
    in_place = (
        operands(root) if compiled.memory_analysis().alias_size_in_bytes else {root[1]}
    )
    return [each / 1e6 for each in bytes_over_time(entry, computations, in_place)]


def operands(instruction: re.Match[str]) -> set[str]:
    """The names of what an instruction reads."""
    return set(re.findall(r"%([\w.-]+)", instruction[4].partition(")")[0]))


def bytes_over_time(
    computation: str,
    computations: dict[str, list[re.Match[str]]],
    in_place: Collection[str],
) -> list[int]:
    """Live bytes after each instruction of one computation, with the bytes of its loops in their place."""
    lines = computations[computation]
    sizes, sources, last_use = {}, {}, {}
    for time, line in enumerate(lines):
        name, kind, operation, _ = line.groups()
        reads = operands(line) & sources.keys()
        writes_in_place = (
            name in in_place
            or operation == "all-reduce"
            or "dynamic-update-slice" in name
        )
        own = operation not in NO_MEMORY_OF_ITS_OWN and not writes_in_place
        sizes[name] = 0
        if own:
            sizes[name] = sum(array_bytes(*array) for array in ARRAY.findall(kind))
        sources[name] = {name}.union(*[] if own else [sources[each] for each in reads])
        for each in reads:
            last_use |= dict.fromkeys(sources[each], time)
    live, found = {}, []
    for time, (name, _, operation, rest) in enumerate(line.groups() for line in lines):
        live[name] = sizes[name]
        if operation == "while":
            body, repeats = (
                re.search(r"body=%?([\w.-]+)", rest)[1],
                re.search(r'"n":"(\d+)"', rest),
            )
            inside = bytes_over_time(
                body, computations, operands(computations[body][-1])
            )
            found += [sum(live.values()) + each for each in inside] * int(
                repeats[1] if repeats else 1
            )
        found.append(sum(live.values()))
        live = {each: live[each] for each in live if last_use.get(each, time) > time}
    return found
