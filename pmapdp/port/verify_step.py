"""Write a program that verifies the training step of a pmap program."""

import ast
import re
from pathlib import Path
from typing import Any

from pmapdp.port.constructs import last_name
from pmapdp.port.names import Program
from pmapdp.port.pmaps import Use, keywords_of

TRAINS = re.compile("train|update|epoch|step|learn", re.IGNORECASE)
DOES_NOT_TRAIN = re.compile("eval|test|predict|valid|init|metric", re.IGNORECASE)
KEY = re.compile("rng|key|seed", re.IGNORECASE)
RUNS = re.compile("main|train|fit|run")  # begins the names of what trains
# Leaves that differ from device to device, by their usual names in Flax programs.
PER_DEVICE_LEAVES = ("dropout_rng", "batch_stats")

PROGRAM = '''\
"""Does {name} on 8 devices give one device's result? `python verify_step.py`

Fill in what ends with SystemExit. The exit status is 1 if the results differ, or if
something wasn't compared.
"""

from pmapdp.devices import simulate

simulate(8)  # before JAX starts; a machine with GPUs or TPUs uses those

import jax

from pmapdp.verify import old_program, one_device, verify

{step}


def first_arguments():
    """Return {arguments} of the first update, as one device has them.

    That's before they're replicated or split. Leaves in PER_DEVICE have a row for each
    device, `[8, ...]`.{key_note}
    """
    raise SystemExit("verify_step.py: fill in first_arguments")


AXIS = {axis}
PER_DEVICE = {per_device}
{arguments} = first_arguments()
given = dict({given}, per_device=PER_DEVICE)

# The reference is your step on one device, where a psum and a pmean are the same. So
# this finds a sum in place of a mean. But if PER_DEVICE isn't empty, a correct step
# differs from one device as well: each device draws masks or keeps statistics of its
# own. Then verify the step once without dropout and with a shared batch norm. Or take
# old_program as the reference, as below, which can't see a sum in place of a mean.
report = verify(
    step=jax.pmap(step, axis_name=AXIS), reference=one_device(step, AXIS), **given
)
print(report)
if not report.ok:
    raise SystemExit(1)
# After the port, compare the new step with the old one. Both can still make one
# mistake, and this comparison can't see it. That's why the other one comes first.
# old = old_program(step, AXIS, groups=jax.device_count())
# verify(step=new_step, layout="sharded", reference=old, **given).require()
'''
WARNING = """# Loading {file} runs its line {line}. If that trains, put it under
# `if __name__ == "__main__":` first.
"""
KEY_NOTE = """ If your loop makes a key for each update, return a function
    that makes it from the update's number in place of `key`."""
LOCAL_NAME = """
# What is {name}? It's made when the program runs.
{name} = ...
raise SystemExit("verify_step.py: fill in {name}")"""
TOP_LEVEL_STEP = """{load}

step = getattr({name}, "__wrapped__", {name})  # without a decorator @pmap"""
OPEN_STEP = '''def step({arguments}):
    """Return the new state and the metrics of one device's examples."""
{questions}
    raise SystemExit("verify_step.py: fill in step")'''


def choose_step(uses: list[Use]) -> Use | None:
    """Choose the pmapped function that seems to train, or None.

    It has an axis to average over, and a name that fits. One without a name may train.
    """
    averaging = [use for use in uses if "axis_name" in use.options]
    for use in averaging:
        if TRAINS.search(use.name) and not DOES_NOT_TRAIN.search(use.name):
            return use
    for use in averaging:
        if not use.name:
            return use
    return None


def write_verification(program: Program, use: Use) -> dict[str, Any]:
    """Write the program that verifies a step, and the questions that are open in it.

    Returns:
        The name of the step, its file, the program, and the questions.
    """
    name = use.name or "your step"
    path = program.file_of(use.function)
    parameters = free_parameters(use)
    arguments = ["state", "batch"]
    per_device: list[str] = []
    if path:
        source = ast.unparse(program.files[path])
        per_device = [leaf for leaf in PER_DEVICE_LEAVES if leaf in source]
    key_note = ""
    if KEY.search(" ".join(parameters)):
        arguments.append("key")
        key_note = KEY_NOTE
        if "in_axes" not in use.options:  # pmap gives each device its row
            per_device.insert(0, "key")
    questions = ask_questions(program, use, name, parameters)
    axis = program.resolve(use.options["axis_name"])
    if not isinstance(axis, ast.Constant):
        axis = ast.Constant("batch")
        questions.append("Which axis_name is it? It's made when the program runs.")
    if questions:
        comments = "\n".join(f"    # {question}" for question in questions)
        step = OPEN_STEP.format(arguments=", ".join(arguments), questions=comments)
    else:
        loaded = path
        if use.inside:
            step, questions = write_partial(program, use.inside[0])
            loaded = program.file_of(use.inside[0])
        else:
            step = TOP_LEVEL_STEP.format(load=load_name(name, path), name=name)
        step = warn_of_work(program.files[loaded], Path(loaded).name) + step
    text = PROGRAM.format(
        name=name,
        step=step,
        arguments=", ".join(arguments),
        axis=repr(axis.value),
        per_device=per_device,
        key_note=key_note,
        given=", ".join(f"{argument}={argument}" for argument in arguments),
    )
    return {"step": name, "path": path, "questions": questions, "program": text}


def warn_of_work(module: ast.Module, file: str) -> str:
    """Return a comment about what may train when a file is loaded, or nothing."""
    for statement in module.body:
        call = getattr(statement, "value", None)  # also of an assignment
        is_call = isinstance(call, ast.Call) and RUNS.match(last_name(call.func))
        if is_call or isinstance(statement, ast.For | ast.While | ast.With):
            return WARNING.format(file=file, line=statement.lineno)
    return ""


def free_parameters(use: Use) -> list[str]:
    """Return the parameters of the mapped function that partials leave free."""
    if use.function is None:
        return []
    names = [argument.arg for argument in use.function.args.args]
    parameters = [name for name in names if name != "self"]
    for partial in use.inside:
        free = parameters[len(partial.args) - 1 :]
        parameters = [name for name in free if name not in keywords_of(partial)]
    return parameters


def ask_questions(
    program: Program, use: Use, name: str, parameters: list[str]
) -> list[str]:
    """Ask what the call of the step needs and the program doesn't show."""
    if use.function is None:
        return ["Which function makes one update? It's made when the program runs."]
    questions = []
    if not isinstance(program.parent(use.function), ast.Module):
        questions.append(f"How can {name} be reached? It isn't at the top of its file.")
    for call in use.inside:
        is_partial = program.path_of(call.func) == "functools.partial"
        if not is_partial or program.path_of(call.args[0]):  # partial(lax.scan, step)
            mapped = ast.unparse(call)
            questions.append(f"Which function makes one update? pmap maps {mapped}.")
            return questions
    takes_key = len(parameters) == 3 and KEY.search(parameters[2])
    result = program.returned(use.function)
    if len(parameters) != 2 and not takes_key:
        questions.append(
            f"{name} takes ({', '.join(parameters)}): which are the state, the batch "
            "and the key?"
        )
    elif isinstance(result, ast.Tuple) and len(result.elts) != 2:
        questions.append(
            f"{name} returns {ast.unparse(result)}: which are the new state and the "
            "metrics?"
        )
    return questions


def write_partial(program: Program, partial: ast.Call) -> tuple[str, list[str]]:
    """Return a step that's a partial, and a question for each name that a run makes."""
    arguments: list[Any] = [*partial.args, *partial.keywords]
    module: Any = program.around(partial, ast.Module)
    names: dict[str, Any] = {}
    for part in ast.walk(ast.List(arguments)):
        if isinstance(part, ast.Name):
            names[part.id] = program.resolve(part)
    lines = ["import functools\n"]
    questions = []
    for name, value in names.items():
        is_global = value and value is program.member(module, name)
        # What's under `if __name__ == "__main__"` can't be imported.
        if is_global and not program.around(value, ast.If):
            lines.append(load_name(name, program.file_of(partial)))
        else:
            lines.append(LOCAL_NAME.format(name=name))
            questions.append(f"What is {name}?")
    given = ", ".join(map(ast.unparse, arguments))
    lines.append(f"\nstep = functools.partial({given})")
    return "\n".join(lines), questions


def load_name(name: str, path: str) -> str:
    """Return the lines that load a name, also from a file named like `12_old.py`."""
    module = Path(path).stem
    if module.isidentifier():
        return f"from {module} import {name}"
    return f'import runpy\n\n{name} = runpy.run_path("{path}")["{name}"]'
