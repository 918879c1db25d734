"""Save and restore checkpoints with Orbax, in the background, and whole or not at all.

Lesson 14 teaches this file.

A checkpoint holds the train state as it is on one device. It knows nothing of the
strategy or the number of devices that wrote it, so any other may resume from it. It
also holds the run's progress as JSON: the open epoch's sums, the best and last results,
and the fixed settings of the run as "belongs_to".
"""

import dataclasses
import functools
import glob
import json
import logging
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from etils.epath.gpath import PosixGPath

from pmapdp.errors import UserError, explain_errors
from pmapdp.exported_file import read_exported_file
from pmapdp.run.workdir import (
    CODE_PREFIX,
    fixed_settings,
    read_config,
    require_same_run,
)
from pmapdp.state import Task, TrainState, initial_state, named_leaves, use_host


class LiteralPath(PosixGPath):  # type: ignore[misc] # etils has no types
    """A path for Orbax, which lists files by patterns.

    Otherwise it would take the brackets in `run[1]` for a pattern.
    """

    def glob(self, pattern: str) -> Iterator["LiteralPath"]:
        """List the paths in this folder that fit a pattern."""
        return (self / name for name in glob.glob(pattern, root_dir=self))


class Checkpoints:
    """The checkpoints in a folder: the `keep` newest, and the best epoch's.

    All processes make the same calls, and each writes and reads its own shards.
    `read_only` leaves the folder as it is.
    """

    def __init__(self, folder: Path, keep: int = 3, *, read_only: bool = False):
        import orbax.checkpoint as ocp  # takes a second

        if folder.exists() and not folder.is_dir():
            raise UserError(
                f"{folder} is a file, but checkpoints go there: move it away"
            )
        # Orbax's threads log the errors that the caller gets as well.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self.folder = folder
        self.args = ocp.args
        managers = ocp.checkpoint_managers
        self.steps_to_keep = managers.CustomSteps
        # `save` puts the best epoch's step into the second.
        self.policies = [managers.LatestN(keep), self.steps_to_keep([])]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=managers.AnyPreservationPolicy(self.policies),
            # What a killed run left half-written.
            cleanup_tmp_directories=not read_only,
            read_only=read_only,
            # Otherwise a folder that can't be made keeps threads waiting for minutes.
            async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
        )
        path = LiteralPath(folder.absolute())
        self.manager = ocp.CheckpointManager(path, options=options)
        # The updates after which there are checkpoints, oldest first.
        self.steps = self.manager.all_steps
        self.wait = self.manager.wait_until_finished
        self.close = self.manager.close

    def save(
        self, step: int, state: TrainState, epoch_progress: dict[str, Any]
    ) -> None:
        """Start to write the state after update `step`.

        When this returns, the state's memory may be used again.
        """
        needed = 2 * sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        # If a write failed, Orbax's threads would wait for minutes.
        if shutil.disk_usage(self.folder).free < needed:
            # The one before may still be on its way to the disk. It had enough space.
            self.wait()
            raise UserError(
                f"a checkpoint of up to {needed / 1e6:,.0f} MB could not be written to "
                f"{self.folder} (No space left on device): those before it are "
                "intact, so free some space and start the same command again"
            )
        facts = {
            "shapes": shapes_of(state),
            "checksum": checkpoint_checksum(state, epoch_progress),
        }
        self.wait()
        self.policies[1] = self.steps_to_keep([epoch_progress["best"].get("step")])
        items = {
            "state": self.args.StandardSave(state),
            "progress": self.args.JsonSave(epoch_progress | facts),
        }
        self.manager.save(step, args=self.args.Composite(**items))

    def read(
        self,
        step: int,
        task: Task,
        requested: dict[str, Any],
        sharding: Any = None,
        *,
        accept_changed_functions: bool = False,
    ) -> tuple[TrainState, Any]:
        """Read the state after update `step` and the progress.

        Args:
            step: The name of the checkpoint.
            task: The run's task, which says the shapes.
            requested: The run's fixed settings. A checkpoint of another run is refused.
            sharding: One for all arrays or a pytree like the state. None: the default
                device holds all.
            accept_changed_functions: Take a checkpoint of other functions of yours.
        """
        name = f"the checkpoint of step {step} in {self.folder}"
        advice = (
            f"correct that, or delete {self.folder / str(step)}, and the same command "
            "goes on from the one before"
        )
        wanted = jax.eval_shape(lambda: initial_state(task))
        with explain_errors(f"{name} cannot be read", advice):
            epoch_progress = self.restore(step, progress=self.args.JsonRestore())
            saved = dict(epoch_progress["belongs_to"])
            requested = dict(requested)
            saved_shapes = epoch_progress.pop("shapes")
            requested_shapes = shapes_of(wanted)
            for array in saved_shapes | requested_shapes:
                saved[f"the shape of {array}"] = saved_shapes.get(array)
                requested[f"the shape of {array}"] = requested_shapes.get(array)
            # The last epoch has left no open sums.
            last_epoch = epoch_progress["last"].get("epoch")
            ended = not epoch_progress["examples"] and last_epoch == saved["epochs"]
            require_same_run(
                name,
                saved,
                requested,
                ended=ended,
                accept_changed_functions=accept_changed_functions,
            )
            places = jax.tree.broadcast(sharding or jnp.zeros(()).sharding, wanted)
            wanted = jax.tree.map(
                lambda x, place: x.update(sharding=place), wanted, places
            )
            state = self.restore(step, state=self.args.StandardRestore(wanted))
            require_step(self.folder / str(step), state.step)
            if epoch_progress.pop("checksum") != checkpoint_checksum(
                state, epoch_progress
            ):
                raise ValueError("its numbers are not those that were written")
        return state, epoch_progress

    def restore(self, step: int, **item: Any) -> Any:
        """Read one item of a checkpoint, given as its name and how Orbax reads it."""
        (name,) = item
        items = self.args.Composite(**item)

        def read(x64: bool) -> Any:
            with jax.enable_x64(x64):
                return self.manager.restore(step, args=items)[name]

        # In a notebook's thread, which has an event loop, Orbax would start a thread of
        # its own, without float64.
        previous_hook = sys.unraisablehook
        sys.unraisablehook = functools.partial(show_unless_late, previous_hook)
        with ThreadPoolExecutor(1) as pool:
            value = pool.submit(read, jax.config.read("jax_enable_x64")).result()
        # If the read fails, the hook stays, because the late errors come afterwards.
        sys.unraisablehook = previous_hook
        return value


def show_unless_late(show: Callable[[Any], Any], error: Any) -> None:
    """Hide errors of Orbax's reads that fail after another read has failed.

    Their tracebacks would stand below the message that says what to do.
    """
    if "Event loop is closed" not in str(error.exc_value):
        show(error)


def require_step(folder: Path, step: Any) -> None:
    """Refuse a checkpoint whose folder was renamed or copied.

    Its name is the update from which the run would go on.
    """
    if int(step) != int(folder.name):
        raise UserError(
            f"{folder} holds the state after update {int(step)}, so it was renamed or "
            "copied: delete it, or give it its name again"
        )


@jax.jit
def checksums(arrays: Any) -> jax.Array:
    """Return a checksum for each of n arrays, as `[n]` uint32.

    It's the sum of byte * (2 * position + 1) modulo 2**32. One bit that differs always
    shows, because the factor is odd. An array that is split stays where it is.
    """

    def checksum(x: jax.Array) -> jax.Array:
        x = jnp.atleast_1d(x).view(jnp.uint8)
        position = jnp.zeros(x.shape, jnp.uint32)
        for axis, length in enumerate(x.shape):
            position = position * length + jax.lax.broadcasted_iota(
                jnp.uint32, x.shape, axis
            )
        return (x * (2 * position + 1)).sum(dtype=jnp.uint32)

    return jnp.stack([checksum(leaf) for leaf in jax.tree.leaves(arrays)])


def checkpoint_checksum(state: Any, epoch_progress: dict[str, Any]) -> int:
    """Return one number for all numbers of a checkpoint, however it was split."""
    text = json.dumps(epoch_progress, sort_keys=True).encode()
    return zlib.crc32(text + jax.device_get(checksums(state)).tobytes())


def shapes_of(state: TrainState) -> dict[str, list[int]]:
    """Return the shapes of the arrays by name."""
    return {name: list(leaf.shape) for name, leaf in named_leaves(state).items()}


def load_state(
    path: str | Path,
    task: Task,
    *,
    best: bool = False,
    data_fingerprint: str | None = None,
) -> tuple[TrainState, Any]:
    """Read the newest state of a run to the host, or its best epoch's.

    With it comes the progress. A `UserError` says if it's of another run, or if
    the fingerprint of the data is another one.
    """
    checkpoints = open_checkpoints(path)
    requested = fixed_settings(read_config(path), data_fingerprint)
    # One accelerator may be too small for a state that was split over several.
    with use_host():
        state, epoch_progress = checkpoints.read(
            checkpoints.steps()[-1], task, requested
        )
        if best:
            step = epoch_progress["best"].get("step")
            if step not in checkpoints.steps():
                raise UserError(
                    f"{path} holds no checkpoint of its best epoch: leave --best out"
                )
            state, epoch_progress = checkpoints.read(step, task, requested)
    return jax.device_get(state), epoch_progress


def open_checkpoints(path: str | Path) -> Checkpoints:
    """Open the checkpoints in the folder of a run, to read them.

    A `UserError` says that there are none.
    """
    read_config(path)
    checkpoints = Checkpoints(Path(path) / "checkpoints", read_only=True)
    if not checkpoints.steps():
        raise UserError(
            f"{path} holds no checkpoint yet: let the training run finish an epoch "
            "first"
        )
    return checkpoints


def require_functions_again(path: str, python_values: dict[str, Any]) -> None:
    """Refuse to evaluate a run whose loss or metrics came from Python and aren't given.

    The settings don't name them, but the checkpoint has their hashes. The cross-entropy
    would be shown as the run's loss.
    """
    checkpoints = open_checkpoints(path)
    with explain_errors(f"a checkpoint in {path} cannot be read", "delete it"):
        epoch_progress = checkpoints.restore(
            checkpoints.steps()[-1], progress=checkpoints.args.JsonRestore()
        )
    for name in ("loss", "metrics"):
        # A checkpoint of 0.3 has no hashes.
        code = epoch_progress["belongs_to"].get(CODE_PREFIX + name, "built in")
        if code != "built in" and python_values.get(name) is None:
            raise UserError(
                f"this run was given its {name} from Python, so give it again: "
                "from pmapdp.evaluate import evaluate_run; "
                f"evaluate_run({path!r}, {name}=...)"
            )


def load_weights(task: Task, path: str) -> tuple[Task, str]:
    """Put the weights of a run or an exported file into a task's model.

    An array is taken if the model has one of its name and shape. The others stay as the
    seed made them.

    Returns:
        The task, and a line that says what was taken.
    """
    advice = "name the --workdir of a run, or a file of python -m pmapdp.export"
    if os.path.isdir(path):
        step, saved = read_weights(path, advice)
    else:
        exported = read_exported_file(path, advice=advice)  # its program isn't run
        step = exported.metadata.get("step", 0)
        saved = {}
        for name, array in exported.arrays.items():
            saved[name.replace("/", ".")] = array
    arrays = task.split_arrays(task.model)
    leaves = []
    left = []
    for name, array in named_leaves(*arrays).items():
        if name in saved and saved[name].shape == array.shape:
            # Weights of a float64 run may start one of float32.
            leaves.append(saved[name].astype(array.dtype))
        else:
            leaves.append(array)
            left.append(name)
    taken = len(leaves) - len(left)
    # The name of another model's folder is a common mistake.
    if not taken:
        raise UserError(
            f"--init-from {path} has no array of {task.name}, for example no "
            f"{min(left)}: {advice}"
        )
    model = task.merge_arrays(*jax.tree.unflatten(jax.tree.structure(arrays), leaves))
    news = f"starts from {taken} arrays of {path}, which had made {step:,} updates"
    if left:
        news += f"; as the seed makes them: {', '.join(left)}"
    return dataclasses.replace(task, model=model), news


def read_weights(path: str, advice: str) -> tuple[int, dict[str, Any]]:
    """Return the number of updates of a run's newest checkpoint, and its weights.

    They come as they were written: whatever devices they came from, and in float64 if
    that run was.
    """
    checkpoints = open_checkpoints(path)
    step = checkpoints.steps()[-1]
    with (
        explain_errors(f"the checkpoint in {path} cannot be read", advice),
        use_host(),
        jax.enable_x64(True),
    ):
        on_host = checkpoints.args.StandardRestore(
            fallback_sharding=jnp.zeros(()).sharding
        )
        epoch_progress = checkpoints.restore(
            step, progress=checkpoints.args.JsonRestore()
        )
        state = checkpoints.restore(step, state=on_host)
        require_step(checkpoints.folder / str(step), state["step"])
        leaves = named_leaves(state)
        # In the order of the checksum.
        ordered = [leaves.get(name) for name in epoch_progress.pop("shapes")]
        if epoch_progress.pop("checksum") != checkpoint_checksum(
            ordered, epoch_progress
        ):
            raise ValueError("its numbers are not those that were written")
        weights = named_leaves(state["params"], state.get("model_state", {}))
        return step, jax.device_get(weights)
