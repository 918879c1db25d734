"""Write the results of a run: as JSON lines, and for TensorBoard."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, TextIO

from pmapdp.errors import explain_errors
from pmapdp.files import ADVICE, open_file, open_regular
from pmapdp.job import Job
from pmapdp.metrics import Meter

UPDATES_BETWEEN_POINTS = 10  # in TensorBoard, without --log-every


class MetricsFiles:
    """The metrics files of a run, and its files for TensorBoard.

    Only the first process writes them. `stack` closes them.
    """

    def __init__(self, job: Job, stack: contextlib.ExitStack):
        config = job.config
        self.log_every = config.log_every
        self.parts = list(job.batches)  # of the data
        self.logged_step = 0
        self.files: list[TextIO] = []
        self.tensorboard: Any = None
        if not job.processes.is_process_0:
            return
        if config.metrics_file:
            self.files.append(stack.enter_context(open_lines(config.metrics_file)))
        if config.workdir:
            from tensorboardX import SummaryWriter  # takes a while to import

            file = open_lines(Path(config.workdir) / "metrics.jsonl")
            self.files.append(stack.enter_context(file))
            writer = contextlib.closing(SummaryWriter(config.workdir))
            self.tensorboard = stack.enter_context(writer)
            settings = [f"- {name}: {value}" for name, value in vars(config).items()]
            self.tensorboard.add_text("configuration", "\n".join(settings))

    def write_event(self, name: str, **values: Any) -> None:
        """Append a JSON line `{"event": name, ...}` to the metrics files."""
        for file in self.files:
            file.write(json.dumps({"event": name, **values}) + "\n")

    def write_losses(self, meter: Meter) -> None:
        """Write the losses that were read since the last call, of each N-th update."""
        if not meter.losses or meter.losses[-1][0] == self.logged_step:
            return  # nothing was read, as after most updates
        points_every = self.log_every or UPDATES_BETWEEN_POINTS
        for step, loss in meter.losses:
            if step <= self.logged_step:
                continue
            if self.log_every and step % self.log_every == 0:
                self.write_event("update", step=step, loss=loss)
            if self.tensorboard and step % points_every == 0:
                self.tensorboard.add_scalar("train/loss_of_update", loss, step)
        self.logged_step = meter.losses[-1][0]

    def end_epoch(self, results: dict[str, Any], meter: Meter) -> None:
        """Write the results of an epoch."""
        self.write_losses(meter)
        self.write_event("epoch", **results)
        if self.tensorboard:
            step = results["step"]
            for name in ("learning_rate", "examples_per_second"):
                if results[name] is not None:  # the speed, if no update was timed
                    self.tensorboard.add_scalar(name, results[name], step)
            for part in self.parts:
                for metric, value in results.get(part, {}).items():
                    if metric != "examples":  # the same in each epoch
                        self.tensorboard.add_scalar(f"{part}/{metric}", value, step)
            self.tensorboard.flush()


def open_lines(path: str | Path) -> TextIO:
    """Open a text file to append whole lines.

    Half a line at its end, which a kill may leave, is ended first.
    """
    with explain_errors(f"{path} cannot be written", ADVICE):
        file = open_regular(
            path, "a+", buffering=1, encoding="utf-8", errors="backslashreplace"
        )
        end = os.fstat(file.fileno()).st_size
        if end and os.pread(file.fileno(), 1, end - 1) != b"\n":
            file.write("\n")
        return file


def read_epochs(folder: str | Path) -> list[dict[str, Any]]:
    """Return the results of the epochs in the metrics file of a run, in its order."""
    file = Path(folder) / "metrics.jsonl"
    if not file.exists():
        return []
    epochs = []
    with open_file(file, advice=ADVICE) as lines:
        for line in lines:
            # A kill may have left half a line.
            with contextlib.suppress(ValueError):
                values = json.loads(line)
                if values.pop("event") == "epoch":
                    epochs.append(values)
    return epochs
