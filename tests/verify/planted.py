"""The program of `program.py`, right or with wrong lines of docs/mistakes.py planted in it, as the arguments of `verify`."""

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
WAYS = {
    "pmap": "replicated",
    "shard_map": "sharded",
    "jit": "sharded",
}  # and the layout of each


class Plant(NamedTuple):
    """One wrong line, and the row of the table that fits; none if it's empty."""

    row: str
    right: str
    wrong: str
    under: tuple = tuple(WAYS)
    options: dict = {}  # noqa: RUF012


# What the program needs, so that a wrong line shows.
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
    """The program with these pairs of lines replaced, under these options."""
    source = SOURCE
    for right, wrong in edits:
        assert source.count(right) == 1, right
        source = source.replace(right, wrong)
    names = {"OPTIONS": dict(options)}
    exec(compile(source.replace("OPTIONS: dict = {}", ""), "program.py", "exec"), names)
    return SimpleNamespace(**names)


def given(way, *plants, devices=4, **options):
    """The arguments of `verify` for the program with these plants, on 4 devices."""
    for plant in plants:
        options |= {
            name: value
            for name, value in plant.options.items()
            if (name, value) != ("key", "any")
        }
    options = tuple(sorted(options.items()))
    program = load(tuple((plant.right, plant.wrong) for plant in plants), options)
    state, batch = load((), options).start()
    return {
        "reference": one_device(load((), options).step, "data"),
        "step": program.make_step(way, jax.devices()[:devices]),
        "devices": jax.devices()[:devices],
        "state": state,
        "batch": batch,
        "last_batch": {
            **batch,
            "weight": (np.arange(len(batch["x"])) < 13).astype(np.float32),
        },  # 3 of padding
        "key": jax.random.key(5)
        if dict(options).get("key", "argument") == "argument"
        else None,
        "layout": WAYS[way],
    }
