"""From --mesh, --layout and --shard-state to the layout of a run.

    --mesh data=4,model=2               mesh axes and their sizes
    --layout model                      a named layout
    --layout hidden=model,embed=none    rules: logical axis = mesh axis, or none
    --layout model,batch=data+feature   both; + splits one logical axis over several
                                        mesh axes, and a later rule wins

The first functions read the flags alone, before JAX starts. `fit_layout` then needs the
devices and the model.
"""

import math
import re
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from pmapdp.config import Config, flag
from pmapdp.errors import UserError, explain_errors, unknown_name
from pmapdp.sharding.layout import (
    BATCH,
    Axes,
    MeshLayout,
    Rules,
    logical_axes,
    mesh_text,
)
from pmapdp.state import Task, named_leaves
from pmapdp.steps.shared import AXIS

DATA_LAYOUT = "data"  # splits the batch alone, over the mesh axis of the same name
# Splitting the outputs of one matrix and the inputs of the next over the same devices
# needs one all-reduce for the two: Shoeybi et al., "Megatron-LM", arXiv:1909.08053,
# 2019.
MODEL: Rules = {"hidden": ("model",), "heads": ("model",)}
NAMED_LAYOUTS: dict[str, Rules] = {
    DATA_LAYOUT: {},
    "model": MODEL,
    "spatial": MODEL | {"features": ("feature",)},
}


def parse_mesh(text: str) -> dict[str, int]:
    """Return the axes of a mesh and their sizes, in order."""
    sizes = {axis: int(size) for axis, size in re.findall(r"(\w+)=([1-9]\d*)\b", text)}
    # Written again, it must be the same text, or something was left over or twice.
    if not sizes or mesh_text(sizes) != text.replace(" ", ""):
        raise UserError(
            f"--mesh {text!r} is not a list of different axes with their sizes: "
            "try --mesh data=4,model=2"
        )
    return sizes


def number_of_devices(config: Config, processes: int = 1) -> int | None:
    """Return the devices of each process, from --strategy, --devices or --mesh.

    None if they don't say.
    """
    if config.strategy == "single":
        return 1
    if config.devices or not config.mesh:
        return config.devices
    return math.prod(parse_mesh(config.mesh).values()) // processes


def parse_layout(text: str) -> Rules:
    """Return the rules of a layout."""
    rules: Rules = {}
    for part in text.replace(" ", "").split(","):
        if part in NAMED_LAYOUTS:
            rules |= NAMED_LAYOUTS[part]
        elif re.fullmatch(r"\w+=\w+(\+\w+)*", part):
            name, _, axes = part.partition("=")
            rules[name] = () if axes == "none" else tuple(axes.split("+"))
        else:
            raise unknown_name(
                "layout", part, [*NAMED_LAYOUTS, "hidden=model (a rule)"]
            )
    return rules


def count_batch_shards(config: Config, devices: int) -> int:
    """Return the number of parts into which the devices split a batch.

    `fit_layout` refuses a mesh that the devices or the model don't fit.
    """
    sizes = {AXIS: devices}
    if config.mesh:
        sizes = parse_mesh(config.mesh)
    axes = batch_axes(parse_layout(config.layout), sizes)
    return math.prod(sizes.get(axis, 1) for axis in axes)


def batch_axes(rules: Rules, sizes: dict[str, int]) -> tuple[str, ...]:
    """Return the mesh axes of the rule for the batch, by default `data`."""
    if BATCH in rules:
        return rules[BATCH]
    if AXIS in sizes:
        return (AXIS,)
    return ()


def check_sharding(config: Config) -> None:
    """Refuse what only --strategy jit can do."""
    if config.strategy == "jit":
        return
    for name in ("mesh", "layout", "shard_state"):
        value = getattr(config, name)
        if value != getattr(Config, name):
            raise UserError(
                f"{flag(name, value)} needs --strategy jit, because --strategy "
                f"{config.strategy} splits the batch alone"
            )


def fit_layout(
    devices: Sequence[jax.Device],
    task: Task,
    example_shape: tuple[int, ...],
    *,
    mesh: str | None = None,
    layout: str = DATA_LAYOUT,
    shard_state: str = "none",
) -> MeshLayout:
    """Return the layout of --mesh, --layout and --shard-state for a model and devices.

    An axis with a rule must divide, and a mesh axis must split something. `shard_state`
    splits what it can.

    Args:
        devices: In the order of the mesh.
        task: The model.
        example_shape: Of its inputs.
        mesh: As on the command line. None: one axis, `data`.
        layout: As on the command line.
        shard_state: "none", "optimizer" or "parameters".

    Raises:
        UserError: They don't fit. The message has flags that do.
    """
    N = len(devices)
    sizes = parse_mesh(mesh) if mesh else {AXIS: N}
    advice = f"try --mesh {AXIS}={N} --layout {DATA_LAYOUT}"  # it fits every model
    size = math.prod(sizes.values())
    if size != N:
        raise UserError(f"--mesh {mesh} has {size} places for {N} device(s): {advice}")
    # What the rules may split: the inputs, and every array of the model. The batch is
    # padded, so any number of devices may split its examples, as if there were 0.
    input_shape = (0, *example_shape)[: len(task.input_axes)]
    arrays = {"the inputs": Axes(task.input_axes, input_shape)}
    arrays |= named_leaves(*logical_axes(task))
    rules = find_rules(layout, arrays, sizes)
    check_mesh(layout, rules, sizes, advice)
    # Axes of type Auto: the compiler splits what has no sharding.
    device_array = np.array(devices).reshape(tuple(sizes.values()))
    mesh_layout = MeshLayout(Mesh(device_array, tuple(sizes)), rules, shard_state)
    for name, axes in arrays.items():
        failure = f"--layout {layout} does not fit {name} {[*axes.shape]}"
        # JAX raises for unequal shards, and for a mesh axis that splits two axes.
        with explain_errors(f"{failure} on {mesh_text(sizes)}", advice):
            mesh_layout.array_sharding(axes).shard_shape(axes.shape)
    if shard_state != "none":
        check_shard_state(mesh_layout, task)
    return mesh_layout


def find_rules(layout: str, arrays: dict[str, Axes], sizes: dict[str, int]) -> Rules:
    """Return the rules of a layout for the axes that some arrays have."""
    names = {BATCH}
    for axes in arrays.values():
        names.update(name for name in axes.names if name)
    requested = parse_layout(layout)
    # A named layout may have rules for axes that this model hasn't.
    unknown = sorted(requested.keys() - names - NAMED_LAYOUTS["spatial"].keys())
    if unknown:
        raise unknown_name(
            f"axis of the model in --layout {layout}", unknown[0], sorted(names)
        )
    rules = {name: split for name, split in requested.items() if name in names}
    return {BATCH: batch_axes(requested, sizes)} | rules


def check_mesh(layout: str, rules: Rules, sizes: dict[str, int], advice: str) -> None:
    """Refuse rules for unknown mesh axes, and a mesh axis that splits nothing.

    The devices along an axis that splits nothing would all do the same work.
    """
    used: dict[str, str] = {}  # {mesh axis: axis of the model}
    for name, axes in rules.items():
        used |= dict.fromkeys(axes, name)
    missing = [axis for axis in used if axis not in sizes]
    if missing:
        # The advice is a mesh of as many devices, with 2 along each missing axis.
        data_size, remainder = divmod(math.prod(sizes.values()), 2 ** len(missing))
        if not remainder:
            advised = {AXIS: data_size} | dict.fromkeys(missing, 2)
            advice = f"try --mesh {mesh_text(advised)}"
        raise UserError(
            f"--layout {layout} splits {used[missing[0]]} over {missing[0]}, which is "
            f"no axis of the mesh {mesh_text(sizes)}: {advice}"
        )
    for axis, size in sizes.items():
        if size > 1 and axis not in used:
            raise UserError(
                f"the mesh axis {axis} of {mesh_text(sizes)} splits nothing under "
                f"--layout {layout}, so its {size} devices would do the same work: "
                f"{advice}"
            )


def check_shard_state(mesh_layout: MeshLayout, task: Task) -> None:
    """Refuse a --shard-state that would split nothing."""
    N = mesh_layout.batch_shards
    params_sharding = mesh_layout.params_sharding(task)
    if N == 1 or mesh_layout.update_sharding(task) == params_sharding:
        raise UserError(
            f"--shard-state {mesh_layout.shard_state} can split nothing of this model "
            f"over the {N} device(s) that share the batch: try another number of "
            "devices, for example 8, or --shard-state none"
        )
