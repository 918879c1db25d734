"""Save and restore checkpoints with Orbax, in the background, and whole or not at all.

Lesson 14 teaches this file.

A checkpoint holds the train state as it is on one device. It knows nothing of the
strategy or the number of devices that wrote it, so any other may resume from it. It
also holds the run's progress as JSON: the open epoch's sums, the best and last results,
and the provenance of all results as "belongs_to".
"""

import contextlib
import gc
import glob
import json
import logging
import re
import shutil
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from etils.epath.gpath import PosixGPath

from pmapdp.errors import UserError, explain_errors
from pmapdp.run.same_run import Provenance, require_same_run
from pmapdp.state import Task, TrainState, initial_state, named_leaves, use_host

# When one read has failed, the others end in this time, which is much more than they
# take from a local disk.
SECONDS_OF_LATE_READS = 0.5


class LiteralPath(PosixGPath):  # type: ignore[misc] # etils has no types
    """A path whose brackets are plain characters.

    Orbax lists files by patterns, and would take the brackets in `run[1]` for one.
    """

    def glob(self, pattern: str) -> Iterator["LiteralPath"]:
        """List the paths in this folder that fit a pattern."""
        return (self / name for name in glob.glob(pattern, root_dir=self))


class Checkpoints:
    """The checkpoints in a folder: the `keep` newest, and the best epoch's.

    All processes make the same calls, and each writes and reads its own shards.

    Args:
        folder: Where they are.
        provenance: The run's. A checkpoint of another run is refused.
        keep: The number of newest ones to keep.
        read_only: Leave the folder as it is.
    """

    def __init__(
        self,
        folder: Path,
        provenance: Provenance,
        keep: int = 3,
        *,
        read_only: bool = False,
    ):
        import orbax.checkpoint as ocp  # takes a second

        if folder.exists() and not folder.is_dir():
            raise UserError(
                f"{folder} is a file, but checkpoints go there: move it away"
            )
        self.folder = folder
        self.provenance = provenance
        self.ocp = ocp
        managers = ocp.checkpoint_managers
        # The second keeps the best epoch's checkpoint, and `save` replaces it.
        self.policies = [managers.LatestN(keep), managers.CustomSteps([])]
        path = LiteralPath(folder.absolute())
        with hide_further_errors():  # and warnings of what read_only means
            options = ocp.CheckpointManagerOptions(
                preservation_policy=managers.AnyPreservationPolicy(self.policies),
                # What a killed run left half-written.
                cleanup_tmp_directories=not read_only,
                read_only=read_only,
                # Otherwise a folder that can't be made keeps threads waiting for
                # minutes.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            )
            self.manager = ocp.CheckpointManager(path, options=options)
        # The updates after which there are checkpoints, oldest first.
        self.saved_steps = self.manager.all_steps
        self.wait = self.manager.wait_until_finished
        self.close = self.manager.close

    def save(self, step: int, state: TrainState, progress: dict[str, Any]) -> None:
        """Start to write the state after update `step`, and the run's progress.

        When this returns, the state's memory may be used again.
        """
        # The disk takes it once. The other half is for what other programs write.
        needed = 2 * sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        # If a write failed, Orbax's threads would wait for minutes.
        if shutil.disk_usage(self.folder).free < needed:
            # The checkpoint before this one may still be on its way to the disk.
            self.wait()
            raise UserError(
                f"a checkpoint of up to {needed / 1e6:,.0f} MB could not be written to "
                f"{self.folder} (No space left on device): those before it are "
                "intact, so free some space and start the same command again"
            )
        progress = progress | {"belongs_to": self.provenance._asdict()}
        facts = {
            "shapes": shapes_of(state),
            "checksum": checkpoint_checksum(state, progress),
        }
        self.wait()
        best_step = progress["best"].get("step")
        self.policies[1] = self.ocp.checkpoint_managers.CustomSteps([best_step])
        items = self.ocp.args.Composite(
            state=self.ocp.args.StandardSave(state),
            progress=self.ocp.args.JsonSave(progress | facts),
        )
        self.manager.save(step, args=items)

    def read(
        self,
        step: int,
        task: Task,
        sharding: Any = None,
        *,
        accept_changed_functions: bool = False,
    ) -> tuple[TrainState, Any]:
        """Read the state after update `step` and the progress.

        Args:
            step: The name of the checkpoint.
            task: The run's task, which says the shapes.
            sharding: One for all arrays or a pytree like the state. None: the default
                device holds all.
            accept_changed_functions: Take a checkpoint of other functions of yours.
        """
        target = jax.eval_shape(lambda: initial_state(task))
        progress = self.read_progress(step)
        with self.explain_damage(step):
            require_same_run(
                f"the checkpoint of step {step} in {self.folder}",
                progress,
                self.provenance,
                shapes_of(target),
                accept_changed_functions=accept_changed_functions,
            )
            shardings = jax.tree.broadcast(sharding or jnp.zeros(()).sharding, target)
            target = jax.tree.map(
                lambda x, sharding: x.update(sharding=sharding), target, shardings
            )
            items = self.ocp.args.Composite(state=self.ocp.args.StandardRestore(target))
            state = self.restore(step, items)["state"]
            del progress["shapes"]
            require_intact(self.folder / str(step), state.step, state, progress)
        del progress["belongs_to"]
        return state, progress

    def read_weights(self, step: int) -> dict[str, Any]:
        """Read the model's arrays by name to the host, as they were written.

        They may come from any run and any devices, and are in float64 if that run was.
        """
        with use_host(), jax.enable_x64(True):
            on_host = self.ocp.args.StandardRestore(
                fallback_sharding=jnp.zeros(()).sharding
            )
            progress = self.read_progress(step)
            state = self.restore(step, self.ocp.args.Composite(state=on_host))["state"]
            leaves = named_leaves(state)
            # In the order of the checksum.
            arrays = [leaves.get(name) for name in progress.pop("shapes")]
            require_intact(self.folder / str(step), state["step"], arrays, progress)
            weights = named_leaves(state["params"], state.get("model_state", {}))
            return jax.device_get(weights)

    def read_progress(self, step: int) -> dict[str, Any]:
        """Read what a checkpoint holds beside the state."""
        items = self.ocp.args.Composite(progress=self.ocp.args.JsonRestore())
        with self.explain_damage(step):
            return self.restore(step, items)["progress"]

    def explain_damage(self, step: int) -> contextlib.AbstractContextManager[None]:
        """Turn errors of reading a checkpoint into a message that says what to do."""
        return explain_errors(
            f"the checkpoint of step {step} in {self.folder} cannot be read",
            f"correct that, or delete {self.folder / str(step)}, and the same command "
            "goes on from the one before",
        )

    def restore(self, step: int, items: Any) -> Any:
        """Read "state" or "progress" of a checkpoint, or both.

        `items` is Orbax's `Composite`, which says what to read, and how.
        """

        def read(x64: bool) -> Any:
            with jax.enable_x64(x64):
                return self.manager.restore(step, args=items)

        # In a notebook's thread, which has an event loop, Orbax would start a thread of
        # its own, without float64.
        with hide_further_errors(), ThreadPoolExecutor(1) as pool:
            return pool.submit(read, jax.config.read("jax_enable_x64")).result()


@contextlib.contextmanager
def hide_log() -> Iterator[None]:
    """Hide what Orbax logs. It raises what a user has to know."""
    absl = logging.getLogger("absl")
    level = absl.level
    absl.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        absl.setLevel(level)


@contextlib.contextmanager
def hide_further_errors() -> Iterator[None]:
    """Hide the errors that Orbax reports after the one that it raises.

    Orbax reads all arrays at once. When one read has failed, nobody waits for the
    others, and their errors would be printed below the message that says what to do.
    They come in one of four ways, depending on which read fails first.
    """
    asyncio = logging.getLogger("asyncio")
    show = sys.unraisablehook

    def is_not_a_read(record: logging.LogRecord) -> bool:
        return not re.search("tensorstore|orbax", record.getMessage())

    def show_unless_late(error: Any) -> None:
        if "Event loop is closed" not in str(error.exc_value):
            show(error)

    # asyncio logs the error of a read for which nobody waits any more.
    asyncio.addFilter(is_not_a_read)
    # A read may end even later, in a thread of TensorStore, which can't raise an error.
    sys.unraisablehook = show_unless_late
    try:
        # Orbax's threads log the errors that the caller gets as well.
        with hide_log(), warnings.catch_warnings():
            # Python warns of a read that was never started.
            warnings.filterwarnings("ignore", "coroutine 'Store", RuntimeWarning)
            try:
                yield
            except Exception as error:
                # The other errors are reported when their reads have ended, and no
                # variable holds them any more.
                time.sleep(SECONDS_OF_LATE_READS)
                traceback.clear_frames(error.__traceback__)
                gc.collect()
                raise
    finally:
        asyncio.removeFilter(is_not_a_read)
        sys.unraisablehook = show


def require_intact(
    folder: Path, step: Any, arrays: Any, progress: dict[str, Any]
) -> None:
    """Refuse a checkpoint with other numbers, or whose folder was renamed or copied.

    Args:
        folder: Its name is the update from which a run would go on.
        step: The update of its state.
        arrays: The state's arrays, in their order.
        progress: What else was read. Its checksum is removed.
    """
    if int(step) != int(folder.name):
        raise UserError(
            f"{folder} holds the state after update {int(step)}, so it was renamed or "
            "copied: delete it, or give it its name again"
        )
    if progress.pop("checksum") != checkpoint_checksum(arrays, progress):
        raise ValueError("its numbers are not those that were written")


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


def checkpoint_checksum(state: Any, progress: dict[str, Any]) -> int:
    """Return one number for all numbers of a checkpoint, however it was split."""
    text = json.dumps(progress, sort_keys=True).encode()
    return zlib.crc32(text + jax.device_get(checksums(state)).tobytes())


def shapes_of(state: TrainState) -> dict[str, list[int]]:
    """Return the shapes of the arrays by name."""
    return {name: list(leaf.shape) for name, leaf in named_leaves(state).items()}
