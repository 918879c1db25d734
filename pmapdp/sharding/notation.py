"""From the texts of `--mesh` and `--layout` to mesh axes and rules. What the rules mean is in `layout.py`.

--mesh data=4,model=2               mesh axes and their sizes
--layout model                      a named layout
--layout hidden=model,embed=none    rules: logical axis = mesh axis, or none
--layout model,batch=data+feature   both; + splits one logical axis over several mesh axes
"""

import math
import re

from pmapdp.errors import UserError, unknown

Rules = dict[str, tuple[str, ...]]

BATCH, DATA = "batch", "data"
# Splitting the outputs of one matrix and the inputs of the next over the same devices needs one all-reduce for the
# two: Shoeybi et al., "Megatron-LM", arXiv:1909.08053, 2019.
MODEL = {"hidden": "model", "heads": "model"}
NAMED = {"data": {}, "model": MODEL, "spatial": MODEL | {"features": "feature"}}


def parse_mesh(text: str) -> dict[str, int]:
    """The axes of a mesh and their sizes, in order: `data=4,model=2`; a `UserError` about any other text."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*([1-9]\d*)\s*", part)
        if not match:
            raise UserError(f"--mesh {text} is not a list of axis=size (at {part!r}): try --mesh data=4,model=2")
        if match[1] in sizes:
            raise UserError(f"--mesh {text} names the axis {match[1]!r} twice: try --mesh data=4,model=2")
        sizes[match[1]] = int(match[2])
    return sizes


def parse_layout(text: str) -> tuple[Rules, set[str]]:
    """The rules of a layout, and the logical names among them that were given by hand. A `UserError` says that it is no
    layout, or that it says two things of one logical axis."""
    rules: Rules = {}
    by_hand: set[str] = set()
    for part in (part.strip() for part in text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals and name not in NAMED:
            raise unknown("layout", name, [*NAMED, "hidden=model (a rule)"])
        if equals and not re.fullmatch(r"\w+=\w+(\+\w+)*", f"{name}={value}"):
            raise UserError(f"--layout {text} holds {part!r}, which is no rule: try --layout hidden=model")
        axes = () if value == "none" else tuple(value.split("+"))
        for logical, found in {name: axes}.items() if equals else ((k, (v,)) for k, v in NAMED[name].items()):
            if rules.setdefault(logical, found) != found:
                one, other = ("+".join(axes) or "none" for axes in (rules[logical], found))
                raise UserError(
                    f"--layout {text} contradicts itself: {logical}={one} and {logical}={other}; keep one of the two, "
                    f"for example --layout {logical}={other}"
                )
        by_hand |= {name} if equals else set()
    return rules, by_hand


def check_sharding(mesh: str | None, layout: str, shard_state: str, strategy: str) -> None:
    """Refuse what no run can work with, whatever the model."""
    parse_layout(layout)
    reason = {
        "pmap": "pmap maps over a single axis",
        "shard_map": "its collectives are written for the single axis 'data'",
        "single": "a single device splits nothing",
    }.get(strategy)
    if reason and (mesh or layout != DATA):
        given = f"--mesh {mesh}" if mesh else f"--layout {layout}"
        raise UserError(f"{given} does not work with --strategy {strategy}, for {reason}: use --strategy jit")
    if mesh is not None:
        parse_mesh(mesh)
    if shard_state != "none" and strategy == "single":
        raise UserError(f"--shard-state {shard_state} needs several devices: use --strategy jit, or --shard-state none")
    if shard_state == "parameters" and strategy != "jit":
        raise UserError(
            f"--shard-state parameters is left to the compiler, which --strategy {strategy} does not ask: "
            "use --strategy jit, or --shard-state optimizer"
        )


def check_places(mesh: str, devices: int) -> None:
    """Refuse a mesh that has not as many places as there are devices in all processes."""
    sizes = parse_mesh(mesh)
    places = math.prod(sizes.values())
    if places != devices:
        first, rest = next(iter(sizes)), places // next(iter(sizes.values()))
        works = mesh_text(sizes | {first: devices // rest} if devices % rest == 0 else {DATA: devices})
        raise UserError(f"--mesh {mesh} has {places} places for {devices} device(s): try --mesh {works}")


def mesh_text(sizes: dict[str, int]) -> str:
    """A mesh as it is written on the command line."""
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())
