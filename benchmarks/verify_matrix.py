"""Count how often `verify` finds the mistake that is planted in a program.

    PYTHONPATH=.:tests/verify python benchmarks/verify_matrix.py --of 8
    PYTHONPATH=.:tests/verify python benchmarks/verify_matrix.py --of 1 --lines f.jsonl

The first runs every eighth combination; the second all, and goes on after a stop.

Each mistake meets update rules, keys, types and metrics. A report is right if the
mistake fits and no other that would be wrong, unknown if it fails and no mistake fits,
wrong if only others fit, and silent if nothing fails. The program without a mistake
must pass.
"""

import argparse
import collections
import itertools
import json
import time
from pathlib import Path

from planted import LAYOUTS, PLANTS, make_arguments

from pmapdp.devices import simulate

RULES = ("sgd", "momentum in bfloat16", "adam", "adamw", "clipping", "loss scale")
OTHERS = list(
    itertools.product(("state", "argument", "none"), (True, False), (False, True))
)  # key, float64, sums
# Rows that are true of a mistake besides its own.
TRUE_TOO = {
    "no all-reduce": {"drift", "local statistics"},
    "local statistics": {"mean of means"},
    "every device computes everything": {"scaled metrics", "sum for mean"},
}


def judge(plant, report) -> str:
    """Say if a report is right, unknown, wrong or silent."""
    rows = set(report.rows)
    if plant is None:
        return "wrong" if report.failed else "right"
    if not report.failed:
        return "silent"
    if rows - {plant.mistake, *TRUE_TOO.get(plant.mistake, ())}:
        return "wrong"
    return "right" if plant.mistake in rows else "unknown"


def combinations(every: int):
    """Every `every`-th combination: each mistake meets each update rule, and all else
    takes turns.
    """
    for number, (plant, rule) in enumerate(itertools.product((None, *PLANTS), RULES)):
        fixed = plant.options if plant else {}
        for place, (key, float64, sums) in enumerate(OTHERS):
            possible = (
                key != "none"
                if fixed.get("key") == "any"
                else fixed.get("key", key) == key
            )
            possible = possible and fixed.get("optimizer", rule) == rule
            if possible and (place + 3 * number + number // len(RULES)) % every == 0:
                strategies = plant.strategies if plant else tuple(LAYOUTS)
                yield (
                    plant,
                    rule,
                    key,
                    float64,
                    sums,
                    strategies[(number + place) % len(strategies)],
                )


def main() -> None:
    """Run the combinations and print how often each verdict came."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of", type=int, default=8)
    parser.add_argument(
        "--lines",
        type=Path,
        help="a file with one line of JSON a row, to which rows are added",
    )
    options = parser.parse_args()
    simulate(8)
    from pmapdp.verify import verify

    known = (
        options.lines
        and options.lines.exists()
        and options.lines.read_text().splitlines()
    )
    rows = {tuple(json.loads(line)["case"]): json.loads(line) for line in known or ()}
    found = collections.Counter()
    for plant, rule, key, float64, sums, strategy in combinations(options.of):
        name = f"{plant.mistake}: {plant.wrong}" if plant else "none"
        case = (
            name,
            rule,
            f"key {key}",
            "float64" if float64 else "float32",
            "sums" * sums,
            strategy,
        )
        if case not in rows:
            started = time.perf_counter()
            try:
                plants = [plant] if plant else []
                report = verify(
                    **make_arguments(
                        strategy, *plants, optimizer=rule, key=key, sums=sums
                    ),
                    float64=float64,
                )
                verdict, fits = judge(plant, report), report.rows
            except Exception as error:
                verdict, fits = "raised", [f"{type(error).__name__}: {error}"[:200]]
            rows[case] = {
                "case": case,
                "verdict": verdict,
                "rows": fits,
                "seconds": time.perf_counter() - started,
            }
            print(
                f"{verdict:8} {' | '.join(case)} {fits} {rows[case]['seconds']:.1f} s",
                flush=True,
            )
            if options.lines:
                with options.lines.open("a") as file:
                    file.write(json.dumps(rows[case]) + "\n")
        found[rows[case]["verdict"]] += 1
    print(dict(found))


if __name__ == "__main__":
    main()
