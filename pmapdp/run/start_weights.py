"""Start from the weights of another run, or of an exported file: `--init-from runs/first`, `--init-from model.zip`."""

import dataclasses
import json
import os
from typing import Any

import jax
import numpy as np
from flax import nnx

from pmapdp.errors import UserError
from pmapdp.files import open_arrays
from pmapdp.run.damage import DamagedError
from pmapdp.run.trained import open_to_read
from pmapdp.state import Task

ADVICE = "name the --workdir of a run, or a file of python -m pmapdp.export"
ARRAYS = "arrays/"  # where an exported file has them


def with_weights(task: Task, path: str) -> tuple[Task, dict[str, Any]]:
    """The task, its model with the weights of a run or an exported file, and what was taken, for the log.

    An array is taken where the model has one of its name and shape; the others stay as the seed made them. A
    `UserError` says that there is none to take, or that they cannot be read.
    """
    theirs, step = of_run(path) if os.path.isdir(path) else of_file(path)
    left: list[str] = []

    def chosen(where: Any, ours: np.ndarray) -> np.ndarray:
        name = jax.tree_util.keystr(where[1:], simple=True, separator=".")
        if (found := theirs.get(name)) is not None and found.shape == ours.shape:
            return found.astype(ours.dtype)
        there = "is not there" if found is None else f"has the shape {list(found.shape)} there"
        left.append(f"{name} {list(ours.shape)} ({there})")
        return ours

    arrays = jax.tree_util.tree_map_with_path(chosen, task.arrays_of(task.model))
    if len(left) == len(jax.tree.leaves(arrays)):
        raise UserError(f"--init-from {path} has no array of {task.name}: its {left[0]}, and so all others; {ADVICE}")
    structure, random = task.constant
    model = nnx.merge(structure, arrays[0], random, arrays[1], copy=True)
    taken = {"init_from": path, "of_step": step, "arrays": len(jax.tree.leaves(arrays)) - len(left), "left_out": left}
    return dataclasses.replace(task, model=model), taken


def of_run(path: str) -> tuple[dict[str, np.ndarray], int]:
    """The arrays of the newest intact checkpoint of a run, by name, and its step."""
    checkpoints = open_to_read(path)
    for step in reversed(checkpoints.steps()):
        try:
            trees = checkpoints.weights(step)
        except DamagedError:
            continue
        leaves = [leaf for tree in trees.values() for leaf in jax.tree_util.tree_leaves_with_path(tree)]
        return {jax.tree_util.keystr(where, simple=True, separator="."): leaf for where, leaf in leaves}, step
    raise UserError(f"--init-from {path} holds no intact checkpoint: {ADVICE}")


def of_file(path: str) -> tuple[dict[str, np.ndarray], int]:
    """The arrays of an exported file, by name, and its step. The program in it is not run."""
    with open_arrays(path, advice=ADVICE) as file:
        metadata = json.loads(bytes(file["metadata.json"]))
        arrays = {name.replace("/", "."): file[ARRAYS + name] for name in metadata["arrays"]}
        return arrays, int(metadata["step"])


def sentence(taken: dict[str, Any]) -> str:
    """What was taken, in a line for the log."""
    line = f"starts from {taken['arrays']} arrays of {taken['init_from']}, which had made {taken['of_step']:,} updates"
    return line + (f"; as the seed makes them: {', '.join(taken['left_out'])}" if taken["left_out"] else "")
