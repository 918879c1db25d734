"""Checkpoints with Orbax: asynchronous, atomic, the last few. Lesson 12 teaches this file.

A checkpoint holds the train state as it is on one device and knows nothing of the strategy or the number of devices
that made it, so any other may resume from it.
"""

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.errors import UserError, reason
from pmapdp.files import saying
from pmapdp.processes.peers import ALONE, Peers
from pmapdp.run.checksums import checksum, crc32
from pmapdp.run.damage import DamagedError, known, outside_cause
from pmapdp.state import Task, TrainState, initial_state

SMALL = 64 * 2**20  # bytes, of a state that a link of 16 GB/s brings to the host in 4 ms
PROBE = 128 * 2**20  # bytes, at most, that are taken on the disk for a moment before a checkpoint is written


def orbax() -> ModuleType:
    """`orbax.checkpoint`, whose import takes a sixth of the start of a command that may not write a checkpoint.

    Its threads log with their tracebacks the errors that the caller gets as well: they keep silent.
    """
    import orbax.checkpoint

    logging.getLogger("absl").setLevel(logging.CRITICAL)
    return orbax.checkpoint


class Checkpoint(NamedTuple):
    """A train state without any device axis, and what the run needs besides to go on: JSON."""

    state: TrainState
    progress: dict[str, Any]


class Checkpoints:
    """The checkpoints in a folder. All methods raise a `UserError` where it cannot be used, or the disk takes no more;
    the checkpoints in it are intact then.

    Args:
        folder: made if it is missing.
        keep: how many of the newest are kept.
        only_read: leave the folder as it is, also what a run is just writing there.
        peers: the processes that write and read each its shards of a checkpoint; all make the same calls.
    """

    def __init__(self, folder: Path, keep: int = 3, *, only_read: bool = False, peers: Peers = ALONE):
        self.peers = peers
        self.folder, self.damaged = folder, folder.parent / "damaged"
        self.options = orbax().CheckpointManagerOptions(
            max_to_keep=keep,
            cleanup_tmp_directories=not only_read,  # what a killed run left half-written
            read_only=only_read,
            # Otherwise a folder that cannot be made keeps threads waiting for minutes.
            async_options=orbax().AsyncOptions(create_directories_asynchronously=False),
        )
        self.manager = self.open()

    def open(self) -> Any:
        """Orbax' `CheckpointManager` of the folder as it is now."""
        with saying(self.folder, "used", "mend that, or name another --workdir"):
            if not self.options.read_only:
                self.folder.mkdir(parents=True, exist_ok=True)
                self.require_room(0)
            return orbax().CheckpointManager(self.folder.absolute(), options=self.options)

    def steps(self) -> list[int]:
        """The updates after which there are checkpoints, oldest first."""
        return sorted(self.manager.all_steps())

    def save(self, step: int, state: TrainState, progress: dict[str, Any]) -> None:
        """Start to write the state after update `step`, and JSON that `read` gives back; returns before the disk has
        them. The state's memory may be used again then."""
        args = orbax().args
        with self.writing():
            self.require_room(2 * size(state))
            progress = progress | {"checksum_of_words": checksum(state)}
            kept = args.JsonSave(progress | {"crc32": crc32(progress, step)})
            self.manager.save(step, args=args.Composite(state=args.StandardSave(self.on_host(state)), progress=kept))

    def on_host(self, state: TrainState) -> TrainState:
        """A copy of the state on the host, if it is small and lies in this process alone; otherwise the state itself.

        Left to Orbax, each of N devices that hold an array whole gives an N-th of it. That pays for large states; for a
        small one it takes longer than one copy, and the devices wait.
        """
        if self.peers.count > 1 or size(state) >= SMALL or isinstance(jax.tree.leaves(state)[0], np.ndarray):
            return state
        # The host looks at one copy, through an object of its own: a look at the array itself would stay with it, and
        # then the next update could not have its memory.
        copies = jax.tree.map(lambda x: x.addressable_data(0) if x.is_fully_replicated else x, state)
        return jax.tree.map(np.array, jax.device_get(copies))

    def require_room(self, needed: int) -> None:
        """Look before writing whether the folder takes new files of so many bytes, or raise an OSError: where a write
        fails, Orbax' threads wait for minutes, or write to the screen."""
        disk = os.statvfs(self.folder)
        if disk.f_bavail * disk.f_frsize < needed:
            raise OSError(f"it needs up to {needed / 1e6:,.0f} MB")
        with tempfile.TemporaryFile(dir=self.folder) as probe:  # quotas and limits on files count too
            os.posix_fallocate(probe.fileno(), 0, max(1, min(needed, PROBE)))

    def wait(self) -> None:
        """Wait until the last checkpoint is complete on the disk."""
        with self.writing():
            self.manager.wait_until_finished()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Say in one sentence what went wrong with the disk."""
        try:
            yield
        except (OSError, ValueError, RuntimeError, MemoryError) as error:
            raise UserError(
                f"a checkpoint could not be written to {self.folder} ({known(error) or reason(error)[:150]}): those "
                "before it are intact, so mend that and start the same command again"
            ) from error

    def read(self, step: int, task: Task, sharding: Any = None) -> Checkpoint:
        """The checkpoint after update `step`, or a `DamagedError`: its content is not what was written.

        Args:
            step: updates made before it was written.
            task: what was trained.
            sharding: where to put the arrays, one sharding or a pytree of them like the state; each device then
                reads its shards only. With None they become NumPy arrays on the host.
        """
        progress = self.progress(step)
        return Checkpoint(self.state(step, progress, task, sharding), progress)

    def progress(self, step: int) -> dict[str, Any]:
        """What was saved beside the state of `step`; errors as of `read`."""
        progress = self.load(step, progress=orbax().args.JsonRestore()).progress
        if not isinstance(progress, dict) or progress.pop("crc32", None) != crc32(progress, step):
            raise DamagedError("the checksum of its progress is wrong")
        return progress

    def state(self, step: int, progress: dict[str, Any], task: Task, sharding: Any = None) -> TrainState:
        """The state of `step` alone, checked against its `progress`; the rest as for `read`."""
        state = self.load(step, state=orbax().args.StandardRestore(template(task, sharding))).state
        if progress["checksum_of_words"] != checksum(state):
            raise DamagedError("the checksum of its arrays is wrong")
        return state

    def load(self, step: int, **items: Any) -> Any:
        """Read items of a checkpoint on all processes, or on none; errors as of `read`."""
        fault: Exception | None = None
        found = None
        try:
            found = self.manager.restore(step, args=orbax().args.Composite(**items))
        except Exception as error:  # whatever the damage does to Orbax or to the file formats below it
            fault = DamagedError(reason(error)[:150])
            if cause := outside_cause(error, self.folder / str(step)):
                fault = UserError(
                    f"the checkpoint of step {step} in {self.folder} cannot be read ({cause}): nothing was changed; "
                    "start the same command again when that is mended"
                )
        for kind in (UserError, DamagedError):
            self.peers.require_all(kind, fault if isinstance(fault, kind) else None)
        return found

    def set_aside(self, step: int) -> Path:
        """Move the checkpoint of `step` out of the way; returns where it is then."""
        target = self.damaged / str(step)
        while target.exists():
            target = target.with_name(target.name + "_")
        self.manager.close()
        self.peers.wait("where to put it")
        if self.peers.first:
            advice = f"move {self.folder / str(step)}, which is damaged, yourself, or name another --workdir"
            with saying(target, "written", advice):
                self.damaged.mkdir(exist_ok=True)
                os.replace(self.folder / str(step), target)
        self.peers.wait("setting aside")
        self.manager = self.open()
        return target

    def close(self) -> None:
        """Finish writing and release Orbax' threads."""
        with self.writing():
            self.manager.close()


def load_state(path: str | Path, task: Task) -> tuple[TrainState, dict[str, Any]]:
    """The newest intact checkpoint in the folder of a run of `task`: state on the host, and its progress."""
    folder = Path(path) / "checkpoints"
    if not folder.is_dir():
        raise UserError(f"{path} holds no checkpoint yet: let the training run finish an epoch first")
    checkpoints = Checkpoints(folder, only_read=True)
    for step in reversed(checkpoints.steps()):
        with contextlib.suppress(DamagedError):  # only the run itself, which holds the lock, sets it aside
            found = checkpoints.read(step, task)
            return found.state, found.progress
    raise UserError(f"{path} holds no intact checkpoint: let the training run finish an epoch first")


def size(state: TrainState) -> int:
    """Bytes of its arrays, each counted once."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def template(task: Task, sharding: Any) -> TrainState:
    """A state without its numbers: shape, type and place of each array; `sharding` as for `Checkpoints.read`."""
    shapes = jax.eval_shape(lambda: initial_state(task))
    if sharding is None:
        return jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), shapes)
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        jax.tree.broadcast(sharding, shapes),
    )
