"""Compare your own steps, each `file.py:program`: verify, compile and time them."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pmapdp.compare.measure import (
    describe_arrays,
    in_new_process,
    largest_difference,
    make_measurement,
)
from pmapdp.compare.results import Measurement
from pmapdp.devices import choose_devices
from pmapdp.errors import FailedError
from pmapdp.verify import trees
from pmapdp.verify.layouts import choose_layout, place_arguments
from pmapdp.verify.verification import resolve_value, verify_program

WARM_UP = 3  # calls that aren't timed
TIMED = 20  # calls
VERDICTS = {"passed": "equal", "failed": "FAILED", "incomplete": "not proven"}


def compare_programs(targets: Sequence[str], count: int | None) -> list[Measurement]:
    """Verify, compile and time each program, in a process of its own.

    Args:
        targets: What `python -m pmapdp.verify` takes, as "old.py:check".
        count: The number of devices. None: all.

    Returns:
        A measurement for each program.
    """
    results = [in_new_process(run_program, target, count) for target in targets]
    _, first_start, first_end = results[0]
    for run, start, end in results:
        same_shapes = shapes((start, end)) == shapes((first_start, first_end))
        if same_shapes and largest_difference(start, first_start) == 0:
            run.largest_difference = largest_difference(end, first_end)
    return [run for run, _, _ in results]


def shapes(tree: Any) -> Any:
    """Return a tree's structure with the shapes of its arrays."""
    return jax.tree.map(np.shape, tree)


def run_program(target: str, count: int | None) -> tuple[Measurement, Any, Any]:
    """Verify, compile and time one program.

    Returns:
        The measurement, and the state before and after an update, as one device has it.
    """
    available = choose_devices(count)  # before the file is run, which may use JAX
    print(f"{target}: verifying and timing", file=sys.stderr, flush=True)
    arguments, report = verify_program(target, available)
    for check in report.failed:
        if check.name == "runs":
            raise FailedError(f"{target} fails: {check.sentence}")
    if not hasattr(arguments["step"], "lower"):  # a plain function around the step
        arguments["step"] = jax.jit(arguments["step"])
    devices = list(arguments["devices"] or jax.devices())
    run = measure_step(target, arguments, devices)
    run.verdict = VERDICTS[report.verdict]
    run.report = str(report)
    # In float64, rounding is far smaller than a mistake. Not all programs allow it.
    if report.precision == "float64":
        run.dtype = "float64"
        with jax.enable_x64(True):
            start, end = make_first_update(arguments, devices, run.dtype)
    else:
        start, end = make_first_update(arguments, devices)
    return run, start, end


def measure_step(
    target: str, arguments: dict[str, Any], devices: list[jax.Device]
) -> Measurement:
    """Compile and time a program's step, and describe its arrays."""
    inputs = place_first_update(arguments, devices)
    holds = {"state": describe_arrays(inputs[0])}
    examples = len(devices)
    if arguments["batch"] is not None:
        holds["batch"] = describe_arrays(inputs[1])
        batch = resolve_value(0, arguments["batch"])
        shape = np.shape(jax.tree.leaves(batch)[0])
        examples = shape[arguments["batch_axis"]]
    return make_measurement(
        target,
        devices=devices,
        global_batch_size=examples,
        milliseconds=time_calls(arguments, devices),
        program=arguments["step"].lower(*inputs).compile(),
        holds=holds,
    )


def time_calls(arguments: dict[str, Any], devices: list[jax.Device]) -> list[float]:
    """Time calls from the same state, in milliseconds."""
    milliseconds = []
    for _ in range(WARM_UP + TIMED):
        # The step may donate its arguments, so each call gets new ones.
        inputs = jax.block_until_ready(place_first_update(arguments, devices))
        started = time.perf_counter()
        jax.block_until_ready(arguments["step"](*inputs))
        milliseconds.append(1000 * (time.perf_counter() - started))
    return milliseconds[WARM_UP:]


def make_first_update(
    arguments: dict[str, Any], devices: list[jax.Device], dtype: str | None = None
) -> tuple[Any, Any]:
    """Return the state before and after an update, as one device has it."""
    inputs = place_first_update(arguments, devices, dtype)
    start = trees.to_host(arguments["state"], dtype)
    state = arguments["step"](*inputs)
    # A step returns the state, or the state and more.
    if str(jax.tree.structure(state)) != str(jax.tree.structure(inputs[0])):
        state = state[0]
    end = jax.tree.map(as_one_device, state, start)
    return jax.tree.map(as_numbers, start), jax.tree.map(as_numbers, end)


def place_first_update(
    arguments: dict[str, Any], devices: list[jax.Device], dtype: str | None = None
) -> tuple[Any, ...]:
    """Place state, batch and key of the first update as the program's layout says.

    With `dtype`, their floats have this type.
    """
    # Copies, because a step may donate what it's given.
    state = trees.to_host(arguments["state"], dtype)
    batch = trees.to_host(resolve_value(0, arguments["batch"]), dtype)
    key = resolve_value(0, arguments["key"])
    layout = choose_layout(arguments["layout"], arguments["batch_axis"])
    return place_arguments(state, batch, key, layout, arguments["per_device"], devices)


def as_one_device(x: Any, like: Any) -> Any:
    """Return an array without the device axis that pmap adds."""
    if np.shape(x) == np.shape(like):
        return x
    return x.addressable_shards[0].data[0]


def as_numbers(x: Any) -> np.ndarray:
    """Copy an array or a random key to the host as numbers."""
    if trees.is_key(x):
        x = jax.random.key_data(x)
    return np.asarray(x)
