"""The programs of tests/programs: run them, as they are or with a mistake in them, or give their step to `verify`.

They are written as pmap programs were from 2020 to 2024.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax

N = 8
FOLDER = Path(__file__).parent.parent / "programs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
SUM = {'lax.pmean((loss, grads), axis_name="batch")': 'lax.psum((loss, grads), axis_name="batch")'}  # in accumulation


def load(name: str, changes: Mapping[str, str] | None = None) -> ModuleType:
    """The module of a program, with texts of it replaced, each of which is there once."""
    source = (FOLDER / f"{name}.py").read_text()
    for old, new in (changes or {}).items():
        assert source.count(old) == 1, (name, old)
        source = source.replace(old, new)
    module = ModuleType(f"programs_{name}")
    sys.modules[module.__name__] = module  # dataclasses look for their module here
    exec(compile(source, str(FOLDER / f"{name}.py"), "exec"), vars(module))
    return module


class Example(NamedTuple):
    """A step of (state, batch, key), and the other arguments of `verify`. Leaves of each device are `[N, ...]`."""

    step: Callable
    axis_name: str
    given: dict[str, Any]


def hugging_face_tokens(module):
    state = module.create_state()
    state = state.replace(dropout_rng=jax.random.split(state.dropout_rng, N))
    given = {"state": state, "batch": next(module.batches(1, 32)), "per_device": ["dropout_rng"]}
    return Example(module.train_step, "batch", given)


def score_scan(module):
    """The state is (keys, state), and the batch [n_steps, B, 2]."""
    state = (jax.random.split(jax.random.PRNGKey(1), N), module.init_state(jax.random.PRNGKey(0)))
    (batches,) = module.data(1, 1, 2, 32)
    given = {"state": state, "batch": batches[0], "per_device": ["/0"], "batch_axis": 1}
    return Example(module.scanned_step, "batch", given)


def accumulation(module):
    def step(state, batch):
        *state, loss = module.update_fn(*state, batch)
        return tuple(state), loss

    given = {"state": module.init(jax.random.PRNGKey(0)), "batch": next(module.batches(1, 64))}
    return Example(step, "batch", given)


def example(name, changes=None) -> Example:
    """The step of a program, as it is or with texts of it replaced."""
    return globals()[name](load(name, changes))
