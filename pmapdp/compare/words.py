"""Put a comparison into words, for the page and for the terminal."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from rich.filesize import decimal

from pmapdp.collectives import describe_exchange

Run = dict[str, Any]
# If rounding alone differs, parameters after some updates with Adam differ by at most
# this.
ROUNDING = {"float64": 1e-9, "float32": 1e-2, "bfloat16": 0.3}
EQUAL = 1e-9  # relative; the results of a mistake are float64, so less is rounding


def describe(run: Run) -> dict[str, str]:
    """Write what was found of a run, by what it tells."""
    difference = run["largest_difference"]
    time = run["step_ms"]
    parts = [f"{part} {decimal(size)}" for part, size in run["memory"].items()]
    return {
        "result": f"{run['losses'][-1]:.4f}" if "losses" in run else run["verdict"],
        "difference": "another start" if difference is None else f"{difference:.1e}",
        "time": f"{time['median']:.3g} ms",
        "range": f"{time['low']:.3g} to {time['high']:.3g} ms",
        "rate": f"{run['examples_per_second']:,.0f}",
        "who": who_adds_up(run),
        "memory": f"{decimal(sum(run['memory'].values()))}: {', '.join(parts)}",
        "exchanged": describe_exchange(run["collectives"]),
    }


def who_adds_up(run: Run) -> str:
    """Say where the largest collective comes from."""
    if not run["collectives"]:
        return "nobody has to" if run["devices"] == 1 else "nobody"
    largest = run["collectives"][0]
    if largest["written"]:
        return f"you, {largest['source'].rpartition('/')[2]}"
    return "the compiler"


def summary(report: dict[str, Any]) -> str:
    """Say in one line what was compared."""
    config = report["config"]
    runs = report["runs"]
    machine = runs[-1]["machine"]
    size = f"{runs[0]['global_batch_size']:,} examples"
    if config is None:
        return f"{len(runs)} programs, {size} an update; {machine}"
    return (
        f"{config['recipe']}: {config['model']} on {config['dataset']}, "
        f"{len(runs[0]['losses']):,} updates of {size} by {config['optimizer']} at "
        f"{config['learning_rate']:g}, {config['dtype']}, seed {config['seed']}; "
        f"{machine}"
    )


def conclude(report: dict[str, Any]) -> str:
    """Say in one line if all results are equal."""
    runs = report["runs"]
    if report["config"] is None:
        wrong = [run for run in runs if run["verdict"] != "equal"]
        texts = [f"{run['name']}: {run['verdict']}" for run in wrong]
        found = "; ".join(texts) or "that each step equals its reference"
        return f"pmapdp.verify finds {found}."
    rounding = ROUNDING[report["config"]["dtype"]]
    far = [run["name"] for run in runs if not run["largest_difference"] <= rounding]
    if far:
        return (
            f"{', '.join(far)}: the parameters differ from a single device's, "
            "by more than rounding."
        )
    largest = max(run["largest_difference"] for run in runs)
    text = (
        "All end with the same parameters: rounding makes a difference of at most "
        f"{largest:.1e}."
    )
    if max(run["devices"] for run in runs) == 1:
        text += (
            " Nothing was split: try --devices 8, with JAX_PLATFORMS=cpu if you have "
            "one GPU."
        )
    return text


def overlaps(runs: Sequence[Run]) -> str:
    """Say which of the times on several devices don't differ."""
    pairs = []
    for one, two in combinations([run for run in runs if run["devices"] > 1], 2):
        first = one["step_ms"]
        second = two["step_ms"]
        if first["low"] <= second["high"] and second["low"] <= first["high"]:
            pairs.append(f"{one['name']} and {two['name']}")
    if not pairs:
        return ""
    return f"No difference shown, because the ranges overlap: {'; '.join(pairs)}."


def verdict(result: dict[str, Any]) -> str:
    """Say if a mistake's result is `equal`, or how far off: `gradient 31.0% off`."""
    wrong = [name for name in ("loss", "gradient") if result[name] > EQUAL]
    text = ", ".join(f"{name} {result[name]:.1%} off" for name in wrong) or "equal"
    # A gradient that only has another length differs by factor - 1.
    points_alike = abs(result["factor"] - 1 - result["gradient"]) < EQUAL
    if wrong == ["gradient"] and points_alike:
        text = f"gradient \u00d7 {result['factor']:.3g}"
    if not result["agree"]:
        text += "; another on each device"
    return text
