"""The rows of the four ways: what each file of `pmapdp/steps` does for the state, a batch, the step and the result."""

import ast
import inspect
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pmapdp.compare import stacked
from pmapdp.compare.lines import marked, plain_lines, unmarked
from pmapdp.compare.runs import STACKED
from pmapdp.steps import jit, placing, pmap, shard_map, shared, single

FILES: dict[str, ModuleType] = {
    "single": single, "pmap": pmap, STACKED: stacked, "shard_map": shard_map, "jit": jit
}  # fmt: skip
# What a row shows of each file, what of the arrays that ran stands below it, and why the ways differ in it.
ROWS = {
    "place the state": (
        "state",
        "pmap, shard_map and jit start from the same arrays, replicated onto every device; old pmap programs stack N "
        "copies instead, so that every array of the state gets a device axis.",
    ),
    "place a batch": (
        "batch",
        "pmap splits along an axis of its own, [N, b, ...]; shard_map and jit take the global batch [B, ...], whose "
        "sharding says that its rows are split.",
    ),
    "the step": (
        None,
        "Under pmap and shard_map the step sees the b = B / N examples of one device, and must average by itself; "
        "under jit it sees the global batch, and is the step of a single device.",
    ),
    "the all-reduce": (
        "collectives",
        "Under pmap and shard_map you write it, as lax.pmean and lax.psum; under jit the compiler adds it, because "
        "out_shardings asks for a replicated result of sums over a split batch.",
    ),
    "the wrapper": (
        "memory",
        "pmap takes the axis of every argument, shard_map a PartitionSpec of every argument, and jit only where the "
        "results are to be placed: the arguments bring their shardings along.",
    ),
    "read a metric": (
        "metric",
        "A device knows the sums over its own examples, so pmap and shard_map add them up with lax.psum; stacked, the "
        "result is there N times, and a program reads the first.",
    ),
    "save": (
        "saved",
        "What is saved has no device axis: a replicated array is copied from one device; of a stacked one the first "
        "copy must be taken.",
    ),
}  # fmt: skip
CALLED: dict[str, tuple[ModuleType, tuple[str, ...]]] = {
    "place a batch": (placing, ("place",)), "the step": (shared, ("gradient_sums", "update")),
    "read a metric": (shared, ("evaluation_sums",)), "save": (placing, ("fetch",)),
}  # fmt: skip


def rows_of_ways(ways: Sequence[str]) -> list[dict[str, Any]]:
    """The rows: role, why the ways differ, the marked lines of each way, what to show below them, and functions that
    they call."""
    code = {way: lines_by_role(FILES[way]) for way in ways}
    found = []
    for role, (below, why) in ROWS.items():
        cells = {
            way: unmarked(code[way][role]) if way == ways[0] else marked(code[base(way, ways)][role], code[way][role])
            for way in ways
        }
        module, names = CALLED.get(role, (shared, ()))
        file = f"steps/{Path(inspect.getfile(module)).name}"
        called = [{"file": file, "lines": unmarked(functions(module, *names))}] if names else []
        found.append({"role": role, "why": why, "below": below, "cells": cells, "called": called})
    return found


def base(way: str, ways: Sequence[str]) -> str:
    """The way with which one is compared."""
    return "pmap" if way == STACKED and "pmap" in ways else ways[0]


def lines_by_role(module: ModuleType) -> dict[str, list[str]]:
    """The lines of a file with the five functions, by role."""
    source = Path(inspect.getfile(module)).read_text(encoding="utf-8")
    maker = next(each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef))
    inner = {each.name: each for each in maker.body if isinstance(each, ast.FunctionDef)}
    others = [each for each in maker.body[1:] if not isinstance(each, ast.FunctionDef | ast.Return)]
    before = [each for each in others if each.lineno < inner["train_step"].lineno]
    wrapper = [each for each in others if each.lineno > inner["train_step"].lineno]
    returned = next(each for each in maker.body if isinstance(each, ast.Return)).value
    assert isinstance(returned, ast.Call)
    step = inner["train_step"].body
    given = returned.args[4] if returned.args else next(each.value for each in returned.keywords if each.arg == "fetch")
    fetch = ast.unparse(given)
    asks = [each for each in [*step, *wrapper] if asks_for_collective(each)]
    return {
        "place the state": plain_lines(source, [*before, inner["place_state"]]),
        "place a batch": plain_lines(source, [inner["place_batch"]]),
        "the step": plain_lines(source, [inner["train_step"]]),
        "the all-reduce": plain_lines(source, asks),
        "the wrapper": plain_lines(source, wrapper),
        "read a metric": plain_lines(source, [inner["eval_step"]]),
        "save": plain_lines(source, [inner[fetch]]) if fetch in inner else [fetch],
    }


def asks_for_collective(node: ast.AST) -> bool:
    """Whether a statement makes devices exchange something: it calls a collective, or fixes where results are."""
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and each.attr in ("pmean", "psum"):
            return True
        if isinstance(each, ast.keyword) and each.arg == "out_shardings":
            return any("train_step" in ast.unparse(target) for target in getattr(node, "targets", []))
    return False


def functions(module: ModuleType, *names: str) -> list[str]:
    """The lines of some functions of a module."""
    source = Path(inspect.getfile(module)).read_text(encoding="utf-8")
    found = [each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef) and each.name in names]
    return plain_lines(source, found)
