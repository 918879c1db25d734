"""The words of a comparison, for the page and for the terminal."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from rich.filesize import decimal

Run = dict[str, Any]
WRITTEN = {"psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "reduce_scatter", "ppermute", "all_to_all"}
ROUNDING = {"float64": 1e-9, "float32": 1e-2, "bfloat16": 0.3}  # of parameters after some updates with Adam


def summary(report: dict[str, Any]) -> str:
    """Say in one line what was compared."""
    config, first = report["config"], report["runs"][0]
    machine = report["runs"][-1]["machine"]
    if config is None:
        return f"{len(report['runs'])} programs, {first['global_batch_size']:,} examples an update; {machine}"
    return (
        f"{config['recipe']}: {config['model']} on {config['dataset']}, {len(first['losses']):,} updates of "
        f"{first['global_batch_size']:,} examples by {config['optimizer']} at {config['learning_rate']:g}, "
        f"{config['dtype']}, seed {config['seed']}; {machine}"
    )


def conclude(report: dict[str, Any]) -> str:
    """Say in one line if all results are equal."""
    runs = report["runs"]
    if report["config"] is None:
        wrong = [f"{run['name']}: {run['verdict']}" for run in runs if run["verdict"] != "equal"]
        return "pmapdp.verify finds " + ("; ".join(wrong) or "that each step equals its reference") + "."
    if off := [run["name"] for run in runs if run["largest_difference"] > ROUNDING[report["config"]["dtype"]]]:
        return f"{', '.join(off)}: the parameters aren't those of a single device, and it isn't rounding."
    largest = max(run["largest_difference"] for run in runs)
    said = f"All {len(runs)} end with the same parameters: rounding makes a difference of at most {largest:.1e}."
    is_split = max(run["devices"] for run in runs) > 1
    return (
        said if is_split else f"{said} Nothing was split: try --devices 8 (beside a single GPU with JAX_PLATFORMS=cpu)."
    )


def is_written(collective: dict[str, Any]) -> bool:
    """Tell if the program asks for a collective in a line of its own."""
    return bool(set(collective["operations"]) & WRITTEN)


def largest_collective(run: Run) -> dict[str, Any] | None:
    """Return the collective that exchanges most."""
    return max(run["collectives"], key=lambda each: each["bytes"], default=None)


def who_adds_up(run: Run) -> str:
    """Say in a few words who adds up."""
    found = largest_collective(run)
    if found is None:
        return "nobody has to" if run["devices"] == 1 else "nobody"
    return f"you, {found['source'].rpartition('/')[2]}" if is_written(found) else "the compiler"


def result(run: Run) -> str:
    """Write the last loss, or what verify finds."""
    return f"{run['losses'][-1]:.4f}" if "losses" in run else str(run["verdict"])


def difference(run: Run) -> str:
    """Write how far the state is from the first run's."""
    return "another start" if run["largest_difference"] is None else f"{run['largest_difference']:.1e}"


def time(run: Run) -> str:
    """Write the median time of an update, and where the middle half lies."""
    return "{median:.3g} ms ({low:.3g}\u2013{high:.3g})".format(**run["step_ms"])


def rate(run: Run) -> str:
    """Write the examples per second."""
    return f"{run['examples_per_second']:,.0f}"


def memory(run: Run) -> str:
    """Write the memory on a device, and its parts."""
    parts = ", ".join(f"{name} {decimal(size)}" for name, size in run["memory"].items())
    return f"{decimal(sum(run['memory'].values()))}: {parts}"


def holding(array: dict[str, Any] | None) -> str:
    """Say what a device holds of an array: `[64, 28] by P('data'), [8, 28] on a device`."""
    return f"{array['shape']} by {array['sharding']}, {array['on_device']} on a device" if array else "none"


def exchanged(collectives: Sequence[dict[str, Any]]) -> str:
    """Say what devices exchange: `1 all-reduce, 576 bytes`."""
    kinds = dict.fromkeys(each["kind"] for each in collectives)
    said = []
    for kind in kinds:
        sizes = [each["bytes"] for each in collectives if each["kind"] == kind]
        said.append(f"{len(sizes)} {kind}{'s' * (len(sizes) > 1)}, {decimal(sum(sizes))}")
    return "; ".join(said) or "no collective"


def explain_times(runs: Sequence[Run]) -> str:
    """Say which times don't differ, and why simulated devices are slow."""
    spans = [(run["name"], run["step_ms"]["low"], run["step_ms"]["high"]) for run in runs if run["devices"] > 1]
    pairs = [
        f"{a} and {b}" for (a, low, high), (b, start, end) in combinations(spans, 2) if low <= end and start <= high
    ]
    said = f"No difference shown, because the ranges overlap: {'; '.join(pairs)}. " if pairs else ""
    if any(run["simulated"] for run in runs):
        said += (
            "Simulated devices share this machine's cores, so eight do the same work as one, with more overhead. They "
            "show equal results, and what each device holds and exchanges. They never show a speed-up."
        )
    return said


def explain_memory(runs: Sequence[Run]) -> str:
    """Say why a single device needs more."""
    split = [run for run in runs if run["devices"] > 1]
    if not split or runs[0]["devices"] > 1:
        return ""
    N = split[0]["devices"]
    return (
        "The temporary arrays are mostly activations. A single device keeps those of the whole batch, and one of "
        f"{N} keeps those of its own {split[0]['global_batch_size'] // N} examples. Each device has all the weights."
    )
