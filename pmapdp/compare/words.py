"""Put a comparison into words, for the page and for the terminal."""

import re
from collections.abc import Sequence

import numpy as np

from pmapdp.collectives import ARRAY, Instruction, array_bytes
from pmapdp.compare.results import Comparison, Measurement

# Up to this difference of the parameters, a comparison calls them the same. In float32
# and bfloat16 rounding may exceed it: Adam divides a gradient by its size, so one that
# is nearly 0 moves a parameter as far as any other.
ROUNDING = {"float64": 1e-9, "float32": 1e-2, "bfloat16": 0.3}

# A collective's name, result and origin in the compiled program.
HLO_LINE = re.compile(r'(?:ROOT )?(\S+) = (.*?) [\w-]+\(.*op_name="([^"]*)"')
LONGEST_ORIGIN = 100  # characters, because the compiler joins the names of many


def describe_batch(run: Measurement) -> str:
    """Return the shape of the batch that a strategy's step gets."""
    return str(run.holds["batch"].shape)


def describe_loss(run: Measurement) -> str:
    """Return a training's last loss."""
    return f"{run.losses[-1]:.4f}"


def describe_difference(run: Measurement) -> str:
    """Return the largest difference from the first run, to two digits."""
    if run.largest_difference is None:
        return "another start"
    return f"{run.largest_difference:.2g}"


def describe_time(run: Measurement) -> str:
    """Return an update's time in ms: the median, and the middle half of all times."""
    time = run.step_ms
    return f"{time.median:.3g} ({time.low:.3g}\u2013{time.high:.3g})"


def round_parts(numbers: Sequence[float]) -> list[float]:
    """Round numbers to two decimals, so that they add up to their rounded sum.

    Each is less than 0.01 off.
    """
    sums = np.round(np.cumsum(numbers), 2)
    return np.diff(sums, prepend=0).tolist()


def write_number(number: float, form: str = "z.2f") -> str:
    """Write a number, with a minus that isn't a hyphen."""
    return format(number, form).replace("-", "\u2212")


def who_adds_up(run: Measurement) -> str:
    """Say where the largest collective comes from."""
    if run.devices == 1:
        return "nobody has to"
    if not run.collectives:
        return "nobody"
    largest = run.collectives[0]
    if largest.written:
        return f"you, {largest.source.rpartition('/')[2]}"
    return "the compiler"


def shorten_hlo(collective: Instruction) -> str:
    """Return a collective's line of the compiled program, with its largest array."""
    parts = HLO_LINE.match(collective.hlo)
    if parts is None:
        return collective.kind
    name, result, origin = parts.groups()
    largest = max(
        ARRAY.finditer(result), key=lambda array: array_bytes(*array.groups())
    )
    shown = largest[0]
    if collective.arrays > 1:
        shown = f"(\u2026, {shown}, \u2026)"
    if len(origin) > LONGEST_ORIGIN:
        origin = origin[:LONGEST_ORIGIN] + "\u2026"
    return f'{name} = {shown} {collective.kind}(\u2026), \u2026 op_name="{origin}"'


def summary(comparison: Comparison) -> str:
    """Say in one line what was compared."""
    config = comparison.config
    runs = comparison.runs
    machine = runs[1].machine  # the first may be a single device's
    size = f"{runs[0].global_batch_size:,} examples"
    if config is None:
        return f"{len(runs)} programs, {size} an update; {machine}"
    return (
        f"{config.recipe}: {config.model} on {config.dataset}, "
        f"{len(runs[0].losses):,} updates of {size} by {config.optimizer} at "
        f"{config.learning_rate:g}, {config.dtype}; {machine}"
    )


def is_different(run: Measurement, first: Measurement) -> bool:
    """Return True if a run is farther from the first one than rounding explains."""
    if run.largest_difference is None:  # they start from different states
        return False
    rounding = max(ROUNDING[run.dtype], ROUNDING[first.dtype])
    return not run.largest_difference <= rounding  # NaN is not within rounding


def find_unequal(runs: Sequence[Measurement]) -> list[str]:
    """Name the runs that aren't proven equal to their reference and the first one."""
    return [
        run.name
        for run in runs
        if run.verdict not in ("", "equal") or is_different(run, runs[0])
    ]


def conclude(comparison: Comparison) -> str:
    """Say if all results are equal."""
    runs = comparison.runs
    if comparison.config is None:
        return conclude_programs(runs)
    names = find_unequal(runs)
    # NaN counts as the largest.
    farthest = runs[int(np.argmax([run.largest_difference or 0.0 for run in runs]))]
    reason = explain_difference(farthest, runs[0])
    if names:
        text = (
            f"{', '.join(names)}: the parameters differ from a single device's by up "
            f"to {describe_difference(farthest)}, {reason}"
        )
        if reason.endswith("mistake"):
            text += ": --dtype float64 tells which"
        return f"{text}."
    text = (
        "All end with the same parameters, up to rounding of at most "
        f"{describe_difference(farthest)}."
    )
    if max(run.devices for run in runs) == 1:
        text += (
            " Nothing was split: try --devices 8, with JAX_PLATFORMS=cpu if you have "
            "one GPU."
        )
    return text


def conclude_programs(runs: Sequence[Measurement]) -> str:
    """Say if the programs equal their references, and how far they are apart."""
    first, *others = runs
    text = "pmapdp.verify finds that each step equals its reference."
    if any(run.verdict != "equal" for run in runs):
        verdicts = [f"{run.label} {run.verdict}" for run in runs]
        text = f"pmapdp.verify finds {', '.join(verdicts)}."
    for run in others:
        if run.largest_difference is None:
            text += f" {run.label} starts from another state than {first.label}."
            continue
        text += f" After one update, the states of {first.label} and {run.label} "
        if run.largest_difference == 0:
            text += "are equal."
        else:
            reason = explain_difference(run, first)
            text += f"differ by {describe_difference(run)}, {reason}."
    return text


def explain_difference(run: Measurement, first: Measurement) -> str:
    """Say if rounding explains a run's difference from the first one."""
    if not is_different(run, first):
        return "within rounding"
    if run.dtype == "float64" or np.isnan(run.largest_difference or 0.0):
        return "which is more than rounding"
    return "by rounding or by a mistake"
