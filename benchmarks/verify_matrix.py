"""How often `pmapdp.verify` names a planted mistake, by mistake, update rule, key, type and kind of metrics.

    PYTHONPATH=.:tests/verify python benchmarks/verify_matrix.py --of 8      # every eighth combination; 1: all
    PYTHONPATH=.:tests/verify python benchmarks/verify_matrix.py --json matrix.json

A report is right where it gives the mistake's name and no name of another, unknown where it fails without a name,
wrong where it names another, and silent where nothing fails. The program without a mistake must pass.
"""

import argparse
import collections
import itertools
import json
import time

import training_programs as programs

from pmapdp.devices import simulate

# What is true of a mistake besides its own sentence. Under jit, the plant of "nonlinear" makes N gradients. Where every
# device computes everything, sums over the devices are N times as large.
TRUE_TOO = {
    "left out": {"drift"}, "no all-reduce": {"drift"}, "same mask": {"other random numbers"},
    "nonlinear": {"every device computes everything"}, "every device computes everything": {"scaled metrics"},
}  # fmt: skip
KEYS, FLOATS, METRICS = ("state", "none"), (True, False), (False, True)


def judge(mistake: str | None, report) -> str:
    """right, unknown, wrong or silent."""
    causes = set(report.causes)
    if mistake is None:
        return "right" if not report.failed else "wrong"
    if not report.failed:
        return "silent"
    cause = programs.CAUSE.get(mistake, mistake)
    if causes - {cause, "unknown", *TRUE_TOO.get(mistake, ())}:
        return "wrong"
    return "right" if cause in causes else "unknown"


def combinations(every: int):
    """Every `every`-th combination: each mistake meets each update rule, and all else takes turns."""
    others = list(itertools.product(KEYS, FLOATS, METRICS))
    for number, (mistake, optimizer) in enumerate(itertools.product((None, *programs.PLANTS), programs.OPTIMIZERS)):
        for place, (key, float64, sums) in enumerate(others):
            if (place + 3 * number + number // len(programs.OPTIMIZERS)) % every == 0:
                ways = programs.ways(mistake) if mistake else programs.WAYS
                yield mistake, optimizer, key, float64, sums, ways[(number + place) % len(ways)]


def main() -> None:
    """Run the combinations and print how often each verdict came."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of", type=int, default=8)
    parser.add_argument("--json")
    parser.add_argument("--only", help="names of mistakes, comma-separated")
    options = parser.parse_args()
    simulate(8)
    from pmapdp.verify import verify

    found, rows = collections.Counter(), []
    for mistake, optimizer, key, float64, sums, way in combinations(options.of):
        if options.only and str(mistake) not in options.only.split(","):
            continue
        started = time.perf_counter()
        chosen = {"optimizer": optimizer, "key": key, "sums": sums}
        try:
            report = verify(**programs.given(way, *([mistake] if mistake else []), **chosen), float64=float64)
            verdict, causes = judge(mistake, report), report.causes
        except Exception as error:
            verdict, causes = "raised", [f"{type(error).__name__}: {error}"[:200]]
        found[verdict] += 1
        case = [mistake or "none", optimizer, f"key {key}", "float64" if float64 else "float32", "sums" * sums, way]
        rows.append([verdict, *case, causes])
        print(f"{verdict:8} {' | '.join(case):90} {causes} {time.perf_counter() - started:.1f} s", flush=True)
    print(dict(found))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"found": found, "rows": rows}, file)


if __name__ == "__main__":
    main()
