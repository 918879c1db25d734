"""Write a file that verifies a pmapped training step, or ask what can't be read from the program."""

import ast
import json
import re
from pathlib import Path
from typing import Any

from pmapdp.port.find import KEY, Use, mapped
from pmapdp.port.read import File, constant

OTHERS = re.compile(r"eval|test|predict|valid|sample|generate|init|metric|encode|decode|lambda", re.IGNORECASE)
TRAINS = re.compile(r"train|update|epoch|learn", re.IGNORECASE)
HARNESS = '''"""Compare {name} with one device: call `check` where your program has its first state and batch.

Give them as one device has them, before they are replicated or split.{rows}
"""

import jax
from {module} import {name}

from pmapdp.verify import old_program, one_device, verify


def check({arguments}, new_step=None):
    """Verify the pmapped step, and `new_step`, its port to shard_map or jit."""
    step, given = {name}{wrapped}, {given}
    # The reference is the step on one device, where a psum is a pmean: this finds a sum in place of a mean.
    print(verify(step=jax.pmap(step, axis_name="{axis}"), reference=one_device(step, "{axis}"), **given))
    if new_step is not None:  # The reference is the old step: this can't see a mistake that both make.
        reference = old_program(step, "{axis}", groups=jax.device_count())
        print(verify(step=new_step, layout="sharded", reference=reference, **given))
'''


def describe_step(uses: list[Use], files: dict[str, File]) -> dict[str, Any] | None:
    """Write the harness of the function that seems to train, or the questions that are open. None if nothing trains."""
    steps = [use for use in uses if use.function and "axis_name" in use.options and not OTHERS.search(use.name)]
    if not steps:
        return None
    use = min(steps, key=lambda use: (not TRAINS.search(use.name), "step" not in use.name))
    function, axis, module = use.function, constant(use.options["axis_name"]), Path(use.function.file.path).stem
    calls = [node for file in files.values() for node in file.nodes if isinstance(node, ast.Call)]
    calls = [call for call in calls if mapped(call.func) == use and isinstance(call.parent, ast.Assign)]
    given = [ast.unparse(each) for each in calls[0].args] if calls else []
    results = ast.unparse(calls[0].parent.targets[0]).strip("()").split(", ") if calls else []
    names = [*["state", "batch"][: len(given)], *["key"] * any(map(KEY.search, given[2:]))]
    is_plain = (
        results[:1] == given[:1] != [] and len(results) < 3 and len(names) == len(given) and not calls[0].keywords
    )
    is_module = function in function.file.tree.body and function.file.path.endswith(".py") and module.isidentifier()
    questions = {
        f"Where can {use.name} be imported from? It isn't at the top level of a module.": not is_module,
        "Which axis_name is it? It's made when the program runs.": not isinstance(axis, str),
        f"Which function makes one update? pmap maps a partial, a loop or a vmap around {use.name}.": bool(use.inside),
        f"Which arguments of {use.name} are the state that it returns, the batch and the key? Put a function of "
        "(state, batch, key) around it that returns (state, metrics).": not is_plain,
    }
    harness, text = "", ast.unparse(function.file.tree)
    if not any(questions.values()):
        is_own = "key" in names and "in_axes" not in use.options  # pmap gives each device its row
        rows = ["key"] * is_own + [leaf for leaf in ("dropout_rng", "batch_stats") if leaf in text]
        per_device = f'"per_device": {json.dumps(rows)}'
        harness = HARNESS.format(
            name=use.name,
            module=module,
            axis=axis,
            rows=f" One row per device, [N, ...], in: {', '.join(rows)}." * bool(rows),
            arguments=", ".join(names),
            wrapped=".__wrapped__" * (use.node in function.decorator_list),
            given="{" + ", ".join([f'"{name}": {name}' for name in names] + [per_device] * bool(rows)) + "}",
        )
    open_questions = [question for question, is_open in questions.items() if is_open]
    return {"step": use.name, "path": function.file.path, "harness": harness, "questions": open_questions}
