"""Save and restore checkpoints with Orbax, in the background, and whole or not at all. Lesson 14 teaches this file.

A checkpoint holds the train state as it is on one device. It knows nothing of the strategy or the number of devices
that wrote it, so any other may resume from it.
"""

import contextlib
import dataclasses
import glob
import json
import logging
import os
import shutil
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.errors import UserError, explain_errors
from pmapdp.files import open_file
from pmapdp.run.replicas import checksums
from pmapdp.run.workdir import identity, read_config, require_same_run
from pmapdp.state import Task, TrainState, initial_state, named_leaves


def orbax() -> ModuleType:
    """Import `orbax.checkpoint` when it is needed, because that takes a second."""
    import orbax.checkpoint

    logging.getLogger("absl").setLevel(logging.CRITICAL)  # its threads log the errors that the caller gets as well
    return orbax.checkpoint


def literal_path(folder: Path) -> Any:
    """Make a path for Orbax, which lists files by patterns, and would take the brackets in `run[1]` for one."""
    from etils.epath.gpath import PosixGPath

    class LiteralPath(PosixGPath):  # type: ignore[misc] # etils has no types
        def glob(self, pattern: str) -> Iterator["LiteralPath"]:
            return (self / name for name in glob.glob(pattern, root_dir=self))

    return LiteralPath(folder.absolute())


class Checkpoint(NamedTuple):
    """A train state, and how far its run had come."""

    state: TrainState  # without any device axis
    step: int  # updates made
    progress: dict[str, Any]  # JSON: the open epoch's sums, the best and last results, and the identity as "belongs_to"


class Checkpoints:
    """The checkpoints in a folder: the `keep` newest, and the best epoch's.

    All processes make the same calls, and each writes and reads its own shards. With `read_only` the folder stays as it
    is, even what a running process is writing there. A `UserError` says that a checkpoint is damaged, or that the disk
    has no space for one.
    """

    def __init__(self, folder: Path, keep: int = 3, *, read_only: bool = False):
        self.folder = folder
        if not read_only:
            folder.mkdir(parents=True, exist_ok=True)
        policies = orbax().checkpoint_managers
        self.policies = [policies.LatestN(keep), policies.CustomSteps([])]
        options = orbax().CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(self.policies),
            cleanup_tmp_directories=not read_only,  # what a killed run left half-written
            read_only=read_only,
            # Otherwise a folder that can't be made keeps threads waiting for minutes.
            async_options=orbax().AsyncOptions(create_directories_asynchronously=False),
        )
        self.manager = orbax().CheckpointManager(literal_path(folder), options=options)
        self.wait, self.close = self.manager.wait_until_finished, self.manager.close

    def steps(self) -> list[int]:
        """List the updates after which there are checkpoints, oldest first."""
        return sorted(self.manager.all_steps())

    def save(self, step: int, state: TrainState, progress: dict[str, Any]) -> None:
        """Start to write the state after update `step`, and return before the disk has it.

        The state's memory may be used again when this returns.
        """
        needed = 2 * sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        if shutil.disk_usage(self.folder).free < needed:  # if a write failed, Orbax's threads would wait for minutes
            raise UserError(
                f"a checkpoint of up to {needed / 1e6:,.0f} MB could not be written to {self.folder} (No space left on "
                "device): those before it are intact, so free some space and start the same command again"
            )
        facts = {"shapes": shapes_of(state), "checksum": checksum(state, progress)}
        self.wait()
        self.policies[1] = orbax().checkpoint_managers.CustomSteps([progress.get("best", {}).get("step")])
        args = orbax().args
        items = args.Composite(state=args.StandardSave(state), progress=args.JsonSave(progress | facts))
        self.manager.save(step, args=items)

    def read(self, step: int, task: Task, sharding: Any = None) -> Checkpoint:
        """Read the checkpoint after update `step`. A `UserError` says that it's damaged, or of another model.

        Args:
            step: updates made.
            task: its model and optimizer.
            sharding: of the arrays (one, or a pytree like the state); each device reads only its shards. None: on the
                host, as NumPy arrays.
        """
        wanted = jax.eval_shape(lambda: initial_state(task))
        with self.read_errors(step):
            progress = self.restore(step, progress=orbax().args.JsonRestore())
            theirs, ours = progress.pop("shapes"), shapes_of(wanted)
            for name in ours | theirs:
                if theirs.get(name) != ours.get(name):
                    raise UserError(
                        f"the checkpoint of step {step} in {self.folder} is of another model or optimizer, in which "
                        f"{name} has the shape {theirs.get(name)}, now {ours.get(name)}: use them as they were, or "
                        "another folder"
                    )
            if sharding is None:
                wanted = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), wanted)
            else:
                places = jax.tree.broadcast(sharding, wanted)
                wanted = jax.tree.map(lambda x, place: x.update(sharding=place), wanted, places)
            state = self.restore(step, state=orbax().args.StandardRestore(wanted))
            on_devices = jax.device_put(state) if sharding is None else state  # processes can't move their shards
            if progress.pop("checksum") != checksum(on_devices, progress):
                raise ValueError("its numbers are not those that were written")
        return Checkpoint(state, step, progress)

    def read_weights(self, step: int) -> dict[str, np.ndarray]:
        """Read a model's arrays by name, for example `hidden.kernel`, without knowing the model."""
        with self.read_errors(step):
            state = self.restore(step, state=orbax().args.StandardRestore())
        return named_leaves(state.get("params", {}), state.get("model_state", {}))

    def restore(self, step: int, **item: Any) -> Any:
        """Read one item of a checkpoint.

        It's read in our own thread. In a notebook's thread, which has an event loop, Orbax would start another thread,
        and in that one float64 is not enabled.
        """
        x64 = jax.config.read("jax_enable_x64")

        def read() -> Any:
            with jax.enable_x64(x64):
                return self.manager.restore(step, args=orbax().args.Composite(**item))[next(iter(item))]

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(read).result()

    def read_errors(self, step: int) -> contextlib.AbstractContextManager[None]:
        """Turn the errors of Orbax, and of what it uses, into a sentence about the checkpoint."""
        return explain_errors(
            f"the checkpoint of step {step} in {self.folder} cannot be read",
            f"correct that or, if it is damaged, delete {self.folder / str(step)}, and the same command goes on from "
            "the one before it",
        )


def checksum(state: TrainState, progress: dict[str, Any]) -> int:
    """Return one number for all numbers of a checkpoint, whatever the layout of its arrays."""
    return zlib.crc32(json.dumps(progress, sort_keys=True).encode() + jax.device_get(checksums(state)).tobytes())


def shapes_of(state: TrainState) -> dict[str, list[int]]:
    """Return the shapes of the arrays by name."""
    return {name: list(leaf.shape) for name, leaf in named_leaves(state).items()}


def load_state(path: str | Path, task: Task, *, best: bool = False, content: str | None = None) -> Checkpoint:
    """Read the newest checkpoint in the folder of a run, or the one of its best epoch, to the host.

    A `UserError` says if it's of another run, or if `content`, the fingerprint of the data, is another one.
    """
    checkpoints = open_checkpoints(path)
    found = checkpoints.read(checkpoints.steps()[-1], task)
    what = f"the checkpoint of step {found.step} in {path}"
    require_same_run(what, found.progress["belongs_to"], identity(read_config(path), content))
    if best:
        if (step := found.progress["best"].get("step")) not in checkpoints.steps():
            raise UserError(f"{path} no longer holds the checkpoint of its best epoch: leave --best out")
        found = checkpoints.read(step, task)
    return found


def open_checkpoints(path: str | Path) -> Checkpoints:
    """Open the checkpoints in the folder of a run, to read them. A `UserError` says that there are none."""
    read_config(path)
    folder = Path(path) / "checkpoints"
    checkpoints = Checkpoints(folder, read_only=True) if folder.is_dir() else None
    if checkpoints is None or not checkpoints.steps():
        raise UserError(f"{path} holds no checkpoint yet: let the training run finish an epoch first")
    return checkpoints


def load_weights(task: Task, path: str) -> tuple[Task, str]:
    """Return the task with the weights of a run or an exported file in its model, and a line that says what was taken.

    An array is taken if the model has one of its name and shape. The others stay as the seed made them.
    """
    advice = "name the --workdir of a run, or a file of python -m pmapdp.export"
    if os.path.isdir(path):
        checkpoints = open_checkpoints(path)
        step = checkpoints.steps()[-1]
        theirs = checkpoints.read_weights(step)
    else:
        with open_file(path, advice=advice) as opened, np.lib.npyio.NpzFile(opened) as file:  # its program isn't run
            metadata = json.loads(bytes(file["metadata.json"]))
            theirs = {name.replace("/", "."): file[f"arrays/{name}"] for name in metadata["arrays"]}
            step = int(metadata["step"])
    arrays = task.arrays_of(task.model)
    ours = named_leaves(*arrays)
    left = [name for name, x in ours.items() if name not in theirs or theirs[name].shape != x.shape]
    if len(left) == len(ours):
        raise UserError(f"--init-from {path} has no array of {task.name}, for example no {min(left)}: {advice}")
    leaves = [x if name in left else theirs[name].astype(x.dtype) for name, x in ours.items()]
    model = task.model_with(*jax.tree.unflatten(jax.tree.structure(arrays), leaves))
    news = f"starts from {len(ours) - len(left)} arrays of {path}, which had made {step:,} updates"
    if left:
        news += f"; as the seed makes them: {', '.join(left)}"
    return dataclasses.replace(task, model=model), news
