"""The folder of a run, which belongs to one configuration, and to one process at a time.

config.json       what the run does
checkpoints/      the newest states, and the best epoch's; a run of another configuration is refused
metrics.jsonl     results, one JSON object a line
log.txt           what was printed
events.out.*      for `tensorboard --logdir DIR`
profile/          a trace, with --profile
pmapdp.lock       held by the running process; the system releases it when that process ends
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pmapdp.config import Config, config_from_json
from pmapdp.data.batches import Batch, Batches
from pmapdp.errors import UserError, explain_errors
from pmapdp.files import LINES, check_output, open_file, open_regular, write_file
from pmapdp.layers import Context, example_keys, use_context
from pmapdp.optimizer import OPTIMIZERS, SCHEDULES
from pmapdp.registry import DATA_SETS
from pmapdp.state import use_host

if TYPE_CHECKING:
    from pmapdp.train import Job

FORMAT = "pmapdp run 2"
WORKDIR_ADVICE = "name a --workdir of yours with free space, for example runs/first"


def with_full_paths(config: Config, *, is_first: bool = True) -> Config:
    """Make all paths absolute, because your code may change the current folder. If `is_first`, try the metrics file."""
    names = [
        name
        for name in ("workdir", "data_dir", "metrics_file", "init_from")
        if getattr(config, name)
    ]
    names += [
        name
        for name in ("dataset", "model", "optimizer", "schedule")
        if ".py:" in getattr(config, name)
    ]
    if config.dataset.endswith(".npz") or (
        config.dataset not in DATA_SETS and os.path.isdir(config.dataset)
    ):
        names.append("dataset")
    paths = {
        name: os.path.expanduser(getattr(config, name)) for name in names
    }  # a shell leaves --workdir=~/runs
    if is_first:
        check_output("--metrics-file", paths.get("metrics_file"), LINES)
    return dataclasses.replace(
        config, **{name: os.path.abspath(path) for name, path in paths.items()}
    )


def identity(config: Config, content: str | None = None) -> dict[str, Any]:
    """Return the settings on which the results of a run depend, as JSON gives them back.

    Folders of your code and data don't count, because you may move them. Names of your
    optimizer and schedule don't count either: `sample_functions` compares their values.
    `content` is the `fingerprint` of the data.
    """
    settings = {
        each.name: getattr(config, each.name)
        for each in dataclasses.fields(config)
        if each.metadata["fixed_on_resume"]
    }
    settings |= {
        name: os.path.basename(settings[name]) for name in ("dataset", "model")
    }
    for kind, ours in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
        settings[kind] = settings[kind] if settings[kind] in ours else "yours"
    return json.loads(
        json.dumps(settings | ({"the content of the data": content} if content else {}))
    )


def sample_functions(job: "Job") -> dict[str, float]:
    """Return some values of the run's functions, because you may change a function and keep its name.

    - The learning rates at 64 even points of the run, and their sum over all updates.
    - Two updates by fixed gradients, if the optimizer is yours. A built-in one follows
      from the settings.
    - The training loss of four examples, with the initial parameters and the dropout of
      the first update.
    """
    task, split = job.task, job.data.train
    n, updates = (
        min(4, split.examples),
        () if job.config.optimizer in OPTIMIZERS else (1, 2),
    )
    last = job.config.epochs * job.batches["train"].per_epoch

    def compute(params: Any, model_state: Any, batch: Batch) -> dict[str, Any]:
        keys = example_keys(task.seed, jnp.int32(0), batch.indices)
        with use_context(Context(batch.weights, keys, train=True)):
            values = {
                f"the loss of {n} examples": task.loss_sums(
                    task.model_with(params, model_state), batch
                ).loss
            }
        optimizer_state = task.optimizer.init(params)
        gradients = jax.tree.map(
            lambda p: 3 * jnp.cos(jnp.arange(p.size, dtype=p.dtype)).reshape(p.shape),
            params,
        )
        for number in (
            updates
        ):  # the second is smaller, which shows how the rule remembers the first
            update, optimizer_state = task.optimizer.update(
                gradients, optimizer_state, params
            )
            values[f"the optimizer in update {number} by a fixed gradient"] = (
                optax.tree.vdot(update, gradients)
            )
            gradients = jax.tree.map(lambda g: g / 100, gradients)
        return values

    # It runs once, so optimizing it would take longer than it saves.
    program = jax.jit(compute, compiler_options={"xla_backend_optimization_level": 0})
    # On the host and with exact products, so that another machine finds the same.
    with (
        use_host(),
        jax.transfer_guard("allow"),
        jax.default_matmul_precision("highest"),
    ):
        rates = np.asarray(jax.vmap(job.schedule)(np.arange(last + 1)), float)
        values = {
            f"the schedule after {step} updates": rates[step]
            for step in np.linspace(0, last, 64).astype(int)
        }
        values["the schedule, summed up"] = rates.sum()
        values |= program(
            *task.split_arrays(task.model), Batches(split, n).read_batch(np.arange(n))
        )
        return {name: float(f"{value:.6g}") for name, value in values.items()}


def require_same_run(
    what: str, theirs: dict[str, Any], ours: dict[str, Any], *, ended: bool = False
) -> None:
    """Refuse a checkpoint, called `what`, of another identity. If its run has `ended`, it may be given more epochs."""
    extended = ended and ours["epochs"] > theirs["epochs"]
    may_differ = (
        ("epochs", "the schedule", "the optimizer in update 2") if extended else ()
    )  # their beginnings
    rounding = (
        1e-2 if ours["dtype"] == "bfloat16" else 1e-4
    )  # another machine may round what a function gives
    different = []
    for name, now in ours.items():
        then, is_rounded = (
            theirs.get(name, now),
            name.startswith("the ") and isinstance(now, float),
        )
        is_close = is_rounded and np.isclose(
            then, now, rtol=rounding, atol=1e-9, equal_nan=True
        )
        if then != now and not is_close and not name.startswith(may_differ):
            different.append(f"{name} ({then!r} there, {now!r} now)")
    if different:
        raise UserError(
            f"{what} is of another configuration, which differs in {', '.join(different[:3])}: use the same or another "
            "folder (there --init-from starts from its weights), or delete that run yourself"
        )


@contextlib.contextmanager
def lock_workdir(path: str) -> Iterator[None]:
    """Keep the folder of a run for this process, and make it if it's missing. A `UserError` says why it can't."""
    folder = Path(path)
    with explain_errors(f"--workdir {path} cannot be written", WORKDIR_ADVICE):
        if "\\" in path:
            raise ValueError("TensorStore takes its backslash for a slash")
        folder.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(folder / "config.json"):
            read_config(folder)  # refuses one that isn't ours
        elif foreign := [
            *folder.glob("metrics.jsonl"),
            *folder.glob("log.txt"),
            *folder.glob("checkpoints/[0-9]*"),
        ]:
            raise UserError(
                f"--workdir {folder} holds {foreign[0].relative_to(folder)}, and no config.json says that a run of "
                "pmapdp wrote it: name a new folder, for example runs/first"
            )
        descriptor = open_regular(folder / "pmapdp.lock", os.O_RDWR | os.O_CREAT)
    with open(descriptor, "r+") as lock:
        try:
            fcntl.flock(
                lock, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # held as long as the file is open
        except BlockingIOError:
            raise UserError(
                f"--workdir {path} is in use by process {lock.read(99)}: wait until that run has ended, or name "
                "another folder"
            ) from None
        lock.truncate(0)
        os.write(lock.fileno(), f"{os.getpid()} on {socket.gethostname()}".encode())
        yield


def write_config(config: Config, folder: str) -> None:
    """Write the configuration of a run to its folder."""
    text = json.dumps({"format": FORMAT, "config": vars(config)}, indent=2)
    write_file(Path(folder) / "config.json", f"{text}\n", advice=WORKDIR_ADVICE)


def read_config(path: str | Path) -> Config:
    """Read the configuration of the run in a folder."""
    file = Path(path) / "config.json"
    if not os.path.lexists(file):
        raise UserError(
            f"{path} holds no run (no config.json): name the --workdir of a training run"
        )
    with open_file(file, advice="name another folder") as opened:
        content = json.load(opened)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(
            f"{file} is not from this version: "
            "name another folder, or use pmapdp 0.2 if that wrote it"
        )
    advice = "correct it, or name another folder"
    try:
        return config_from_json(dict(content["config"]))
    except UserError as error:
        raise UserError(f"{file} cannot be used ({error.message}): {advice}") from None
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{file} holds no settings: {advice}") from None
