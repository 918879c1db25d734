"""Starts each run of a comparison in a process of its own, one after the other, because they share the cores."""

import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pmapdp.compare.options import CompareOptions
from pmapdp.config import Config
from pmapdp.errors import UserError


class WorkerError(Exception):
    """A process ended without a result; `status` is its exit status."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


def work(config: Config, folder: Path, *arguments: str) -> dict[str, Any]:
    """Start a worker on `config` in a new `folder` and wait for its result.

    Raises:
        WorkerError: it ended without one; says the last line that it wrote.
    """
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dataclasses.asdict(config)), encoding="utf-8")
    command = [sys.executable, "-m", "pmapdp.compare.worker", str(folder), *arguments]
    process = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if process.returncode:
        raise WorkerError(failure(process.returncode, process.stderr), process.returncode)
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def failure(status: int, stderr: str) -> str:
    """One line about a process that failed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    last = lines[-1].removeprefix("error: ") if lines else "it said nothing"
    return last if status > 0 else f"ended by {signal.Signals(-status).name}: {last}"


def compare(config: Config, options: CompareOptions, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run everything; the report, as it is written to the JSON file.

    Args:
        config: the job; its strategy, devices and steps are replaced.
        options: what to compare.
        say: takes a line about the run that starts.

    Raises:
        UserError: the job cannot run on this machine with the largest number of devices.
    """
    most = max(options.device_counts, default=None)
    split = options.shard_state
    config = dataclasses.replace(
        config, strategy="jit", devices=most, steps=options.steps, mesh=None, layout="data", shard_state="none"
    )
    with TemporaryDirectory(prefix="pmapdp-compare-") as temporary:
        try:
            job = work(config, Path(temporary, "look"), "look")
        except WorkerError as error:
            raise UserError(str(error)) from None
        B = job["global_batch_size"]
        config = dataclasses.replace(config, global_batch_size=B, per_device_batch_size=None)
        counts = sorted(set(options.device_counts)) or [job["devices"]]
        plan: list[tuple[Any, int]] = [("single", 1)]
        plan += [(strategy, N) for N in counts for strategy in dict.fromkeys(options.strategies)]
        runs: list[dict[str, Any]] = []
        for number, (strategy, N) in enumerate(plan):
            say(f"run {number + 1} of {len(plan)}: {strategy} on {N} device{'s' if N > 1 else ''}")
            run = dataclasses.replace(
                config, strategy=strategy, devices=N, shard_state="none" if strategy == "single" else split
            )
            result: dict[str, Any] = {"strategy": strategy, "devices": N, "error": None}
            try:
                result |= work(run, Path(temporary, str(number)))
                result["final_loss"] = result["losses"][-1]
                result["largest_difference"] = largest_difference(Path(temporary), 0, number)
            except WorkerError as error:
                result["error"] = str(error)
            runs.append(result)
    settings = dataclasses.asdict(config) | {"shard_state": split}
    for field in ("strategy", "devices"):
        del settings[field]
    return {"config": settings, "job": job, "runs": runs}


def largest_difference(folder: Path, reference: int, run: int) -> float | None:
    """The largest absolute difference of any parameter of two runs; None where the reference has failed."""
    if not (folder / str(reference) / "result.json").exists():
        return None
    files = [folder / str(number) / "parameters.npz" for number in (reference, run)]
    with np.load(files[0]) as wanted, np.load(files[1]) as found:
        return max(float(np.abs(found[name] - wanted[name]).max()) for name in wanted.files)
