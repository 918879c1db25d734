"""Read the parts of each strategy's file, for the page: the step, what makes it run on several devices, placing."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

from pmapdp.compare.code import KINDS, plain_lines
from pmapdp.steps import placing, shared

SECTIONS = {
    "The step": "Under pmap and shard_map the step sees one device's examples, so you average the sums. Under jit it "
    "sees the global batch: it's the step of a single device.",
    "What makes it run on several devices": "pmap takes the mapped axis of each argument, shard_map a PartitionSpec. "
    "jit needs neither, because arrays bring their shardings along. out_shardings only says where the result lies: the "
    "all-reduce comes from the sum over the split axis, with or without it.",
    "Placing the state and a batch": "All start from the same arrays on every device. pmap splits a batch along an "
    "axis of its own, [N, b, ...]. shard_map and jit take the global batch, [B, ...], whose sharding splits it.",
    "Evaluating and saving": "A device knows the sums over its own examples, so pmap and shard_map add them up. What "
    "is saved has no device axis.",
}
SHARED: dict[str, tuple[Callable[..., Any], ...]] = {
    "Gradients and update, the same in all four (steps/shared.py)": (
        shared.gradient_sums,
        shared.update,
    ),
    "Placing and fetching, the same in all four (steps/placing.py)": (
        placing.place,
        placing.fetch,
    ),
}


def read_sections(
    makers: dict[str, Callable[..., Any]],
) -> dict[str, list[dict[str, Any]]]:
    """Read the lines of each strategy by section, and the functions that all call. A maker makes a strategy."""
    parts = {name: split_maker(parse(maker)) for name, maker in makers.items()}
    code = []
    for number, (title, why) in enumerate(SECTIONS.items()):
        lines = {
            name: plain_lines(*sections[number]) for name, sections in parts.items()
        }
        code.append({"title": title, "why": why, "lines": lines})
    common = [
        {"title": title, "lines": plain_lines(*map(parse, functions))}
        for title, functions in SHARED.items()
    ]
    return {"code": code, "shared": common}


class WithoutAccumulation(ast.NodeTransformer):
    """Keep the branch that runs without --accumulate."""

    def visit_If(self, node: ast.If) -> Any:
        """Put the body in the place of `if task.accumulate == 1`."""
        return node.body if ast.unparse(node.test) == "task.accumulate == 1" else node


def parse(function: Callable[..., Any]) -> ast.FunctionDef:
    """Parse the source of a function, as it runs without micro-batches."""
    (found,) = (
        WithoutAccumulation()
        .visit(ast.parse(textwrap.dedent(inspect.getsource(function))))
        .body
    )
    assert isinstance(found, ast.FunctionDef)
    return found


def split_maker(maker: ast.FunctionDef) -> list[Any]:
    """Divide the statements of a function that makes a strategy among the sections, by names and by words in them."""
    inner = {
        each.name: each for each in maker.body if isinstance(each, ast.FunctionDef)
    }
    others = [
        each
        for each in maker.body[1:]
        if not isinstance(each, ast.FunctionDef | ast.Return)
    ]
    wrappers = [each for each in others if re.search(KINDS["wrap"], ast.unparse(each))]
    places = [each for each in others if each not in wrappers]
    saving = [inner[name] for name in ("eval_step", "fetch") if name in inner]
    return [
        [inner["train_step"]],
        wrappers,
        [*places, inner["place_state"], inner["place_batch"]],
        saving,
    ]
