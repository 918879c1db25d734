"""Every way in which the promises' tests call the package.

Only this file knows its modules and its names.

`train` and `run_command` run what users run, `Steps` holds the four functions of a
strategy, and the rest makes or reads what goes in and comes out, as NumPy arrays and
plain dictionaries.
"""

import contextlib
import functools
import io
import json
import os
import runpy
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

STRATEGIES = ("single", "pmap", "shard_map", "jit")
CLASSIFIERS = ("mlp", "cnn", "convnet", "text_mlp", "transformer", "speedrun")
TEXTS = {"text_mlp": "tfidf", "transformer": "tokens"}


def built_in_models() -> set[str]:
    """The names that `--model` takes, without those whose loss is no cross-entropy."""
    from pmapdp.registry import MODELS

    return {name for name, model in MODELS.items() if not hasattr(model, "loss")}


class Examples(NamedTuple):
    """Examples `[n, ...]` of one part of a data set."""

    inputs: Any
    labels: np.ndarray
    weights: np.ndarray | None = None


def examples_for(model: str, n: int, seed: int) -> Examples:
    """`n` random examples as a built-in model takes them, the smallest that it
    takes.
    """
    from pmapdp.data.tfidf import FEATURES
    from pmapdp.data.tokens import VOCABULARY

    random = np.random.default_rng(seed)
    if model == "text_mlp":
        inputs = np.where(
            random.random((n, FEATURES)) < 0.03, random.random((n, FEATURES)), 0
        ).astype(np.float32)
    elif model == "transformer":
        # 0 is padding. No text is so short that dropout takes all of its words: layer
        # norm of nothing but zeros would make rounding large.
        lengths = 8 * random.integers(0, 3, (n, 1))
        tokens = random.integers(2, VOCABULARY, (n, 16))
        inputs = np.where(np.arange(16) < lengths, tokens, 0).astype(np.int32)
    else:
        size = 8 if model == "convnet" else 28
        inputs = random.integers(0, 256, (n, size, size, 1), np.uint8)
    return Examples(
        inputs, random.integers(0, 2 if model in TEXTS else 10, n).astype(np.int32)
    )


def data_set(
    train: Examples,
    test: Examples | None = None,
    validation: Examples | None = None,
    **others: Any,
) -> Any:
    """Return data as `train` takes them."""
    from pmapdp.data.dataset import DataSet, Split

    parts = (None if part is None else Split(*part) for part in (train, test))
    return DataSet(
        *parts, validation=None if validation is None else Split(*validation), **others
    )


class State(NamedTuple):
    """A train state on the host, or placed on devices.

    Nested dictionaries of arrays.
    """

    step: Any
    params: Any
    model_state: Any
    optimizer_state: Any


def named(state: Any) -> State:
    return State(state.step, state.params, state.model_state, state.optimizer_state)


class Trained(NamedTuple):
    """The outcome of `train`.

    The last state, and each epoch as `{"epoch": 1, "train": {"loss": ...}, ...}`.
    """

    state: State
    epochs: list[dict[str, Any]]


def nested(epoch: dict[str, Any]) -> dict[str, Any]:
    """The results of an epoch. The accuracy has one name, weighted or not."""
    results = dict(epoch)
    for name, value in epoch.items():
        if isinstance(value, dict):
            results[name] = {
                metric.removeprefix("weighted_"): mean for metric, mean in value.items()
            }
    return results


def config(**settings: Any) -> Any:
    from pmapdp.config import Config

    return Config(**{"progress": False, "compile_cache": False} | settings)


def train(
    *,
    after_epoch: Callable[[dict[str, Any], Any], None] | None = None,
    **arguments: Any,
) -> Trained:
    """Call `train` with settings and Python values (`model`, `data`, `loss`, ...) by
    name.
    """
    from pmapdp.train import train as train_here

    values = {name: arguments.pop(name) for name in PYTHON_VALUES if name in arguments}
    if "loss" in values:
        values["loss"] = loss_of_package(values["loss"])
    for name in ("optimizer", "schedule", "trainable"):
        if callable(arguments.get(name)):
            values[name] = arguments.pop(name)
    result = train_here(config(**arguments), after_epoch=after_epoch, **values)
    return Trained(named(result.state), [nested(epoch) for epoch in result.epochs])


def user_error() -> type[Exception]:
    """The class of the errors that are one sentence."""
    from pmapdp.errors import UserError

    return UserError


PYTHON_VALUES = ("model", "data", "loss", "metrics", "processes")


def loss_of_package(loss: Callable[[Any, Any], dict[str, Any]]) -> Callable[..., Any]:
    """A loss that the package takes, from a function of (model, batch) that returns
    sums by name.
    """
    from pmapdp.loss import MetricSums

    def package_loss(model: Any, batch: Any) -> Any:
        sums = dict(loss(model, batch))
        return MetricSums(
            sums.pop("loss"), sums.pop("correct", None), sums.pop("count"), sums
        )

    return package_loss


# The four functions of a strategy


class Sums(NamedTuple):
    """Sums over an update or an evaluation: losses, right answers, and weights."""

    loss: Any
    correct: Any
    count: Any


def batch_of(
    data: Examples, indices: Any, rows: int | None = None, dtype: str = "float32"
) -> Any:
    """A batch of the examples of these indices, padded to `rows` by example 0 at weight
    0.
    """
    from pmapdp.data.batches import Batch

    indices = np.asarray(indices, np.int32)
    padding = (rows or len(indices)) - len(indices)
    weights = np.ones(len(indices)) if data.weights is None else data.weights[indices]
    order = np.concatenate([indices, np.zeros(padding, np.int32)]).astype(np.int32)
    weights = np.concatenate([weights, np.zeros(padding)]).astype(dtype)
    return Batch(
        jax.tree.map(lambda x: x[order], data.inputs),
        data.labels[order],
        order,
        weights,
    )


@functools.cache
def built(model: Any, seed: int = 0, dtype: str = "float32") -> Any:
    """A built-in model (its name) or one of yours (its class). No step changes it."""
    from pmapdp.registry import MODELS
    from pmapdp.state import build

    return build(MODELS[model] if isinstance(model, str) else model, seed, dtype)


class Steps:
    """The four functions of a strategy on `devices`, for a built-in model (its name) or
    one of yours (its class).
    """

    def __init__(
        self,
        strategy: str,
        devices: Sequence[jax.Device],
        model: Any,
        optimizer: optax.GradientTransformation,
        *,
        seed: int = 0,
        dtype: str = "float32",
        loss: Callable[[Any, Any], dict[str, Any]] | None = None,
    ):
        from pmapdp import steps
        from pmapdp.state import Task

        own = {} if loss is None else {"loss": loss_of_package(loss)}
        self.task = Task(built(model, seed, dtype), optimizer, seed, dtype, **own)
        self.strategy = steps.STRATEGIES[strategy](self.task, devices)
        self.place_state = self.strategy.place_state
        self.place_batch = self.strategy.place_batch

    def first_state(self) -> Any:
        """The state before the first update, on the host."""
        from pmapdp.state import create_state

        return create_state(self.task)

    def train_step(self, state: Any, batch: Any) -> tuple[Any, Sums]:
        state, sums = self.strategy.train_step(state, batch)
        return state, Sums(sums.loss, sums.correct, sums.count)

    def eval_step(self, state: Any, batch: Any) -> Sums:
        sums = self.strategy.eval_step(state, batch)
        return Sums(sums.loss, sums.correct, sums.count)


def fetch(tree: Any) -> Any:
    """A copy of a tree of arrays on the host."""
    from pmapdp.steps import placing

    return placing.fetch(tree)


def leave_out_all_reduce(monkeypatch: Any, strategy: str) -> None:
    """Let the file of pmap or shard_map update each device by the gradients of its own
    examples.
    """
    lax = SimpleNamespace(
        **{name: getattr(jax.lax, name) for name in dir(jax.lax) if name[0] != "_"}
    )
    lax.pmean = lambda values, axis_name: values
    monkeypatch.setattr(f"pmapdp.steps.{strategy}.lax", lax)


def count_calls(monkeypatch: Any, strategy: str) -> Counter[str]:
    """Count how often the training and the evaluation step that a strategy's file makes
    are called from now on.
    """
    from pmapdp.steps import STRATEGIES

    make = STRATEGIES[strategy]
    calls = Counter[str]()
    assert make.__module__ == f"pmapdp.steps.{strategy}"

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls[name] += 1
            return function(*arguments)

        return call

    def make_strategy(*arguments: Any) -> Any:
        made = make(*arguments)
        steps = {
            name: counted(name, getattr(made, name))
            for name in ("train_step", "eval_step")
        }
        return made._replace(**steps)

    monkeypatch.setitem(STRATEGIES, strategy, make_strategy)
    return calls


def step_files() -> dict[str, Path]:
    """The file that makes each strategy's step."""
    import pmapdp

    return {
        name: Path(pmapdp.__file__).parent / "steps" / f"{name}.py"
        for name in STRATEGIES
    }


def batches(
    data: Examples,
    batch_size: int,
    *,
    epoch: int = 0,
    step: int = 0,
    seed: int | None = None,
    **others: Any,
) -> list[Any]:
    """The host batches of an epoch (from 0) from one of its steps (from 0) on.

    Without a seed they're in the data's order.
    """
    from pmapdp.data.batches import Batches
    from pmapdp.data.dataset import Split

    return list(
        Batches(Split(*data), batch_size, shuffle_seed=seed, **others).epoch(
            epoch, step
        )
    )


# Commands and what they leave on the disk


class Done(NamedTuple):
    """An ended command."""

    status: int
    out: str
    err: str


def run_command(name: str, *arguments: object) -> Done:
    """Run the command of this name in this process, as `python -m` does."""
    import importlib

    from pmapdp.cli import run

    module = importlib.import_module(module_of(name))
    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(module.main, [str(argument) for argument in arguments])
    return Done(status, out.getvalue(), err.getvalue())


@functools.cache
def module_of(name: str) -> str:
    from importlib.util import find_spec

    package = find_spec(f"pmapdp.{name}").submodule_search_locations
    return f"pmapdp.{name}.__main__" if package else f"pmapdp.{name}"


def stay_in_this_process(monkeypatch: Any) -> None:
    """Let `compare` start no processes, because importing JAX takes seconds."""
    monkeypatch.setattr(
        "pmapdp.compare.strategies.in_new_process",
        lambda function, *values: function(*values),
    )


def run_in_child(
    program: str,
    arguments: list[str],
    output: str,
    errors: str = "",
    variables: dict[str, str] | None = None,
) -> None:
    """Do the work of a child of `forks.py`, with its output in files, until it ends or
    is killed.

    The program is a command, or a script. `variables` are its environment, which
    otherwise is ours.
    """
    import importlib

    from pmapdp.cli import run

    for stream, path in ((1, output), (2, errors or output)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    if variables is not None:
        os.environ.clear()
        os.environ.update(variables)
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        os._exit(run(importlib.import_module(module_of(program)).main, arguments))


def epochs_in(metrics_file: Path) -> list[dict[str, Any]]:
    """The epochs in a metrics file."""
    lines = [json.loads(line) for line in metrics_file.read_text().splitlines()]
    return [nested(line) for line in lines if line["event"] == "epoch"]


def checkpoint_steps(workdir: Path) -> list[int]:
    """The updates after which a run has whole checkpoints."""
    return sorted(
        int(folder.name)
        for folder in (workdir / "checkpoints").glob("*")
        if folder.name.isdigit()
    )


def arrays_on_disk(workdir: Path, step: int) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint by their names, read by Orbax alone."""
    import orbax.checkpoint as ocp

    found = ocp.StandardCheckpointer().restore(
        (workdir / "checkpoints" / str(step) / "state").absolute()
    )
    leaves = jax.tree_util.tree_leaves_with_path(found)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
        for path, leaf in leaves
    }
