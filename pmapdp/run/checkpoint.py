"""Checkpoints with Orbax: asynchronous, atomic, the last few and the best. Lesson 10 teaches this file.

A checkpoint holds the train state as it is on one device and knows nothing of the strategy or the number of devices
that made it, so any other may go on from it.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.errors import UserError
from pmapdp.processes.peers import ALONE, Peers
from pmapdp.run import failed_writes
from pmapdp.state import Task, TrainState, initial_state

SMALL = 64 * 2**20  # bytes, of a state that a link of 16 GB/s brings to the host in 4 ms


def orbax() -> ModuleType:
    """`orbax.checkpoint`, whose import takes a sixth of the start of a command that may not write a checkpoint."""
    import orbax.checkpoint

    return orbax.checkpoint


@dataclass(frozen=True)
class Checkpoint:
    """A train state, and how far the run had come.

    Attributes:
        state: `TrainState` without any device axis.
        progress: what the run needs to go on; JSON.
    """

    state: TrainState
    progress: dict[str, Any]


class Checkpoints:
    """The checkpoints in a folder.

    Args:
        folder: made if it is missing.
        keep: how many of the newest are kept, beside the one with the best test accuracy.
        only_read: leave the folder as it is, also what a run is just writing there.
        peers: the processes that write and read each its part of a checkpoint; all make the same calls.
    """

    def __init__(self, folder: Path, keep: int = 3, *, only_read: bool = False, peers: Peers = ALONE):
        self.peers = peers
        failed_writes.keep_quiet()
        self.folder, self.damaged = folder, folder.parent / "damaged"
        managers = orbax().checkpoint_managers
        newest = managers.LatestN(keep)
        best = managers.BestN(
            get_metric_fn=lambda metrics: metrics["test_accuracy"],
            n=1,
            keep_checkpoints_without_metrics=False,
        )
        self.options = orbax().CheckpointManagerOptions(
            preservation_policy=managers.AnyPreservationPolicy([newest, best]),
            cleanup_tmp_directories=not only_read,  # what a killed run left half-written
            read_only=only_read,
        )
        self.manager = self.open()

    def open(self) -> Any:
        """Orbax' `CheckpointManager` of the folder as it is now."""
        return orbax().CheckpointManager(self.folder.absolute(), options=self.options)

    def steps(self) -> list[int]:
        """The updates after which there are checkpoints, oldest first."""
        return sorted(self.manager.all_steps())

    def save(self, step: int, state: TrainState, progress: dict[str, Any], test_accuracy: float | None = None) -> None:
        """Start to write the state after update `step`; returns before the disk has it.

        Args:
            step: updates made.
            state: `TrainState`, on devices or on the host; its memory may be used again after the call.
            progress: JSON that `restore` gives back.
            test_accuracy: decides which checkpoint is the best.

        Raises:
            UserError: this or the previous checkpoint could not be written; those before are intact.
        """
        metrics = None if test_accuracy is None else {"test_accuracy": test_accuracy}
        args = orbax().args
        with self.writing():
            self.require_space(state)
            state = self.on_host(state)
            self.manager.save(
                step,
                args=args.Composite(
                    state=args.StandardSave(state),
                    progress=args.JsonSave(progress | {"checksum": checksum(state)}),
                ),
                metrics=metrics,
            )

    def on_host(self, state: TrainState) -> TrainState:
        """A copy of the state on the host, if it is small and lies in this process alone; otherwise the state itself.

        Left to Orbax, each of N devices that hold an array whole gives an N-th of it. That pays for large states; for a
        small one it takes longer than one copy, and the devices wait. A state on the host already is not copied.
        """
        if self.peers.count > 1 or size(state) >= SMALL or isinstance(jax.tree.leaves(state)[0], np.ndarray):
            return state
        # The host looks at one copy, through an object of its own: a look at the array itself would stay with it, and
        # then the next update could not have its memory.
        copies = jax.tree.map(lambda x: x.addressable_data(0) if x.is_fully_replicated else x, state)
        return jax.tree.map(np.array, jax.device_get(copies))

    def require_space(self, state: TrainState) -> None:
        """Look before writing: a disk that fills up in the middle leaves a partial checkpoint to clean up.

        Raises:
            OSError: the arrays, and as much again for files beside them, do not fit on the disk.
        """
        needed = 2 * size(state)
        if shutil.disk_usage(self.folder).free < needed:
            raise OSError(f"it needs up to {needed / 1e6:,.0f} MB")

    def wait(self) -> None:
        """Wait until the last checkpoint is complete on the disk.

        Raises:
            UserError: it could not be written; those before are intact.
        """
        with self.writing():
            self.manager.wait_until_finished()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Say in one sentence what went wrong with the disk."""
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            left = shutil.disk_usage(self.folder).free / 1e6
            reason = "no space left" if "space left" in str(error) else str(error).strip().split("\n")[0][:120]
            kept = max(self.manager.all_steps(read=True), default=None)
            raise UserError(
                f"a checkpoint could not be written to {self.folder} ({reason}; {left:,.0f} MB are free there): "
                + (f"the one of step {kept} is intact; " if kept is not None else "")
                + "make room and start the same command again"
            ) from error

    def restore(self, task: Task, sharding: Any = None) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole, or None; and a warning for each damaged one that was set aside.

        `task` and `sharding` as for `read`.
        """
        warnings: list[str] = []
        for step in reversed(self.steps()):
            try:
                return self.read(step, task, sharding), warnings
            except Exception as error:  # whatever the damage does to Orbax or to the file formats below it
                reason = str(error).strip().split("\n")[0][:200]
                warnings.append(
                    f"the checkpoint of step {step} is damaged ({reason}); it was moved to {self.set_aside(step)}"
                )
        return None, warnings

    def read(self, step: int, task: Task, sharding: Any = None) -> Checkpoint:
        """The checkpoint of `step`.

        Args:
            step: updates made before it was written.
            task: what was trained.
            sharding: where to put the arrays, one sharding or a pytree of them like the state; each device then
                reads its shards only. With None they become NumPy arrays on the host.

        Raises:
            ValueError: its content is not what was written. Orbax raises errors of many kinds.
        """
        shapes = jax.eval_shape(lambda: initial_state(task))
        if sharding is None:
            template = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), shapes)
        else:
            template = abstract_state(shapes, sharding)
        args = orbax().args
        error = None
        try:
            parts = self.manager.restore(
                step, args=args.Composite(state=args.StandardRestore(template), progress=args.JsonRestore())
            )
        except Exception as damage:
            error = damage
        self.peers.require_all("reading", error)  # or else one would wait for the others in the checksum
        if checksum(parts.state) != parts.progress["checksum"]:
            raise ValueError("its checksum is wrong")
        return Checkpoint(parts.state, parts.progress)

    def set_aside(self, step: int) -> Path:
        """Move the checkpoint of `step` out of the way; returns where it lies now."""
        target = self.damaged / str(step)
        while target.exists():
            target = target.with_name(target.name + "_")
        self.manager.close()
        self.peers.wait("where to put it")
        if self.peers.first:
            self.damaged.mkdir(exist_ok=True)
            os.replace(self.folder / str(step), target)
        self.peers.wait("setting aside")
        self.manager = self.open()
        return target

    def close(self) -> None:
        """Finish writing and release Orbax' threads."""
        self.wait()
        self.manager.close()


def abstract_state(shapes: TrainState, sharding: Any) -> TrainState:
    """The state without its arrays: shape, type and place of each; `sharding` as for `Checkpoints.read`."""
    one = isinstance(sharding, jax.sharding.Sharding)
    shardings = jax.tree.map(lambda _: sharding, shapes) if one else sharding
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes, shardings
    )


def size(state: TrainState) -> int:
    """Bytes of its arrays, each counted once."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def checksum(state: TrainState) -> int:
    """32 bits over all numbers of the state: finds a file that was altered, where its format would not.

    It is the sum over all 32-bit words of word x (odd multiplier that depends on its position), modulo 2^32: the
    devices add up their shards, so that the arrays stay where they are, and the order does not matter. One
    word that differs always shows; several go unnoticed once in four billion times.
    """
    return int(words_times_multipliers(state))


@jax.jit
def words_times_multipliers(state: TrainState) -> jax.Array:
    """The checksum, `[]` uint32."""
    total = jnp.uint32(0)
    for number, leaf in enumerate(jax.tree.leaves(state)):
        words = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
        position = jnp.zeros(words.shape, jnp.uint32)
        for axis, size in enumerate(words.shape):
            position = position * size + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        multipliers = mixed(position + jnp.uint32(number * 0x9E3779B1 % 2**32)) | 1
        total += (words * multipliers).sum(dtype=jnp.uint32)
    return total


def mixed(number: jax.Array) -> jax.Array:
    """A bijection of 32 bits in which every bit depends on many (the finalizer of MurmurHash3, Austin Appleby)."""
    number = (number ^ (number >> 16)) * jnp.uint32(0x85EBCA6B)
    number = (number ^ (number >> 13)) * jnp.uint32(0xC2B2AE35)
    return number ^ (number >> 16)
