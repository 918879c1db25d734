"""Steps of the reader's own, `file.py:program`: each is verified, compiled, measured, and set beside the first."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pmapdp.compare.apart import apart
from pmapdp.compare.collectives import instructions
from pmapdp.compare.held import held, memory
from pmapdp.compare.runs import Runs, facts, spread
from pmapdp.devices import choose
from pmapdp.errors import FailedError
from pmapdp.verify import trees
from pmapdp.verify.causes import Case
from pmapdp.verify.layouts import choose_layout
from pmapdp.verify.program_file import full_path, verify_program
from pmapdp.verify.reference import Grouped, Reference
from pmapdp.verify.report import CheckError, Report
from pmapdp.verify.rounding import Update
from pmapdp.verify.trial import Trial

WARM_UP, TIMED = 3, 20  # calls


def compare_programs(targets: Sequence[str], count: int | None, say: Callable[[str], None]) -> Runs:
    """What each program is, one after the other, each in a process of its own. The state after an update is compared
    with that of the first, where both start from the same."""
    found = []
    for number, target in enumerate(targets, start=1):
        found.append(apart(run_program, full_path(target), target, count))
        say(f"program {number} of {len(targets)} is done: {target}")
    short = [os.path.basename(target) for target in targets]
    (first, start, end), runs = found[0], []
    for (run, other_start, other_end), name in zip(found, short, strict=True):
        same = list(start) == list(other_start) and all(map(np.array_equal, start.values(), other_start.values()))
        comparable = same and all(end[name].shape == other_end[name].shape for name in end)
        far = max(trees.distance(end[name], other_end[name]) for name in end) if comparable else None
        named = {"name": name if short.count(name) == 1 else run["name"]}
        runs.append(run | named | {"largest_difference": 0.0 if run is first else far})
    return runs


def run_program(target: str, given: str, count: int | None) -> tuple[dict[str, Any], trees.Leaves, trees.Leaves]:
    """One program: the facts; its state before an update, and after it, by the name of each leaf."""
    chosen = choose(count)  # before the file, which may use JAX when it is run
    arguments, report = verify_program(target, given, chosen)
    try:
        return measured(given, report, *trial_of(arguments))
    except CheckError as error:
        raise FailedError(f"{given} cannot be compared: {error}") from error


def measured(
    name: str, report: Report, trial: Trial, update: Update
) -> tuple[dict[str, Any], trees.Leaves, trees.Leaves]:
    """What `run_program` returns, of a step and an update of it."""
    case = Case(trial, update)
    programs = case.find_programs()
    if not programs:
        raise CheckError("its compiled programs are gone after a call: keep the jitted function")
    program = max(programs, key=lambda each: len(each.hlo_modules()[0].to_string()))
    hlo = [text for each in programs for text in (module.to_string() for module in each.hlo_modules())]
    placed = trial.place(update)
    groups = held_groups(state=placed[0], batch=placed[1])  # before the call, to which they may be donated
    returned = trial.call(*placed)
    groups |= held_groups(saved=returned["state"], metric=returned["metrics"])
    milliseconds = spread(timed(trial, update))
    run = facts(name, name, trial.devices, update.examples) | {
        "step_ms": milliseconds,
        "examples_per_second": update.examples / milliseconds["median"] * 1000,
        "collectives": [each for text in hlo for each in instructions(text)],
        "memory": memory(program.get_compiled_memory_stats()),
        "held": groups,
        "verdict": report.verdict,
        "findings": [f"{check.name}: {check.sentence}" for check in [*report.failed, *report.missing]],
        "causes": report.causes,
    }
    end = {name: copies[0] for name, copies in case.got["state"].items()}
    return run, trees.values(update.state), end


def held_groups(**trees: Any) -> dict[str, Any]:
    """What the devices hold of each of these trees that has arrays."""
    return {part: held(tree) for part, tree in trees.items() if jax.tree.leaves(tree)}


def trial_of(arguments: dict[str, Any]) -> tuple[Trial, Update]:
    """The step on its devices, and one update of it, in the types that were given."""
    reference, batch, key = (arguments[name] for name in ("reference", "batch", "key"))
    own = [arguments["per_device"]] if isinstance(arguments["per_device"], str) else arguments["per_device"]
    devices = arguments["devices"] or jax.devices()
    groups = reference.groups if isinstance(reference, Grouped) and reference.groups > 1 else len(devices)
    devices = devices[: max(arguments["counts"] or [groups])]
    batch, key = (value(0) if callable(value) else value for value in (batch, key))
    keys = () if key is None else (key,)
    state, batch = trees.to_host((arguments["state"], batch))
    plain = Reference(reference, state, own, arguments["batch_axis"])
    step = arguments["step"] or arguments["make_step"](devices)
    layout = choose_layout(arguments["layout"], arguments["batch_axis"])
    with jax.transfer_guard("allow"):  # the reference is given arrays of the host
        values = plain((state, batch, *keys))
    update = Update(0, state, batch, keys, values, {}, arguments["batch_axis"])
    return Trial(step, plain, layout, devices), update


def timed(trial: Trial, update: Update) -> list[float]:
    """Milliseconds of calls in a row, each waited for, on a batch that is placed once."""
    state, batch, *key = trial.place(update)
    found = []
    for _ in range(WARM_UP + TIMED):
        started = time.perf_counter()
        returned = trial.call(state, batch, *key)
        found.append(1000 * (time.perf_counter() - started))
        state = returned["state"]
    return found[WARM_UP:]
