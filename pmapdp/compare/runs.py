"""The runs of a comparison: one after the other, because they share the cores, each in a process of its own."""

import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pmapdp.compare.options import CompareOptions
from pmapdp.config import Config
from pmapdp.verify.trees import distance
from pmapdp.workers import WorkerError, run_worker


def work(config: Config, *arguments: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What a worker found with `config`, and the parameters. Raises `WorkerError` where it ended without a result."""
    found = run_worker("pmapdp.compare.worker", json.dumps(asdict(config)), *arguments)
    with np.load(io.BytesIO(found)) as file:
        arrays = dict(file)
    return json.loads(str(arrays.pop("result"))), arrays


def compare(config: Config, options: CompareOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """Run everything; the report, as it is written to the JSON file. `say` takes a line about each run that starts.

    Raises:
        WorkerError: the job cannot run on this machine with the largest number of devices.
    """
    most = max(options.devices, default=None)
    config = replace(
        config, strategy="jit", devices=most, steps=options.steps, mesh=None, layout="data", shard_state="none"
    )
    job, _ = work(config, "look")
    config = replace(config, global_batch_size=job["global_batch_size"], per_device_batch_size=None)
    counts = sorted(set(options.devices)) or [job["devices"]]
    plan: list[tuple[Any, int]] = [("single", 1)]
    plan += [(strategy, N) for N in counts for strategy in dict.fromkeys(options.strategies)]
    runs: list[dict[str, Any]] = []
    reference: dict[str, np.ndarray] = {}
    for number, (strategy, N) in enumerate(plan):
        say(f"run {number + 1} of {len(plan)}: {strategy} on {N} device{'s' if N > 1 else ''}")
        split = "none" if strategy == "single" else options.shard_state
        own = replace(config, strategy=strategy, devices=N, shard_state=split)
        result: dict[str, Any] = {"strategy": strategy, "devices": N, "error": None}
        try:
            found, parameters = work(own)
            reference = parameters if number == 0 else reference
            differences = [distance(parameters[name], wanted) for name, wanted in reference.items()]
            result |= found | {"largest_difference": max(differences, default=None)}
        except WorkerError as error:
            result |= {"error": str(error), "status": error.status}
        runs.append(result)
    return {"config": asdict(config) | {"shard_state": options.shard_state}, "job": job, "runs": runs}
