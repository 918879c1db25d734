"""From the texts of `--mesh` and `--layout` to mesh axes and rules. What the rules mean is in `layout.py`.

--mesh data=4,model=2               mesh axes and their sizes
--layout model                      a named layout
--layout hidden=model,embed=none    rules: logical axis = mesh axis, or none
--layout model,batch=data+feature   both; + splits one logical axis over several mesh axes
"""

import math
import re
import reprlib

from pmapdp.errors import UserError, unknown

Rules = dict[str, tuple[str, ...]]

BATCH, DATA = "batch", "data"
# Splitting the outputs of one matrix and the inputs of the next over the same devices needs one all-reduce for the
# two: Shoeybi et al., "Megatron-LM", arXiv:1909.08053, 2019.
MODEL: Rules = {"hidden": ("model",), "heads": ("model",)}
NAMED: dict[str, Rules] = {"data": {}, "model": MODEL, "spatial": MODEL | {"features": ("feature",)}}


def parse_mesh(text: str) -> dict[str, int]:
    """The axes of a mesh and their sizes, in order: `data=4,model=2`; a `UserError` about any other text."""
    sizes = {axis: int(size) for axis, size in re.findall(r"(\w+)=([1-9]\d{0,8})\b", text)}
    if not sizes or mesh_text(sizes) != text.replace(" ", ""):
        raise UserError(
            f"--mesh {reprlib.repr(text)} is not a list of different axes with their sizes: try --mesh data=4,model=2"
        )
    return sizes


def mesh_text(sizes: dict[str, int]) -> str:
    """A mesh as it is written on the command line."""
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def number_of_devices(devices: int | None, mesh: str | None, processes: int = 1) -> int | None:
    """How many devices each process is to have, from --devices or --mesh; None where neither is given."""
    return devices or (math.prod(parse_mesh(mesh).values()) // processes if mesh else None)


def parse_layout(text: str) -> Rules:
    """The rules of a layout. A `UserError` says that it is none, or that it says two things of one logical axis."""
    rules: Rules = {}
    for part in text.replace(" ", "").split(","):
        name, equals, axes = part.partition("=")
        if part not in NAMED and not re.fullmatch(r"\w+=\w+(\+\w+)*", part):
            raise unknown("layout", part, [*NAMED, "hidden=model (a rule)"])
        given = {name: () if axes == "none" else tuple(axes.split("+"))} if equals else NAMED[part]
        for logical, found in given.items():
            if rules.setdefault(logical, found) != found:
                one, other = ("+".join(axes) or "none" for axes in (rules[logical], found))
                raise UserError(
                    f"--layout {text} contradicts itself, because {logical}={one} and {logical}={other}: keep one of "
                    f"the two, for example --layout {logical}={other}"
                )
    return rules


def check_sharding(mesh: str | None, layout: str, shard_state: str, strategy: str) -> None:
    """Refuse what no run can work with, whatever the model."""
    parse_layout(layout)
    if mesh:
        parse_mesh(mesh)
    if strategy != "jit" and (mesh or layout != DATA):
        given = f"--mesh {mesh}" if mesh else f"--layout {layout}"
        raise UserError(f"{given} needs --strategy jit, because --strategy {strategy} splits the batch alone")
    if shard_state not in {"single": ["none"], "jit": [shard_state]}.get(strategy, ["none", "optimizer"]):
        raise UserError(f"--shard-state {shard_state} does not work with --strategy {strategy}: use --strategy jit")
