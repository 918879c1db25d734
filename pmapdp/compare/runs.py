"""The runs of a comparison: one after the other, because they share the cores, each in a process of its own."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pmapdp.compare.table import Runs, run_name
from pmapdp.config import Config
from pmapdp.verify.trees import distance
from pmapdp.workers import run_worker


def compare(plan: Sequence[Config], say: Callable[[str], None]) -> Runs:
    """The results of the runs of `plan`, whose last is the reference. `say` takes a line about each that is done.

    Each gets the global batch that the first comes to on its devices.

    Raises:
        WorkerError: a run failed.
    """
    runs: Runs = []
    parameters: list[dict[str, np.ndarray]] = []  # of each run, after the last update
    batch: dict[str, Any] = {}
    for config in plan:
        found = run_worker("pmapdp.compare.worker", json.dumps(asdict(replace(config, **batch))))
        with np.load(io.BytesIO(found)) as file:
            arrays = dict(file)
        run = json.loads(str(arrays.pop("results")))
        runs.append(run)
        parameters.append(arrays)
        batch = {"global_batch_size": run["global_batch_size"], "per_device_batch_size": None}
        say(f"run {len(runs)} of {len(plan)} is done: {run_name(run)}")
    for run, arrays in zip(runs, parameters, strict=True):
        differences = [distance(arrays[name], wanted) for name, wanted in parameters[-1].items()]
        run["largest_difference"] = max(differences)
    return runs
