"""Compare steps of yours, each `file.py:program`: verify, compile and time them, and compare them with the first."""

import ast
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmapdp.compare.code import plain_lines
from pmapdp.compare.strategies import (
    describe_run,
    in_new_process,
    largest_difference,
    what_devices_hold,
)
from pmapdp.compare.words import Run
from pmapdp.devices import choose
from pmapdp.port.read import FUNCTION, read_program, resolve
from pmapdp.verify import trees
from pmapdp.verify.layouts import choose_layout
from pmapdp.verify.verification import verify_program

WARM_UP, TIMED = 3, 20  # calls
STEP, AROUND = "The step", "Around the step"
WHY = {
    STEP: "The functions that differentiate, update or add up.",
    AROUND: "The rest of the program.",
}


def compare_programs(targets: Sequence[str], count: int | None) -> list[Run]:
    """Run each program in a process of its own. If two start from the same state, compare it after an update."""
    found = [in_new_process(run_program, target, count) for target in targets]
    _, start, end = found[0]
    for run, other_start, other_end in found:
        shapes = [
            jax.tree.map(np.shape, tree)
            for tree in (start, other_start, end, other_end)
        ]
        same = (
            shapes[0] == shapes[1]
            and shapes[2] == shapes[3]
            and largest_difference(start, other_start) == 0
        )
        run["largest_difference"] = largest_difference(other_end, end) if same else None
    return [run for run, *_ in found]


def run_program(target: str, count: int | None) -> tuple[Run, Any, Any]:
    """Verify, compile and time one program: facts, and the state before and after an update, as one device has it."""
    available = choose(count)  # before the file is run, which may use JAX
    arguments, report = verify_program(target, available)
    devices = list(arguments["devices"] or jax.devices())
    step = arguments["step"] or arguments["make_step"](devices)
    layout = choose_layout(arguments["layout"], arguments["batch_axis"])
    batch, key = (
        value(0) if callable(value) else value
        for value in (arguments["batch"], arguments["key"])
    )

    start, batch = trees.to_host(
        (arguments["state"], batch)
    )  # copies that no donation reaches

    def place(path: str, leaf: Any) -> Any:
        own = trees.matches(path, arguments["per_device"])
        return (layout.place_own if own else layout.place_state)(leaf, devices)

    state = trees.map_with_names(place, start)
    inputs = [] if batch is None else [layout.place_batch(batch, devices)]
    holds = {"state": what_devices_hold(state)} | (
        {"batch": what_devices_hold(inputs[0])} if inputs else {}
    )
    inputs += [] if key is None else [layout.place_key(key, devices)]
    program = step.lower(state, *inputs).compile()
    structure, milliseconds, first = str(jax.tree.structure(state)), [], None
    for _ in range(WARM_UP + TIMED):
        started = time.perf_counter()
        result = jax.block_until_ready(step(state, *inputs))
        milliseconds.append(1000 * (time.perf_counter() - started))
        state = result if str(jax.tree.structure(result)) == structure else result[0]
        first = as_one_device(state, start) if first is None else first
    examples = (
        len(devices)
        if batch is None
        else np.shape(jax.tree.leaves(batch)[0])[arguments["batch_axis"]]
    )
    run = describe_run(target, devices, examples, milliseconds[WARM_UP:], program) | {
        "holds": holds,
        "verdict": {"passed": "equal", "failed": "FAILED", "incomplete": "not proven"}[
            report.verdict
        ],
        "causes": report.causes,
        "findings": [
            f"{check.name}: {check.sentence}"
            for check in [*report.failed, *report.missing]
        ],
    }
    return run, start, first


def as_one_device(state: Any, like: Any) -> Any:
    """Fetch a state without the device axis that pmap adds."""

    def first(x: Any, one: Any) -> Any:
        return (
            np.asarray(x)
            if np.shape(x) == np.shape(one)
            else np.asarray(x.addressable_shards[0].data[0])
        )

    return jax.tree.map(first, state, like)


def program_sections(targets: Sequence[str]) -> list[dict[str, Any]]:
    """List the lines of the programs, also those in files that they import: the steps, and what's around them."""
    parts = {target: split_program(*target.rpartition(":")[::2]) for target in targets}
    return [
        {
            "title": title,
            "why": why,
            "lines": {target: found[title] for target, found in parts.items()},
        }
        for title, why in WHY.items()
    ]


def split_program(path: str, name: str) -> dict[str, list[str]]:
    """Collect the functions and the values that a program uses, in the order in which they stand."""
    files, _ = read_program(path)
    file = files[str(Path(path))]
    used, waiting = list[Any](), [file.lookup(name)]
    while waiting:
        node = waiting.pop()
        statement = node
        while isinstance(
            getattr(statement, "parent", None), ast.AST
        ) and not isinstance(statement.parent, ast.Module):
            statement = statement.parent
        is_code = isinstance(statement, ast.stmt) and not isinstance(
            statement, ast.Import | ast.ImportFrom
        )
        if not is_code or statement in used or "/pmapdp/verify/" in statement.file.path:
            continue
        used.append(statement)
        names = [
            resolve(each)
            for each in ast.walk(statement)
            if isinstance(each, ast.Name | ast.Attribute)
        ]
        waiting += [each for each in names if isinstance(each, ast.AST)]
    used.sort(
        key=lambda each: (each.file.path != file.path, each.file.path, each.lineno)
    )
    words = ("value_and_grad", "grad(", "apply_gradients", "pmean", "psum")
    steps = [
        each
        for each in used
        if isinstance(each, FUNCTION)
        and any(word in ast.unparse(each) for word in words)
    ]
    return {
        STEP: plain_lines(*steps),
        AROUND: plain_lines(*(each for each in used if each not in steps)),
    }
