"""Put a comparison into words, for the page and for the terminal."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from rich.filesize import decimal

Run = dict[str, Any]
ROUNDING = {
    "float64": 1e-9,
    "float32": 1e-2,
    "bfloat16": 0.3,
}  # of parameters after some updates with Adam
EQUAL = 1e-9  # relative difference of a pitfall's results, which are float64: less is rounding


def describe(run: Run) -> dict[str, str]:
    """Write what was found of a run, by what it tells."""
    far, largest = run["largest_difference"], next(iter(run["collectives"]), None)
    if largest is None:
        who = "nobody has to" if run["devices"] == 1 else "nobody"
    else:
        who = (
            f"you, {largest['source'].rpartition('/')[2]}"
            if largest["written"]
            else "the compiler"
        )
    parts = ", ".join(f"{part} {decimal(size)}" for part, size in run["memory"].items())
    return {
        "result": f"{run['losses'][-1]:.4f}" if "losses" in run else run["verdict"],
        "difference": "another start" if far is None else f"{far:.1e}",
        "time": "{median:.3g} ms ({low:.3g}\u2013{high:.3g})".format(**run["step_ms"]),
        "rate": f"{run['examples_per_second']:,.0f}",
        "who": who,
        "memory": f"{decimal(sum(run['memory'].values()))}: {parts}",
        "exchanged": exchanged(run["collectives"]),
    }


def exchanged(collectives: Sequence[dict[str, Any]]) -> str:
    """Say what devices exchange: `1 all-reduce, 576 bytes`."""
    sizes: dict[str, list[int]] = {}
    for each in collectives:
        sizes.setdefault(each["kind"], []).append(each["bytes"])
    said = [
        f"{len(each)} {kind}{'s' * (len(each) > 1)}, {decimal(sum(each))}"
        for kind, each in sizes.items()
    ]
    return "; ".join(said) or "no collective"


def summary(report: dict[str, Any]) -> str:
    """Say in one line what was compared."""
    config, first, machine = (
        report["config"],
        report["runs"][0],
        report["runs"][-1]["machine"],
    )
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
        wrong = [
            f"{run['name']}: {run['verdict']}"
            for run in runs
            if run["verdict"] != "equal"
        ]
        return (
            "pmapdp.verify finds "
            + ("; ".join(wrong) or "that each step equals its reference")
            + "."
        )
    if off := [
        run["name"]
        for run in runs
        if not run["largest_difference"] <= ROUNDING[report["config"]["dtype"]]
    ]:
        return f"{', '.join(off)}: the parameters differ from a single device's, by more than rounding."
    largest = max(run["largest_difference"] for run in runs)
    said = f"All end with the same parameters: rounding makes a difference of at most {largest:.1e}."
    if max(run["devices"] for run in runs) == 1:
        said += " Nothing was split: try --devices 8, with JAX_PLATFORMS=cpu if you have one GPU."
    return said


def overlaps(runs: Sequence[Run]) -> str:
    """Say which of the times on several devices don't differ."""
    spans = [
        (run["name"], run["step_ms"]["low"], run["step_ms"]["high"])
        for run in runs
        if run["devices"] > 1
    ]
    pairs = [
        f"{a} and {b}"
        for (a, low, high), (b, start, end) in combinations(spans, 2)
        if low <= end and start <= high
    ]
    return (
        f"No difference shown, because the ranges overlap: {'; '.join(pairs)}."
        if pairs
        else ""
    )


def verdict(result: dict[str, Any]) -> str:
    """Say if a pitfall's result is `equal`, or what is off and by how much, for example `gradient 31.0% off`."""
    wrong = [what for what in ("loss", "gradient") if result[what] > EQUAL]
    said = ", ".join(f"{what} {result[what]:.1%} off" for what in wrong) or "equal"
    if (
        wrong == ["gradient"] and abs(result["factor"] - 1 - result["gradient"]) < EQUAL
    ):  # in the same direction
        said = f"gradient \u00d7 {result['factor']:.3g}"
    return said + ("" if result["agree"] else "; another on each device")
