"""The rows of programs of the reader's own: their lines by what they do, as far as that can be told from names."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pmapdp.compare.lines import marked, plain_lines

# By role: names that are called or used there, and what to show of the arrays and of the compiled program below.
NAMES = {
    "the step": ({"value_and_grad", "grad", "apply_gradients", "apply_updates"}, None),
    "the wrapper": ({"pmap", "shard_map", "smap", "jit", "xmap", "pjit", "filter_pmap", "filter_jit"}, "memory"),
    "the all-reduce": (
        {"pmean", "psum", "psum_scatter", "all_gather", "ppermute", "all_to_all", "pmax", "pmin", "axis_index"},
        "collectives",
    ),
    "place the state and the batch": (
        {
            "device_put", "device_put_replicated", "device_put_sharded", "replicate", "shard", "NamedSharding", "Mesh",
            "make_mesh", "PartitionSpec", "make_array_from_process_local_data", "prefetch_to_device", "Layout",
        },
        "placed",
    ),
    "read and save": ({"device_get", "unreplicate", "addressable_shards", "addressable_data"}, "saved"),
    "the rest": (set(), None),
}  # fmt: skip
WHY = {
    "the step": "The functions that differentiate or update; what a device sees depends on the wrapper.",
    "the wrapper": "What makes the step one of several devices.",
    "the all-reduce": "The collectives that are written, and below them those in the compiled program.",
    "place the state and the batch": "The lines that place arrays; below, what a device holds before an update, by the "
    "layout that verify is given.",
    "read and save": "What is read back, and below what the step returns.",
    "the rest": "All else that the program needs from its file.",
}


def rows_of_programs(targets: Sequence[str]) -> list[dict[str, Any]]:
    """The rows: role, why, the lines of each program, marked where the first has none like them (of the first: where
    the second has none), and what is below."""
    code = {target: lines_by_role(target) for target in targets}
    others = {target: code[targets[1] if target == targets[0] else targets[0]] for target in targets}
    rows: list[dict[str, Any]] = []
    for role, (_, below) in NAMES.items():
        if below or any(lines[role] for lines in code.values()):
            cells = {target: marked(others[target][role], lines[role]) for target, lines in code.items()}
            rows.append({"role": role, "why": WHY[role], "below": below, "cells": cells, "called": []})
    return rows


def lines_by_role(target: str) -> dict[str, list[str]]:
    """The lines that a program's function needs of its file, by role."""
    path, _, name = target.rpartition(":")
    source = Path(path).read_text(encoding="utf-8")
    found: dict[str, list[ast.AST]] = {role: [] for role in NAMES}
    for statement in needed(ast.parse(source).body, name):
        for role, part in parts(statement):
            found[role].append(part)
    return {role: plain_lines(source, nodes) for role, nodes in found.items()}


def needed(body: list[ast.stmt], name: str) -> list[ast.stmt]:
    """The statements of a file that define what a function uses, and what that uses, without imports."""
    body = [each for each in body if not isinstance(each, ast.Import | ast.ImportFrom)]
    wanted, kept = {name}, set[int]()
    while new := [n for n, each in enumerate(body) if n not in kept and wanted & defined(each)]:
        kept.update(new)
        wanted |= {each.id for n in new for each in ast.walk(body[n]) if isinstance(each, ast.Name)}
    return [body[n] for n in sorted(kept)]


def defined(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top of a file defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    return {each.id for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def parts(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """A statement with its role. A function that differentiates is shown whole; of any other that does several things,
    each statement has its own."""
    roles = [role for role, (names, _) in NAMES.items() if names & used(statement)]
    several = isinstance(statement, ast.FunctionDef) and roles and "the step" not in roles
    if isinstance(statement, ast.FunctionDef) and several and (len(roles) > 1 or "the all-reduce" not in roles):
        for each in statement.body:
            if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)):
                yield from parts(each)
        return
    yield roles[0] if roles else "the rest", statement
    if (
        roles[:1] == ["the step"] and "the all-reduce" in roles
    ):  # its lines with collectives stand in their own row, too
        for inner in ast.walk(statement):
            simple = isinstance(inner, ast.Assign | ast.Return | ast.Expr | ast.AugAssign)
            if simple and NAMES["the all-reduce"][0] & used(inner):
                yield "the all-reduce", inner


def used(node: ast.AST) -> set[str]:
    """The names and attributes that are used in it."""
    return {each.id if isinstance(each, ast.Name) else each.attr
            for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute)}  # fmt: skip
