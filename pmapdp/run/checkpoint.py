"""Checkpoints with Orbax: asynchronous, atomic, the last few. Lesson 14 teaches this file.

A checkpoint holds the train state as it is on one device and knows nothing of the strategy or the number of devices
that made it, so any other may resume from it.
"""

import contextlib
import logging
import math
import mmap
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.distributed import SINGLE_PROCESS, Peers
from pmapdp.errors import UserError, reason
from pmapdp.files import file_errors
from pmapdp.run.checksums import checksum
from pmapdp.run.damage import DamagedError, require_intact, write_list
from pmapdp.run.shapes import require_same_model, shapes_of, template
from pmapdp.run.workdir import require_literal, require_same
from pmapdp.state import Task, TrainState

LEFT = "it was left as it is; start the same command again when that is corrected, or move it away yourself"
MEMORY = 64 * 2**20  # bytes that must be left before a checkpoint is read or written


def orbax() -> ModuleType:
    """`orbax.checkpoint`, whose import takes a sixth of the start of a command that may not write a checkpoint.

    Its threads and tasks log with their tracebacks the errors that the caller gets as well: they keep silent.
    """
    import orbax.checkpoint

    logging.getLogger("absl").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addFilter(of_another_package)
    return orbax.checkpoint


def of_another_package(record: logging.LogRecord) -> bool:
    """Whether what asyncio logs is not about a task of Orbax."""
    return "orbax" not in record.getMessage()


class Checkpoint(NamedTuple):
    """A train state without any device axis, the updates made before it, and what the run needs besides to go on: JSON.
    A run begins with one that was never written."""

    state: TrainState
    step: int
    progress: dict[str, Any]


class Kept:
    """Which checkpoints stay, a preservation policy of Orbax: the newest few, and that of the best epoch."""

    def __init__(self, newest: int):
        self.newest = newest
        self.best: int | None = None  # its step

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        """Of each checkpoint, from the oldest to the newest."""
        old = len(checkpoints) - self.newest
        return [number >= old or each.step == self.best for number, each in enumerate(checkpoints)]


class Checkpoints:
    """The checkpoints in a folder. All methods raise a `UserError` where it cannot be used, or the disk takes no more;
    the checkpoints in it are intact then.

    Args:
        folder: made if it is missing.
        keep: how many of the newest are kept, beside that of the best epoch.
        only_read: leave the folder as it is, also what a run is just writing there.
        belongs_to: the identity of the run, which checkpoints get, and must have to be read; with None any is read.
        peers: the processes that write and read each its shards of a checkpoint; all make the same calls.
    """

    def __init__(
        self,
        folder: Path,
        keep: int = 3,
        *,
        only_read: bool = False,
        belongs_to: dict[str, Any] | None = None,
        peers: Peers = SINGLE_PROCESS,
    ):
        self.folder, self.only_read, self.belongs_to, self.peers = folder, only_read, belongs_to, peers
        self.warnings: list[str] = []  # about checkpoints that were set aside
        self.kept = Kept(keep)
        self.saving = 0  # the step of the newest checkpoint that was begun
        options = orbax().CheckpointManagerOptions(
            preservation_policy=self.kept,
            cleanup_tmp_directories=not only_read,  # what a killed run left half-written
            read_only=only_read,
            # Otherwise a folder that cannot be made keeps threads waiting for minutes.
            async_options=orbax().AsyncOptions(
                create_directories_asynchronously=False, post_finalization_callback=self.before_commit
            ),
        )
        from pmapdp.run.literal_path import LiteralPath  # whose library is Orbax's

        with file_errors(folder, "used", "correct that, or name another --workdir"):
            require_literal(folder)
            if not only_read:
                folder.mkdir(parents=True, exist_ok=True)
                self.require_room(0)
            self.manager = orbax().CheckpointManager(LiteralPath(folder.absolute()), options=options)

    def steps(self) -> list[int]:
        """The updates after which there are checkpoints, oldest first."""
        return sorted(self.manager.all_steps())

    def save(self, step: int, state: TrainState, progress: dict[str, Any]) -> None:
        """Start to write the state after update `step`, and JSON that `read` gives back; returns before the disk has
        them. The state's memory may be used again then."""
        args = orbax().args
        with self.writing():
            require_memory()
            self.require_room(2 * sum(leaf.nbytes for leaf in jax.tree.leaves(state)))
            progress = progress | {"belongs_to": self.belongs_to, "shapes": shapes_of(state)}
            kept = args.JsonSave(progress | {"checksum_of_words": checksum(state)})
            self.manager.wait_until_finished()
            self.saving, self.kept.best = step, progress.get("best", {}).get("step")
            self.manager.save(step, args=args.Composite(state=args.StandardSave(state), progress=kept))

    def before_commit(self) -> None:
        """Called by Orbax, in a thread, when all files of a checkpoint are written and before their folder is renamed:
        so every checkpoint has its list of files, or is none."""
        (folder,) = self.folder.glob(f"{self.saving}.orbax-checkpoint-tmp*")  # people put 20.bak beside 20
        write_list(folder, self.saving)

    def require_room(self, needed: int) -> None:
        """Look before writing whether the folder takes new files of so many bytes, or raise an OSError: where a write
        fails, Orbax's threads wait for minutes, or write to the screen."""
        disk = os.statvfs(self.folder)
        if disk.f_bavail * disk.f_frsize < max(1, needed):
            raise OSError(f"it needs up to {needed / 1e6:,.0f} MB")
        tempfile.TemporaryFile(dir=self.folder).close()  # a folder that takes no new file

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
                f"a checkpoint could not be written to {self.folder} ({cause(error)}): those "
                "before it are intact, so fix that and start the same command again"
            ) from error

    def newest_first(self, task: Task, sharding: Any = None, most: float = math.inf) -> Iterator[Checkpoint]:
        """What is kept of step `most` or before, as `read` gives it; what is damaged is set aside, with a warning."""
        for step in reversed([step for step in self.steps() if step <= most]):
            try:
                yield self.read(step, task, sharding)
            except DamagedError as damage:
                if not self.only_read:
                    self.warnings.append(
                        f"warning: the checkpoint of step {step} is damaged ({damage}); it was moved to "
                        f"{self.set_aside(step)}"
                    )

    def read(self, step: int, task: Task, sharding: Any = None) -> Checkpoint:
        """The checkpoint after update `step`, or a `DamagedError`: its content is not what was written.

        Args:
            step: updates made before it was written.
            task: what was trained.
            sharding: where to put the arrays, one sharding or a pytree of them like the state; each device then
                reads its shards only. With None they become NumPy arrays on the host.
        """
        what = f"the checkpoint of step {step} in {self.folder}"
        self.agreeing(what, lambda: require_intact(self.folder / str(step), step) if self.peers.first else None)
        progress = self.load(what, step, progress=orbax().args.JsonRestore())
        if not isinstance(progress, dict) or not progress.keys() >= {"belongs_to", "checksum_of_words"}:
            raise UserError(f"{what} lacks what a run needs to resume: {LEFT}")
        if self.belongs_to is not None:
            require_same(what, progress["belongs_to"], self.belongs_to)
        wanted = template(task, sharding)
        require_same_model(what, progress.get("shapes"), shapes_of(wanted))
        state = self.load(what, step, state=orbax().args.StandardRestore(wanted))
        found = checksum(jax.device_put(state) if sharding is None else state)
        if progress["checksum_of_words"] != found:
            raise UserError(f"{what} is read with other numbers than were written: {LEFT}")
        return Checkpoint(state, step, progress)

    def weights(self, step: int) -> Any:
        """The arrays of the model of the checkpoint after update `step`, whatever the model: a pytree of NumPy arrays.
        Errors as of `read`."""
        what, folder = f"the checkpoint of step {step} in {self.folder}", self.folder / str(step)
        self.agreeing(what, lambda: require_intact(folder, step))

        def restore() -> Any:
            ocp = orbax()
            reader = ocp.PyTreeCheckpointer()
            kept = reader.metadata(folder / "state").item_metadata.tree
            wanted = {name: kept.get(name, {}) for name in ("params", "model_state")}
            wanted = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), wanted)
            how = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
            args = ocp.args.PyTreeRestore(item=wanted, restore_args=how, partial_restore=True)
            return reader.restore(folder / "state", args=args)

        return self.agreeing(what, restore)

    def load(self, what: str, step: int, **item: Any) -> Any:
        """Read one item of a checkpoint, called `what`; errors as of `read`."""

        def restore() -> Any:
            require_memory()
            return self.manager.restore(step, args=orbax().args.Composite(**item))

        return self.agreeing(what, restore)[next(iter(item))]

    def agreeing(self, what: str, work: Callable[[], Any]) -> Any:
        """What `work` with a checkpoint, called `what`, gives, on all processes or on none; errors as of `read`."""
        found: Any = None
        fault: Exception | None = None
        try:
            found = work()
        except DamagedError as error:
            fault = error
        except Exception as error:  # Orbax and what it uses have many, none of which proves that the files are wrong
            fault = UserError(f"{what} cannot be read ({cause(error)}): {LEFT}")
        for kind in (UserError, DamagedError):
            self.peers.require_all(kind, fault if isinstance(fault, kind) else None)
        return found

    def set_aside(self, step: int) -> Path:
        """Move the checkpoint of `step` out of the way; returns where it is then."""
        source, target = self.folder / str(step), self.folder.parent / "damaged" / str(step)
        if self.peers.first:
            with file_errors(
                target, "written", f"move {source}, which is damaged, yourself, or name another --workdir"
            ):
                target.parent.mkdir(exist_ok=True)
                os.replace(source, target)
        self.peers.wait("setting aside")
        self.manager.reload()
        return target

    def close(self) -> None:
        """Finish writing and release Orbax's threads."""
        with self.writing():
            self.manager.close()


def cause(error: Exception) -> str:
    """What happened, in a few words: TensorStore gives the operating system's error behind its own long paths."""
    code = re.search(r"(?:OS error |os_error_code=')(\d+)", str(error))
    return os.strerror(int(code[1])) if code else reason(error)[:150]


def require_memory() -> None:
    """Take some memory for a moment, or raise an OSError: with less, CPython waits forever for a thread of Orbax that
    could not start, or C++ ends the process."""
    mmap.mmap(-1, MEMORY).close()
