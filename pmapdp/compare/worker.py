"""A process of the comparison: `python -m pmapdp.compare.worker FOLDER [look]`. Not meant to be started by hand.

Reads FOLDER/config.json. Writes FOLDER/result.json and, after training, FOLDER/parameters.npz; with `look`, only
what the job is, without training.
"""

import json
import platform
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmapdp.compare.measure import measure
from pmapdp.config import Config
from pmapdp.devices import cores, describe
from pmapdp.errors import run_command
from pmapdp.job import prepare


def look(config: Config) -> dict[str, Any]:
    """What the job comes to on this machine; refuses one that cannot run."""
    job = prepare(config)
    return {
        "devices": len(job.devices),
        "global_batch_size": job.global_batch_size,
        "steps": job.total_steps,
        "training_examples": len(job.data.train.labels),
        "machine": {
            "devices": describe(job.devices),
            "simulated": len(job.devices) > 1 and job.devices[0].platform == "cpu",
            "cores": cores(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "jax": jax.__version__,
        },
    }


def main(arguments: list[str]) -> None:
    """The command."""
    folder = Path(arguments[0])
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = Config.from_json(settings)
    if "look" in arguments:
        result = look(config)
    else:
        result, state = measure(config)
        parameters = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(state.params)}
        np.savez(folder / "parameters.npz", **parameters)
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_command(main))
