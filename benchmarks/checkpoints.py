"""What checkpoints cost: `python -m benchmarks.checkpoints [--epochs 41] [--every 50] [flags of pmapdp.train]`.

One training writes a checkpoint every so many updates in every other epoch, and in those between only the one at the
end, which all write. An epoch with checkpoints is compared with the mean of its two neighbours, because the speed of a
shared machine drifts; the median of these ratios is printed.
"""

import contextlib
import dataclasses
import io
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import at_least_one, make_parser, parse_config
from pmapdp import cli, devices
from pmapdp.job import prepare
from pmapdp.run.running import Run
from pmapdp.state import TrainState
from pmapdp.train import train

DEFAULT_JOB = ["--dataset", "mnist", "--per-device-batch-size", "64"]


def epochs_in_turn(per_epoch: int, every: int) -> None:
    """Let the trainer write checkpoints during the epochs 2, 4, ... only; an epoch has `per_epoch` updates."""
    after_update = Run.after_update

    def after_update_in_turn(run: Run, step: int, state: TrainState, sums: Any) -> None:
        due = every if (step - 1) // per_epoch % 2 else None
        run.config = dataclasses.replace(run.config, checkpoint_every=due)
        after_update(run, step, state, sums)

    Run.after_update = after_update_in_turn  # type: ignore[method-assign]


def main(arguments: list[str]) -> None:
    """The command."""
    parser = make_parser(__doc__, "checkpoints", "--epochs 41")
    parser.add_argument("--epochs", type=at_least_one, default=41, help="of the training; 7 or more")
    parser.add_argument("--every", type=at_least_one, default=50, help="updates between checkpoints")
    options, flags = parser.parse_known_args(arguments)
    if options.epochs < 7:
        parser.error(f"--epochs {options.epochs} leaves too little to compare after the first two")
    flags = flags or DEFAULT_JOB
    own = ["--no-progress", "--epochs", str(options.epochs), "--checkpoint-every", str(options.every)]
    with tempfile.TemporaryDirectory() as folder:
        config = parse_config([*flags, *own, "--workdir", str(Path(folder) / "run")])
        made = prepare(config)
        epochs_in_turn(made.train_batches.per_epoch, options.every)
        with contextlib.redirect_stdout(io.StringIO()):
            times = [float(epoch["step_ms"]) for epoch in train(config).epochs]
    with_checkpoints = range(3, options.epochs - 1, 2)  # from 0; the first two epochs warm up
    ratios = [2 * times[e] / (times[e - 1] + times[e + 1]) for e in with_checkpoints]
    without = [times[e] for e in range(2, options.epochs, 2)]
    print(f"{' '.join(flags)} on {devices.cores()} cores: {devices.describe(made.devices)}")
    typical = statistics.median(times[e] for e in with_checkpoints)
    print(f"a step: {statistics.median(without):.2f} ms, with a checkpoint every {options.every}: {typical:.2f} ms")
    low, _, high = statistics.quantiles(ratios)
    print(f"{len(ratios)} ratios: median {statistics.median(ratios):.3f}, half of them from {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    sys.exit(cli.run(main))
