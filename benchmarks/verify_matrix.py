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
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from planted import LAYOUTS, PLANTS, Plant, make_arguments

from pmapdp.devices import simulate
from pmapdp.verify import Report, verify

UPDATE_RULES = (
    "sgd",
    "momentum in bfloat16",
    "adam",
    "adamw",
    "clipping",
    "loss scale",
)
KEYS = ("state", "argument", "none")
SETTINGS = list(itertools.product(KEYS, (True, False), (False, True)))
# Mistakes that are true of a program besides the planted one.
TRUE_TOO = {
    "no all-reduce": {"drift", "local statistics"},
    "local statistics": {"mean of means"},
    "every device computes everything": {"scaled metrics", "sum for mean"},
}


class Combination(NamedTuple):
    """A planted mistake in one program.

    Attributes:
        plant: The mistake, or None.
        rule: The update rule.
        key: Where the random key is.
        float64: `verify` compares in float64 if it can.
        sums: Metrics are sums and counts.
        strategy: The strategy of the step.
    """

    plant: Plant | None
    rule: str
    key: str
    float64: bool
    sums: bool
    strategy: str

    @property
    def name(self) -> str:
        """All of it in one line, which is also its key in a file of results."""
        mistake = "none"
        if self.plant:
            mistake = f"{self.plant.mistake}: {self.plant.wrong}"
        parts = [mistake, self.rule, f"key {self.key}"]
        parts.append("float64" if self.float64 else "float32")
        if self.sums:
            parts.append("sums")
        return " | ".join([*parts, self.strategy])


def fits(plant: Plant | None, rule: str, key: str) -> bool:
    """Return True if a mistake shows with this update rule and key."""
    if plant is None:
        return True
    if plant.options.get("optimizer", rule) != rule:
        return False
    if plant.options.get("key") == "any":
        return key != "none"
    return plant.options.get("key", key) == key


def combinations(every: int) -> Iterator[Combination]:
    """Yield every `every`-th combination.

    Each mistake meets each update rule, and all else takes turns.
    """
    pairs = itertools.product((None, *PLANTS), UPDATE_RULES)
    for number, (plant, rule) in enumerate(pairs):
        strategies = plant.strategies if plant else tuple(LAYOUTS)
        for place, (key, float64, sums) in enumerate(SETTINGS):
            turn = place + 3 * number + number // len(UPDATE_RULES)
            if turn % every == 0 and fits(plant, rule, key):
                strategy = strategies[(number + place) % len(strategies)]
                yield Combination(plant, rule, key, float64, sums, strategy)


def judge(plant: Plant | None, report: Report) -> str:
    """Say if a report is right, unknown, wrong or silent."""
    mistakes = set(report.mistakes)
    if plant is None:
        return "wrong" if report.failed else "right"
    if not report.failed:
        return "silent"
    if mistakes - {plant.mistake, *TRUE_TOO.get(plant.mistake, ())}:
        return "wrong"
    return "right" if plant.mistake in mistakes else "unknown"


def run(combination: Combination) -> dict[str, Any]:
    """Verify a combination, and return the verdict as an object of JSON."""
    plants = [combination.plant] if combination.plant else []
    started = time.perf_counter()
    try:
        arguments = make_arguments(
            combination.strategy,
            *plants,
            optimizer=combination.rule,
            key=combination.key,
            sums=combination.sums,
        )
        report = verify(**arguments, float64=combination.float64)
        verdict = judge(combination.plant, report)
        mistakes = report.mistakes
    except Exception as error:
        verdict = "raised"
        mistakes = [f"{type(error).__name__}: {error}"[:200]]
    return {
        "name": combination.name,
        "verdict": verdict,
        "mistakes": mistakes,
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    """Run the combinations and print how often each verdict came."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of", type=int, default=8, help="run every OF-th combination")
    parser.add_argument(
        "--lines",
        type=Path,
        help="file of results, one line of JSON each, which is read and added to",
    )
    options = parser.parse_args()
    simulate(8)
    results = {}
    if options.lines and options.lines.exists():
        for line in options.lines.read_text().splitlines():
            result = json.loads(line)
            results[result["name"]] = result
    verdicts = collections.Counter()
    for combination in combinations(options.of):
        name = combination.name
        if name not in results:
            result = run(combination)
            results[name] = result
            seconds = f"{result['seconds']:.1f} s"
            print(f"{result['verdict']:8} {name} {result['mistakes']} {seconds}")
            sys.stdout.flush()
            if options.lines:
                with options.lines.open("a") as file:
                    file.write(json.dumps(result) + "\n")
        verdicts[results[name]["verdict"]] += 1
    print(dict(verdicts))


if __name__ == "__main__":
    main()
