"""Run the programs of `parting.py` on one device and on eight, and say how far each is off."""

import ast
import inspect
from typing import Any

import jax
import numpy as np
from jax import P
from jax.sharding import Mesh, NamedSharding

from pmapdp.compare.cases import CASES
from pmapdp.compare.collectives import collectives
from pmapdp.compare.lines import marked, plain_lines, unmarked
from pmapdp.compare.parting import Program
from pmapdp.compare.text import EQUAL
from pmapdp.devices import choose

D, H, b = 6, 5, 6  # features, hidden units, examples on a device


def where_ways_part() -> list[dict[str, Any]]:
    """Every case: the lines of one device, and those of each program beside them; loss and gradient of each way."""
    with jax.enable_x64(True), jax.transfer_guard("allow"):  # programs are given arrays of the host
        devices = choose()
        arguments = example(len(devices))
        mesh = Mesh(np.array(devices), ("data",))
        replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
        found = []
        for case in CASES:
            wanted = jax.device_get(jax.jit(case.one_device)(*arguments))
            shardings: dict[str, Any] = {"in_shardings": (replicated, split, replicated), "out_shardings": replicated}
            by_jit = beside(jax.jit(case.one_device, **shardings), arguments, wanted, None)
            programs = []
            for program, why in case.mapped.items():
                rows = jax.tree.map(lambda x: x.reshape(len(devices), -1, *x.shape[1:]), arguments[1])
                by_pmap = jax.pmap(program, "data", in_axes=(None, 0, None), devices=devices)
                specs: dict[str, Any] = {
                    "in_specs": (P(), P("data"), P()),
                    "out_specs": P("data"),
                    "check_vma": case.check_vma,
                }
                by_shard_map = jax.jit(jax.shard_map(stacked(program), mesh=mesh, **specs))
                results = {"shard_map": beside(by_shard_map, arguments, wanted, len(devices))}
                if not case.check_vma:
                    results["pmap"] = beside(by_pmap, (arguments[0], rows, arguments[2]), wanted, len(devices))
                lines = marked(source(case.one_device), source(program))
                programs.append({"name": name(program), "why": why, "lines": lines, "results": results})
            found.append({
                "name": case.name, "one_device": case.one_device.__name__, "under_jit": case.under_jit,
                "lines": unmarked(source(case.one_device)), "results": {"jit": by_jit}, "programs": programs,
            })  # fmt: skip
        return found


def example(N: int) -> tuple[Any, Any, Any]:
    """Parameters, a batch of N * b examples in which the last device has one that counts, and a key."""
    random = np.random.default_rng(0)
    params = {"W1": random.normal(size=(D, H)), "W2": random.normal(size=H)}
    x = random.normal(size=(N * b, D)) + np.linspace(-1, 1, N * b)[:, None]  # the devices' examples are unlike
    weight = np.arange(N * b) <= (N - 1) * b
    batch = {"x": x, "y": np.sin(x.sum(1)), "index": np.arange(N * b), "weight": weight.astype(float)}
    return params, batch, jax.random.key(0)


def stacked(program: Program) -> Any:
    """The program with a device axis on its results, so that each device's can be read."""
    return lambda *arguments: jax.tree.map(lambda x: x[None], program(*arguments))


def beside(way: Any, arguments: Any, wanted: Any, N: int | None) -> dict[str, Any]:
    """How far loss and gradient are off, relative to `wanted`, on the device where they are farthest; how many times
    as long the gradient is along the wanted one; whether all devices have the same; and the collectives. `N` devices
    have results of their own; None: they have one in common."""
    compiled = way.lower(*arguments).compile()
    results = jax.device_get(compiled(*arguments))
    off, agree = {}, True
    for what, *trees in zip(("loss", "gradient"), results, wanted, strict=True):
        got, right = (  # [N, numbers] and [1, numbers]
            np.concatenate([np.reshape(leaf, (n, -1)) for leaf in jax.tree.leaves(tree)], axis=1)
            for tree, n in zip(trees, (N or 1, 1), strict=True)
        )
        off[what] = float(np.linalg.norm(got - right, axis=1).max() / np.linalg.norm(right))
        agree = agree and np.allclose(got, got[:1], rtol=EQUAL)
    exchanged = [each._asdict() for each in collectives(compiled.as_text())]
    times = float(got[0] @ right[0] / (right[0] @ right[0]))
    return off | {"times": times, "agree": agree, "collectives": exchanged}


def source(program: Program) -> list[str]:
    """The lines inside of a program, whose name and arguments are known."""
    text = inspect.getsource(program)
    (function,) = ast.parse(text).body
    return [line.removeprefix("    ") for line in plain_lines(text, [function])[1:]]


def name(program: Program) -> str:
    """Of a program, in words."""
    return program.__name__.replace("_", " ")
