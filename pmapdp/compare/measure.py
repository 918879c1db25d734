"""Measure a compiled step: its times, its collectives, and what each device holds.

`strategies.py` and `programs.py` use these functions.
"""

import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

import jax
import numpy as np

from pmapdp.collectives import instructions
from pmapdp.compare.results import Arrays, Measurement, Times
from pmapdp.devices import describe
from pmapdp.errors import UserError


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process, which can have another number of devices."""
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(function, *arguments).result()
    except BrokenProcessPool:
        raise UserError(
            "the process of a run was ended, perhaps for want of memory: "
            "try a smaller batch"
        ) from None


def make_measurement(
    strategy: str,
    *,
    devices: Sequence[jax.Device],
    global_batch_size: int,
    milliseconds: Sequence[float],
    program: Any,
    holds: dict[str, Arrays],
) -> Measurement:
    """Describe where a step ran, how fast, its compiled program and its arrays."""
    label = os.path.basename(strategy)
    name = label
    if len(devices) > 1:
        name += f" \u00d7 {len(devices)}"
    low, median, high = np.percentile(milliseconds, (25, 50, 75)).tolist()
    plan = program.memory_analysis()
    versions = f"jax {jax.__version__}, Python {platform.python_version()}"
    return Measurement(
        strategy=strategy,
        label=label,
        name=name,
        devices=len(devices),
        global_batch_size=global_batch_size,
        simulated=len(devices) > 1 and devices[0].platform == "cpu",
        machine=f"{describe(list(devices))}, {versions}",
        step_ms=Times(low, median, high),
        collectives=instructions(program.as_text()),
        memory={
            "arguments": plan.argument_size_in_bytes,
            "results": plan.output_size_in_bytes - plan.alias_size_in_bytes,
            "temporary": plan.temp_size_in_bytes,
        },
        holds=holds,
    )


def describe_arrays(tree: Any) -> Arrays:
    """Describe a tree of arrays on devices."""
    leaves = jax.tree.leaves(tree)
    largest = max(leaves, key=lambda leaf: leaf.size)
    places = {str(shard.index) for shard in largest.addressable_shards}
    return Arrays(
        bytes=sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves),
        shape=list(largest.shape),
        split=len(places) > 1,
    )


def largest_difference(tree: Any, other: Any) -> float:
    """Return the largest difference of two trees of arrays, in any element.

    It's NaN if an element of one is. Infinity equals itself.
    """
    differences = []
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        error = np.abs(a.astype(np.float64) - b)
        differences.append(np.max(error, initial=0, where=a != b))
    return float(np.max(differences))
