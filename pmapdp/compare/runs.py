"""The runs of a comparison: one after the other, because they share the cores, each in a process of its own."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pmapdp.compare.options import CompareOptions
from pmapdp.config import Config
from pmapdp.verify.trees import distance
from pmapdp.workers import WorkerError, run_workers


def work(config: Config, folder: Path, *arguments: str) -> dict[str, Any]:
    """The result of a worker on `config` in a new `folder`. Raises `WorkerError` where it ended without one."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(asdict(config)), encoding="utf-8")
    run_workers(["pmapdp.compare.worker", folder, *arguments])
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def compare(config: Config, options: CompareOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """Run everything; the report, as it is written to the JSON file. `say` takes a line about each run that starts.

    Raises:
        WorkerError: the job cannot run on this machine with the largest number of devices.
    """
    most = max(options.devices, default=None)
    config = replace(
        config, strategy="jit", devices=most, steps=options.steps, mesh=None, layout="data", shard_state="none"
    )
    with TemporaryDirectory(prefix="pmapdp-compare-") as temporary:
        job = work(config, Path(temporary, "look"), "look")
        config = replace(config, global_batch_size=job["global_batch_size"], per_device_batch_size=None)
        counts = sorted(set(options.devices)) or [job["devices"]]
        plan: list[tuple[Any, int]] = [("single", 1)]
        plan += [(strategy, N) for N in counts for strategy in dict.fromkeys(options.strategies)]
        runs: list[dict[str, Any]] = []
        for number, (strategy, N) in enumerate(plan):
            say(f"run {number + 1} of {len(plan)}: {strategy} on {N} device{'s' if N > 1 else ''}")
            split = "none" if strategy == "single" else options.shard_state
            own = replace(config, strategy=strategy, devices=N, shard_state=split)
            result: dict[str, Any] = {"strategy": strategy, "devices": N, "error": None}
            try:
                result |= work(own, Path(temporary, str(number)))
                result["largest_difference"] = largest_difference(Path(temporary, "0"), Path(temporary, str(number)))
            except WorkerError as error:
                result |= {"error": str(error), "status": error.status}
            runs.append(result)
    return {"config": asdict(config) | {"shard_state": options.shard_state}, "job": job, "runs": runs}


def largest_difference(reference: Path, run: Path) -> float | None:
    """The largest absolute difference of any parameter of two runs; None where the reference has failed."""
    if not (reference / "parameters.npz").exists():
        return None
    with np.load(reference / "parameters.npz") as wanted, np.load(run / "parameters.npz") as found:
        return max(distance(found[name], wanted[name]) for name in wanted.files)
