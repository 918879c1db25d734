"""Write a file that verifies a pmapped training step, or ask what can't be read from the program."""

import ast
import json
import re
from pathlib import Path
from typing import Any

from pmapdp.port.find import BATCH, KEY, Use, mapped, returned
from pmapdp.port.read import File, constant, keywords, path_of, remember, resolve

OTHERS = re.compile(r"eval|test|predict|valid|sample|generate|init|metric|encode|decode|lambda", re.IGNORECASE)
TRAINS = re.compile(r"train|update|epoch|learn", re.IGNORECASE)
SPLITS = ("jax.random.split()", "flax.training.common_utils.shard_prng_key()")
HARNESS = '''"""Compare {name} with one device: call `check` where your program has its first state and batch.

Give them as one device has them, before they are replicated or split.{rows}
"""

import jax
from {module} import {name} as original_step

from pmapdp.verify import old_program, one_device, verify


def check({arguments}, new_step=None):
    """Verify the pmapped step, and `new_step`, its port to shard_map or jit."""

    def step({signature}):
        {body}

    given = {given}
    # The reference is the step on one device, where a psum is a pmean: this finds a sum in place of a mean.
    print(verify(step=jax.pmap(step, axis_name="{axis}"), reference=one_device(step, "{axis}"), **given))
    if new_step is not None:  # The reference is the old step: this can't see a mistake that both make.
        reference = old_program(step, "{axis}", groups=jax.device_count())
        print(verify(step=new_step, layout="sharded", reference=reference, **given))
'''


@remember
def differs(node: Any) -> bool:
    """Tell if each device has its own row of a value, because it comes from a key that was split."""
    found = resolve(node)
    while isinstance(found, ast.Subscript):
        found = resolve(found.value)
    is_made = isinstance(found, ast.Call) and mapped(found.func) and any(map(differs, found.args))
    return path_of(found) in SPLITS or bool(is_made)


def describe_step(uses: list[Use], files: dict[str, File]) -> dict[str, Any] | None:
    """Write the harness of the function that seems to train, or the questions that are open. None if nothing trains."""
    steps = [use for use in uses if use.function and "axis_name" in use.options and not OTHERS.search(use.name)]
    if not steps:
        return None
    use = min(steps, key=lambda use: (not TRAINS.search(use.name), "step" not in use.name))
    function, file, values = use.function, use.function.file, returned(use.function)[-1:]
    calls = [node for other in files.values() for node in other.nodes if isinstance(node, ast.Call)]
    calls = [call for call in calls if mapped(call.func) == use and isinstance(call.parent, ast.Assign)]
    questions: list[str] = []
    report = {"step": use.name, "path": file.path, "harness": "", "questions": questions}
    axis, module = constant(use.options["axis_name"]), Path(file.path).stem
    if function not in file.tree.body or file.path.endswith(".ipynb") or not module.isidentifier():
        questions.append(f"Where can {use.name} be imported from? It isn't at the top level of a module.")
    if not isinstance(axis, str):
        questions.append("Which axis_name is it? It's made when the program runs.")
    if {"jax.lax.scan", "jax.vmap"} & set(use.inside):
        questions.append(f"Which function makes one update? pmap maps a loop or a vmap around {use.name}.")
    if not calls or not values or "static_broadcasted_argnums" in use.options:
        questions.append(
            f"What does {use.name} take and return? No line shows it, as `state, loss = mapped(state, x)` does."
        )
        return report

    names = [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]
    bound = {names[name] if isinstance(name, int) else name: value for name, value in use.bound.items()}
    given = dict(zip([name for name in names if name not in bound], calls[0].args, strict=False)) | keywords(calls[0])
    targets = [ast.unparse(each) for each in getattr(calls[0].parent.targets[0], "elts", calls[0].parent.targets)]
    values = getattr(values[0], "elts", values)
    returns = {ast.unparse(value): name for name, value in given.items() if ast.unparse(value) in targets}
    parts = {"state": list(returns.values()), "batch": list[str](), "key": list[str]()}
    for name in given:
        if name not in parts["state"]:
            kind = "key" if KEY.search(name) else "batch" if BATCH.search(name) else ""
            parts.get(kind, []).append(name)
            if not kind:
                questions.append(
                    f"Is `{name}` part of the batch, or equal on all devices? {use.name} doesn't return it."
                )
    if not parts["state"] or len(parts["key"]) > 1 or len(values) != len(targets):
        questions.append(f"Which arguments of {use.name} are the state that it returns, and which one is the key?")
    if questions:
        return report

    rows = [f"/{n}" if len(returns) > 1 else name for n, name in enumerate(parts["state"]) if differs(given[name])]
    rows += ["key"] * any(differs(given[name]) for name in parts["key"])
    rows += [leaf for leaf in ("dropout_rng", "batch_stats") if leaf in ast.unparse(file.tree)]
    results = [returns.get(target, getattr(value, "id", target)) for target, value in zip(targets, values, strict=True)]
    metrics = [name for name in results if name not in parts["state"]]
    fixed = {name: ast.unparse(value) if isinstance(value, ast.Constant) else name for name, value in bound.items()}
    signature = [kind for kind in parts if parts[kind]]
    texts = fixed | {names[0]: kind for kind, names in parts.items() if len(names) == 1}
    call = ", ".join(f"{name}={texts.get(name, name)}" for name in names if name in {**given, **fixed})
    wrapped = ".__wrapped__" * (use.node in function.decorator_list)
    body = [f"{', '.join(parts[kind])} = {kind}" for kind in signature if len(parts[kind]) > 1]
    body += [f"{', '.join(results)} = original_step{wrapped}({call})"]
    new_state = ", ".join(parts["state"]) if len(returns) == 1 else f"({', '.join(parts['state'])})"
    is_tree = len(metrics) == 1 and "metric" in metrics[0]
    body += [f"return {', '.join([new_state, *(metrics if is_tree else [named(metrics)] * bool(metrics))])}"]
    per_device = f', "per_device": {json.dumps(rows)}' * bool(rows)
    report["harness"] = HARNESS.format(
        name=use.name,
        module=module,
        axis=axis,
        rows=f" One row per device, [N, ...], in: {', '.join(rows)}." * bool(rows),
        arguments=", ".join([*signature, *(name for name in fixed if fixed[name] == name)]),
        signature=", ".join(signature),
        body="\n        ".join(body),
        given=f"{named(signature)[:-1]}{per_device}}}",
    )
    return report | {"per_device": rows}


def named(names: list[str]) -> str:
    """Write a dictionary of variables by their names."""
    return "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"
