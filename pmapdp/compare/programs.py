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

from pmapdp.compare.results import Code, Line, Measurement, Section
from pmapdp.compare.strategies import (
    describe_arrays,
    in_new_process,
    largest_difference,
    measurement,
)
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


def compare_programs(targets: Sequence[str], count: int | None) -> list[Measurement]:
    """Verify, compile and time each program, in a process of its own.

    Args:
        targets: What `python -m pmapdp.verify` takes, as "old.py:check".
        count: The number of devices. None: all.

    Returns:
        A measurement for each program.
    """
    results = [in_new_process(run_program, target, count) for target in targets]
    _, start, end = results[0]
    for run, own_start, own_end in results:
        same_shapes = shapes((own_start, own_end)) == shapes((start, end))
        if same_shapes and largest_difference(start, own_start) == 0:
            run.largest_difference = largest_difference(own_end, end)
    return [run for run, _, _ in results]


def shapes(tree: Any) -> Any:
    """Return a tree's structure with the shapes of its arrays."""
    return jax.tree.map(np.shape, tree)


def run_program(target: str, count: int | None) -> tuple[Measurement, Any, Any]:
    """Verify, compile and time one program.

    Returns:
        The measurement, and the state before and after an update, as one device has it.
    """
    available = choose(count)  # before the file is run, which may use JAX
    arguments, report = verify_program(target, available)
    devices = list(arguments["devices"] or jax.devices())
    step = arguments["step"]
    # A copy that no donation reaches.
    start = trees.to_host(arguments["state"])
    inputs = place_arguments(arguments, devices)
    holds = {"state": describe_arrays(inputs[0])}
    examples = len(devices)
    if arguments["batch"] is not None:
        holds["batch"] = describe_arrays(inputs[1])
        batch = first_value(arguments["batch"])
        axis = arguments["batch_axis"]
        examples = np.shape(jax.tree.leaves(batch)[0])[axis]
    program = step.lower(*inputs).compile()
    milliseconds = []
    for _ in range(WARM_UP + TIMED):  # each from the same state: a step may donate it
        inputs = jax.block_until_ready(place_arguments(arguments, devices))
        started = time.perf_counter()
        result = jax.block_until_ready(step(*inputs))
        milliseconds.append(1000 * (time.perf_counter() - started))
    # A step returns the state, or the state and more.
    structure = str(jax.tree.structure(inputs[0]))
    state = result if str(jax.tree.structure(result)) == structure else result[0]
    times = milliseconds[WARM_UP:]
    run = measurement(target, devices, examples, times, program, holds)
    run.verdict = VERDICTS[report.verdict]
    run.report = str(report)
    return run, start, jax.tree.map(as_one_device, state, start)


def first_value(value: Any) -> Any:
    """Return the batch or the key of the first update."""
    return value(0) if callable(value) else value


def place_arguments(arguments: dict[str, Any], devices: list[jax.Device]) -> list[Any]:
    """Place state, batch and key on the devices as the program's layout says."""
    layout = choose_layout(arguments["layout"], arguments["batch_axis"])
    # Copies, because a step may donate what it's given.
    state, batch = trees.to_host((arguments["state"], first_value(arguments["batch"])))
    key = first_value(arguments["key"])

    def leave_own_out(path: str, leaf: Any) -> Any:
        return None if trees.matches(path, arguments["per_device"]) else leaf

    def place_own(leaf: Any, shared: Any) -> Any:
        return layout.place_own(leaf, devices) if shared is None else shared

    # A layout of yours takes the state as a whole, without the devices' own leaves.
    shared = trees.map_with_names(leave_own_out, state)
    shared = layout.place_state(shared, devices)
    inputs = [jax.tree.map(place_own, state, shared)]
    if batch is not None:
        inputs.append(layout.place_batch(batch, devices))
    if key is not None:
        inputs.append(layout.place_key(key, devices))
    return inputs


def as_one_device(x: Any, like: Any) -> np.ndarray:
    """Copy an array to the host, without the device axis that pmap adds."""
    if np.shape(x) == np.shape(like):
        return np.asarray(x)
    return np.asarray(x.addressable_shards[0].data)[0]


def program_sections(targets: Sequence[str]) -> Code:
    """List the lines of the programs: the steps, and what's around them."""
    parts = {target: split_program(*target.rpartition(":")[::2]) for target in targets}
    sections = []
    for title, why in WHY.items():
        lines = {}
        for target in targets:
            lines[target] = [line.text for line in parts[target][title]]
        sections.append(Section(title, why, lines))
    gap = Line(None, "")
    sources = {
        target: [*part[STEP], gap, *part[AROUND]] for target, part in parts.items()
    }
    return Code(sections, sources)


def split_program(path: str, name: str) -> dict[str, list[Line]]:
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

    def place(statement: Any) -> tuple[bool, str, int]:  # the main file comes first
        file = statement.file.path
        return file != main.path, file, statement.lineno

    sections: dict[str, list[Line]] = {STEP: [], AROUND: []}
    files = {STEP: main.path, AROUND: main.path}
    for statement in sorted(statements, key=place):
        lines = source_of(statement)
        is_function = isinstance(statement, FUNCTION)
        text = "\n".join(line.text for line in lines)
        is_step = is_function and any(word in text for word in STEP_WORDS)
        title = STEP if is_step else AROUND
        section = sections[title]
        if section and is_function:
            section.append(Line(None, ""))
        if files[title] != statement.file.path:
            files[title] = statement.file.path
            section.append(Line(None, f"# {Path(files[title]).name}"))
        section += lines
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


def source_of(statement: Any) -> list[Line]:
    """Return the lines of a statement, with its decorators."""
    lines = Path(statement.file.path).read_text(encoding="utf-8").splitlines()
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(node.lineno for node in decorators)])
    numbers = range(first, statement.end_lineno + 1)
    return [Line(number, lines[number - 1]) for number in numbers]
