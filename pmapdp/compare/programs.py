"""Compare your own steps, each `file.py:program`: verify, compile and time them.

Each is compared with the first one, and the page shows what changes in its source.
"""

import ast
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmapdp.compare.strategies import (
    describe_arrays,
    describe_run,
    in_new_process,
    largest_difference,
)
from pmapdp.compare.words import Run
from pmapdp.devices import choose
from pmapdp.port.read import FUNCTION, read_program, resolve
from pmapdp.verify import trees
from pmapdp.verify.layouts import choose_layout
from pmapdp.verify.verification import verify_program

WARM_UP = 3  # calls that aren't timed
TIMED = 20  # calls
VERDICTS = {"passed": "equal", "failed": "FAILED", "incomplete": "not proven"}
STEP = "The step"
AROUND = "Around the step"
WHY = {
    STEP: "The functions that differentiate, update or add up.",
    AROUND: "The rest of the program.",
}
STEP_WORDS = ("value_and_grad", "grad(", "apply_gradients", "pmean", "psum")


def compare_programs(targets: Sequence[str], count: int | None) -> list[Run]:
    """Verify, compile and time each program, in a process of its own.

    Args:
        targets: What `python -m pmapdp.verify` takes, as "old.py:check".
        count: The number of devices. None: all.

    Returns:
        A dictionary for each program. Its `largest_difference` is the one from the
        first program after an update, or None if they don't start from one state.
    """
    results = [in_new_process(run_program, target, count) for target in targets]
    _, start, end = results[0]
    for run, other_start, other_end in results:
        same_shapes = shapes(other_start) == shapes(start)
        same_shapes = same_shapes and shapes(other_end) == shapes(end)
        run["largest_difference"] = None
        if same_shapes and largest_difference(start, other_start) == 0:
            run["largest_difference"] = largest_difference(other_end, end)
    return [run for run, _, _ in results]


def shapes(tree: Any) -> Any:
    """Return a tree's structure with the shapes of its arrays."""
    return jax.tree.map(np.shape, tree)


def run_program(target: str, count: int | None) -> tuple[Run, Any, Any]:
    """Verify, compile and time one program.

    Returns:
        What was found, and the state before and after an update, as one device has it.
    """
    available = choose(count)  # before the file is run, which may use JAX
    arguments, report = verify_program(target, available)
    devices = list(arguments["devices"] or jax.devices())
    step = arguments["step"] or arguments["make_step"](devices)
    start, inputs, holds = place_arguments(arguments, devices)
    program = step.lower(*inputs).compile()
    milliseconds, state = time_step(step, inputs)
    examples = len(devices)
    if arguments["batch"] is not None:
        batch = first_value(arguments["batch"])
        axis = arguments["batch_axis"]
        examples = np.shape(jax.tree.leaves(batch)[0])[axis]
    run = describe_run(target, devices, examples, milliseconds, program)
    run["holds"] = holds
    run["verdict"] = VERDICTS[report.verdict]
    run["report"] = str(report)
    return run, start, as_one_device(state, start)


def first_value(value: Any) -> Any:
    """Return the batch or the key of the first update."""
    return value(0) if callable(value) else value


def place_arguments(
    arguments: dict[str, Any], devices: list[jax.Device]
) -> tuple[Any, list[Any], dict[str, Any]]:
    """Place state, batch and key on the devices as the program's layout says.

    Returns:
        The state on the host, what the step is called with, and what a device holds.
    """
    layout = choose_layout(arguments["layout"], arguments["batch_axis"])
    batch = first_value(arguments["batch"])
    key = first_value(arguments["key"])
    # Copies that no donation reaches.
    start, batch = trees.to_host((arguments["state"], batch))

    def place(path: str, leaf: Any) -> Any:
        if trees.matches(path, arguments["per_device"]):
            return layout.place_own(leaf, devices)
        return layout.place_state(leaf, devices)

    inputs = [trees.map_with_names(place, start)]
    holds = {"state": describe_arrays(inputs[0])}
    if batch is not None:
        inputs.append(layout.place_batch(batch, devices))
        holds["batch"] = describe_arrays(inputs[1])
    if key is not None:
        inputs.append(layout.place_key(key, devices))
    return start, inputs, holds


def time_step(step: Any, inputs: list[Any]) -> tuple[list[float], Any]:
    """Call a step again and again.

    Returns:
        The times in ms, and the state after one update.
    """
    state, *others = inputs
    structure = jax.tree.structure(state)
    milliseconds = []
    first = None
    for _ in range(WARM_UP + TIMED):
        started = time.perf_counter()
        result = jax.block_until_ready(step(state, *others))
        milliseconds.append(1000 * (time.perf_counter() - started))
        is_state = str(jax.tree.structure(result)) == str(structure)
        state = result if is_state else result[0]
        if first is None:
            first = jax.tree.map(local_copy, state)
    return milliseconds[WARM_UP:], first


def local_copy(x: Any) -> tuple[np.ndarray, np.ndarray]:
    """Copy an array, and its first device's part, to the host, before it's donated."""
    return np.asarray(x), np.asarray(x.addressable_shards[0].data)


def as_one_device(copies: Any, like: Any) -> Any:
    """Take the device axis that pmap adds from a state."""

    def choose_copy(before: Any, copy: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        whole, part = copy
        return whole if np.shape(whole) == np.shape(before) else part[0]

    return jax.tree.map(choose_copy, like, copies)


def program_sections(targets: Sequence[str]) -> dict[str, Any]:
    """List the lines of the programs: the steps, and what's around them."""
    parts = {target: split_program(*target.rpartition(":")[::2]) for target in targets}
    code = []
    for title, why in WHY.items():
        lines = {target: sections[title] for target, sections in parts.items()}
        code.append({"title": title, "why": why, "lines": lines})
    sources = {}
    for target, sections in parts.items():
        sources[target] = {
            "lines": [*sections[STEP], "", *sections[AROUND]],
            "first": 1,
        }
    return {"code": code, "shared": [], "sources": sources}


def split_program(path: str, name: str) -> dict[str, list[str]]:
    """Collect the statements that a program uses, also from files that it imports."""
    modules, _ = read_program(path)
    main = modules[str(Path(path))]
    statements: list[Any] = []
    waiting = [main.lookup(name)]
    while waiting:
        statement = top_statement(waiting.pop())
        if statement is None or statement in statements:
            continue
        statements.append(statement)
        names = [
            node
            for node in ast.walk(statement)
            if isinstance(node, ast.Name | ast.Attribute)
        ]
        waiting += map(resolve, names)
    statements.sort(
        key=lambda statement: (
            statement.file.path != main.path,
            statement.file.path,
            statement.lineno,
        )
    )
    sections: dict[str, list[str]] = {STEP: [], AROUND: []}
    for statement in statements:
        lines = source_of(statement)
        text = "\n".join(lines)
        is_step = any(word in text for word in STEP_WORDS)
        title = STEP if is_step and isinstance(statement, FUNCTION) else AROUND
        if sections[title] and isinstance(statement, FUNCTION):
            sections[title].append("")
        sections[title] += lines
    return sections


def top_statement(node: Any) -> Any:
    """Return the statement of its module that holds a node, or None.

    It's None for imports, for libraries, and for pmapdp's own code.
    """
    if not isinstance(node, ast.AST):
        return None
    parent = getattr(node, "parent", None)
    while parent is not None and not isinstance(parent, ast.Module):
        node = parent
        parent = node.parent
    is_import = isinstance(node, ast.Import | ast.ImportFrom)
    if is_import or not isinstance(node, ast.stmt):
        return None
    is_ours = "/pmapdp/verify/" in node.file.path  # type: ignore[attr-defined]
    return None if is_ours else node


def source_of(statement: Any) -> list[str]:
    """Return the lines of a statement, with its decorators."""
    lines = Path(statement.file.path).read_text(encoding="utf-8").splitlines()
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(node.lineno for node in decorators)])
    return lines[first - 1 : statement.end_lineno]
