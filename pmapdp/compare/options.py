"""The command line of the comparison."""

from dataclasses import dataclass, replace
from typing import Literal

from pmapdp.config import Config, DataOptions, ModelOptions, OptimizationOptions, check
from pmapdp.errors import UserError
from pmapdp.files import require_writable
from pmapdp.pictures import require_matplotlib


@dataclass(frozen=True)
class BatchOptions:
    """The examples of an update: the same under every strategy and number of devices."""

    global_batch_size: int | None = None
    """Examples per update over all devices; any number, it need not divide by the devices."""
    per_device_batch_size: int | None = None
    """Examples per update on one device, at the largest number of devices; all runs get the same global batch."""
    accumulate: int = 1
    """Micro-batches per device and update, summed before the one all-reduce."""
    seed: int = 0
    """Determines the initial parameters, the order of the examples and dropout."""


# The fields of these groups are set in the configuration; strategy, devices and steps are the comparison's own.
GROUPS = (DataOptions, ModelOptions, BatchOptions, OptimizationOptions)


@dataclass(frozen=True)
class CompareOptions:
    """What is compared, and where the result goes. A single device always takes part: the others must equal it."""

    strategies: tuple[Literal["pmap", "jit", "shard_map"], ...] = ("pmap", "jit", "shard_map")
    """Strategies to compare with a single device."""
    devices: tuple[int, ...] = ()
    """Numbers of devices, each a run of its own; default: all accelerators, or 8 simulated CPU devices."""
    steps: int = 100
    """Updates of each run, at least 3. The default is enough to see equal losses and a steady speed."""
    shard_state: Literal["none", "optimizer", "parameters"] = "none"
    """Split over the devices: the optimizer state (ZeRO-1), or the parameters too (fully sharded; jit)."""
    json: str | None = None
    """Write all results to this file."""
    html: str | None = None
    """Write a page with pictures to this file; it opens without a network. Needs pmapdp[plots]."""


def check_options(config: Config, options: CompareOptions) -> None:
    """Refuse what no comparison can work with, before any run starts.

    Raises:
        UserError: with the value given and one that works.
    """
    if config.recipe == "nnx-mesh":
        raise UserError("nnx-mesh is five steps on random numbers, with nothing to compare: try the recipe digits")
    for N in options.devices:
        check(replace(config, strategy="jit", devices=N, steps=options.steps))
    for path in filter(None, (options.json, options.html)):
        require_writable(path)
    if options.html:
        require_matplotlib("--html")
