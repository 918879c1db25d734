"""Do simulated devices abort? Many long runs, each in a process of its own. Not part of the tests: it takes hours.

    python tests/support/stress_devices.py                                  # 20 runs of 1,000 steps with each strategy
    python tests/support/stress_devices.py --devices 4 --runs 3 --steps 500 --model cnn

Prints one line a run and exits with status 1 if any run ended otherwise than with its last step.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from launch import train


def one_run(strategy: str, devices: int, steps: int, model: str, seed: int, folder: str) -> str | None:
    """Train for `steps` steps; None if all went well, else what happened."""
    file = Path(folder) / f"{strategy}-{seed}.jsonl"
    done = train(
        *("--strategy", strategy, "--devices", devices, "--model", model, "--global-batch-size", 8 * devices),
        *("--epochs", 1_000_000, "--steps", steps, "--schedule", "constant", "--learning-rate", 1e-4),
        *("--seed", seed, "--no-progress", "--metrics-file", file),
        timeout=3600,
    )
    last = file.read_text().splitlines()[-1] if file.exists() else ""
    if done.returncode == 0 and f'"event": "end", "steps": {steps},' in last:
        return None
    reason = (done.stderr.strip() or "no message").splitlines()[-1]
    return f"exit status {done.returncode}: {reason}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--strategies", nargs="+", default=["pmap", "jit", "shard_map"])
    options = parser.parse_args()
    aborts = 0
    with tempfile.TemporaryDirectory() as folder:
        for strategy in options.strategies:
            for seed in range(options.runs):
                clock = time.monotonic()
                failure = one_run(strategy, options.devices, options.steps, options.model, seed, folder)
                aborts += failure is not None
                print(f"{strategy} run {seed}: {failure or 'ok'}, {time.monotonic() - clock:.0f} s", flush=True)
    print(f"{aborts} of {len(options.strategies) * options.runs} runs aborted")
    return 1 if aborts else 0


if __name__ == "__main__":
    sys.exit(main())
