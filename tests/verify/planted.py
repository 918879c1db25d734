"""Put wrong lines of docs/mistakes.py into `program.py`, for `verify` to find."""

import functools
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np

from pmapdp.verify import one_device

SOURCE = (Path(__file__).parent / "program.py").read_text()
PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
SECTIONS = runpy.run_path(str(PAGE.with_suffix(".py")))["SECTIONS"]
LAYOUTS = {"pmap": "replicated", "shard_map": "sharded", "jit": "sharded"}


class Plant(NamedTuple):
    """One wrong line.

    Attributes:
        mistake: The usual mistake that it is, or empty if it's none of them.
        correct: The line that it replaces.
        wrong: The line.
        strategies: The strategies under which it's a mistake.
        options: The options of `program.py` under which it shows. The key "any" is an
            argument or in the state.
    """

    mistake: str
    correct: str
    wrong: str
    strategies: tuple = tuple(LAYOUTS)
    options: dict = {}  # noqa: RUF012


# The options of the program under which a wrong line shows.
OPTIONS = {
    ("mean of means", "count = weight.sum()"): {"key": "none"},
    ("mean of means", 'gradients = lax.pmean(clip(gradients), "data")'): {
        "optimizer": "clipping",
        "length": 0.05,
        "key": "none",
    },
    ("mean of means", "mean, square = moments(h)"): {
        "norm": True,
        "untracked": True,
        "key": "none",
    },
    ("same mask", "index = jnp.arange(b)"): {"key": "any"},
    ("key stands still", "key = key[0]"): {"key": "argument"},
    ("key stands still", 'new["key"], key = state["key"], state["key"]'): {
        "key": "state"
    },
}
PLANTS = []
for name, section in SECTIONS.items():
    for line in section.lines:
        options = OPTIONS.get((name, line.wrong), {})
        if name == "local statistics":
            options = {"norm": True}
        PLANTS.append(Plant(name, line.correct, line.wrong, line.under, options))
PLANTS += [
    Plant(
        "",
        "index = device * b + jnp.arange(b)",
        "index, key = jnp.arange(b), jax.random.fold_in(key, device)",
        options={"key": "any"},
    ),
    Plant("", "rate, decay = 1, 0.001", "rate, decay = 1, 0.001 * N"),
]


@functools.cache
def load(edits, options):
    """Run the program with these (correct, wrong) lines replaced, and these options."""
    source = SOURCE
    for correct, wrong in edits:
        assert source.count(correct) == 1, correct
        source = source.replace(correct, wrong)
    names = {"OPTIONS": dict(options)}
    exec(compile(source.replace("OPTIONS: dict = {}", ""), "program.py", "exec"), names)
    return SimpleNamespace(**names)


def make_arguments(strategy, *plants, devices=4, **options):
    """Make the arguments of `verify` for the program with these wrong lines."""
    for plant in plants:
        options |= {
            name: value for name, value in plant.options.items() if value != "any"
        }
    key = None
    if options.get("key", "argument") == "argument":
        key = jax.random.key(5)
    options = tuple(sorted(options.items()))
    correct_program = load((), options)
    edits = tuple((plant.correct, plant.wrong) for plant in plants)
    state, batch = correct_program.start()
    weight = (np.arange(len(batch["x"])) < 13).astype(np.float32)  # 3 of padding
    return {
        "reference": one_device(correct_program.step, "data"),
        "step": load(edits, options).make_step(strategy, jax.devices()[:devices]),
        "devices": jax.devices()[:devices],
        "state": state,
        "batch": batch,
        "last_batch": {**batch, "weight": weight},
        "key": key,
        "layout": LAYOUTS[strategy],
    }
