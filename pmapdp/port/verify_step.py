"""Write a program that verifies the training step of a pmap program."""

import ast
import builtins
import re
from pathlib import Path
from typing import Any

from pmapdp.port.constructs import gradient_or_loss, names_in
from pmapdp.port.names import FUNCTIONS, Program
from pmapdp.port.pmaps import (
    Pmap,
    find_functions_on_devices,
    is_partial,
    keywords_of,
)

TRAINS = re.compile("train|update|epoch|step|learn", re.IGNORECASE)
DOES_NOT_TRAIN = re.compile("eval|test|predict|valid|init|metric", re.IGNORECASE)
KEY = re.compile("rng|key|seed", re.IGNORECASE)
# Leaves that differ from device to device, by their usual names in Flax programs.
PER_DEVICE_LEAVES = ("dropout_rng", "batch_stats")

PROGRAM = '''\
"""Does {name} on 8 devices give one device's result? `python verify_step.py`

Fill in what ends with SystemExit. The exit status is 1 if the results differ, or if
something wasn't compared.
"""

import importlib
import sys

from pmapdp.devices import simulate

simulate(8)  # before JAX starts; a machine with GPUs or TPUs uses those

import jax

from pmapdp.verify import old_program, one_device, verify

# The import runs the top level of your program. If that trains, put it under
# `if __name__ == "__main__":` first.
sys.path.insert(0, "{folder}")
program = importlib.import_module("{module}")

{step}


def first_arguments():
    """Return dict({arguments}) for the first update.

    They're as one device has them, before they're replicated or split. Leaves in
    PER_DEVICE have a row for each device, `[8, ...]`. If your loop makes a key for each
    update, the key is a function that makes it from the update's number.
    """
    raise SystemExit("verify_step.py: fill in first_arguments")


PER_DEVICE = {per_device}
given = dict(first_arguments(), per_device=PER_DEVICE)

pmapped = jax.pmap(step, axis_name=AXIS)
# This reference is your step on one device, where a psum and a pmean are the same. So
# it finds a sum in place of a mean.
report = verify(step=pmapped, reference=one_device(step, AXIS), **given)
print(report)
# This one runs your step over groups of the batch, as the devices do. It can't see a
# sum in place of a mean, because it adds up as well.
old = old_program(step, AXIS, groups=jax.device_count())
if report.failed and PER_DEVICE and verify(step=pmapped, reference=old, **given).ok:
    print(
        "NOT PROVEN: on one device the step gives another result, as reported above. "
        f"Perhaps only because each device has its own {{', '.join(PER_DEVICE)}}: over "
        "groups of the batch, each with its own, the step gives the devices' result. "
        "Verify it once without dropout and with a shared batch norm, or with a "
        "reference by hand, which pmapdp's page on porting shows in step 2."
    )
try:
    # If the report advises report.require(not_compared=...), paste it over this line.
    report.require()
except AssertionError:
    raise SystemExit(1) from None
# After the port, compare the new step with the old one. Both can still make one
# mistake, and this comparison can't see it. That's why the other one comes first.
# verify(step=new_step, layout="sharded", reference=old, **given).require()
'''
BLANK = """\
# What is {name}? Importing the program doesn't define it.
{name} = ...
raise SystemExit("verify_step.py: fill in {name}")"""
WITHOUT_DECORATOR = """\
{name} = getattr({mapped}, "__wrapped__", {mapped})  # without a decorator @pmap"""
OPEN_STEP = '''


def step({arguments}):
    """Return the new state and the metrics of one device's examples.

    Call `unmapped`, because pmap is put around this function below.
    """
    # {question}
    raise SystemExit("verify_step.py: fill in step")'''


def choose_step(program: Program, pmaps: list[Pmap]) -> Pmap | None:
    """Choose the pmapped function that seems to train, or None.

    It has an axis to average over, and a name that fits. Otherwise it's one that can't
    be found, or that computes gradients, perhaps in a function that it calls.
    """
    averaging = [pmap for pmap in pmaps if "axis_name" in pmap.options]
    for pmap in averaging:
        name = pmap.name or ast.unparse(pmap.argument)
        if TRAINS.search(name) and not DOES_NOT_TRAIN.search(name):
            return pmap
    for pmap in averaging:
        functions = find_functions_on_devices(program, [pmap])
        names = [names_in(program, function) for function in functions]
        if pmap.function is None or "grad" in " ".join(names):
            return pmap
    return None


def write_verification(
    program: Program, pmap: Pmap, constructs: set[str]
) -> dict[str, Any]:
    """Write the program that verifies a step, and the questions that are open in it.

    Args:
        program: The program.
        pmap: Its step.
        constructs: The names of the constructs in the program.

    Returns:
        The name of the step, its file, the program, and the questions.
    """
    step_name = pmap.name or "your step"
    path = program.file_of(pmap.argument)
    known, unknown = split_names(program, program.files[path], pmap.argument)
    lines = [f"{name} = program.{name}" for name in known]
    axis = program.resolve(pmap.options["axis_name"])
    if isinstance(axis, ast.Constant):
        lines.append(f"AXIS = {axis.value!r}")
    else:
        unknown.append("AXIS")
    lines += [BLANK.format(name=name) for name in unknown]
    questions = [f"What is {name}?" for name in unknown]

    arguments = choose_arguments(free_parameters(program, pmap))
    question = ask_about_call(program, pmap)
    if question:
        questions.append(question)
    lines.append(write_step(pmap, arguments, question))

    per_device = []
    for leaf in PER_DEVICE_LEAVES:
        is_shared = leaf == "batch_stats" and "batch-norm" in constructs
        if has_name(program.files[path], leaf) and not is_shared:
            per_device.append(leaf)
    # Each device has its row of the keys.
    if "key" in arguments and "in_axes" not in pmap.options:
        per_device.insert(0, "key")
    folder, module = find_module(Path(path))
    text = PROGRAM.format(
        name=step_name,
        folder=folder.as_posix(),
        module=module,
        step="\n".join(lines),
        arguments=", ".join(f"{argument}=..." for argument in arguments),
        per_device=per_device,
    )
    return {"step": step_name, "path": path, "questions": questions, "program": text}


def has_name(tree: ast.AST, name: str) -> bool:
    """Return True if a file has a name, an attribute, a keyword or a key like this."""
    return any(name in vars(node).values() for node in ast.walk(tree))


def write_step(pmap: Pmap, arguments: list[str], question: str) -> str:
    """Write the line that defines `step`, or a function to fill in."""
    mapped = getattr(pmap.argument, "name", None) or ast.unparse(pmap.argument)
    name = "step"
    if question:
        name = "unmapped"
    step = WITHOUT_DECORATOR.format(name=name, mapped=mapped)
    if pmap.wrappers:  # of a transformation, __wrapped__ would be the function in it
        step = f"{name} = {mapped}"
    if question:
        step += OPEN_STEP.format(arguments=", ".join(arguments), question=question)
    return step


def split_names(
    program: Program, module: ast.Module, argument: Any
) -> tuple[list[str], list[str]]:
    """Split the names in pmap's argument: what an import defines, and what it doesn't.

    A name under `if __name__ == "__main__"` isn't there after an import.
    """
    values: dict[str, Any] = {}
    if isinstance(argument, ast.FunctionDef):
        values[argument.name] = argument
    else:
        for part in ast.walk(argument):
            value: Any = program.resolve(part)
            if isinstance(part, ast.Name) and not program.enclosing(value, ast.Lambda):
                values[part.id] = value
    known = []
    unknown = []
    for name, value in values.items():
        if value is None and hasattr(builtins, name):
            continue
        is_inner = program.enclosing(value, (*FUNCTIONS, ast.ClassDef, ast.If))
        if value is None or is_inner or program.member(module, name) is None:
            unknown.append(name)
        else:
            known.append(name)
    return known, unknown


def choose_arguments(parameters: list[str]) -> list[str]:
    """Return the arguments that `verify` passes to a step with these parameters."""
    are_keys = [is_key(parameter) for parameter in parameters]
    if are_keys == [False, True]:
        return ["state", "key"]
    if any(are_keys):
        return ["state", "batch", "key"]
    return ["state", "batch"]


def is_key(parameter: str) -> bool:
    """Return True if a parameter has the name of a random key."""
    return KEY.search(parameter) is not None


def ask_about_call(program: Program, pmap: Pmap) -> str:
    """Ask how the step is called, unless its parameters and its result are known."""
    if pmap.function is None:
        return f"How does {ast.unparse(pmap.argument)} make one update?"
    if pmap.path == "flax.nnx.pmap":
        return (
            f"nnx.pmap changes the arguments of {pmap.name} in place: how does it "
            "return the new state?"
        )
    parameters = free_parameters(program, pmap)
    are_keys = [is_key(parameter) for parameter in parameters]
    arguments = choose_arguments(parameters)
    if are_keys != [argument == "key" for argument in arguments]:
        listed = ", ".join(parameters)
        return f"{pmap.name} takes ({listed}): which are state, batch and key?"
    result = program.result(pmap.function)
    if not isinstance(result, ast.Tuple):
        return ""
    if len(result.elts) != 2:
        listed = ast.unparse(result)
        return f"{pmap.name} returns {listed}: which are new state and metrics?"
    if gradient_or_loss(program, result.elts[0]) == "grad":
        return f"{pmap.name} returns gradients: how does your loop apply them?"
    return ""


def free_parameters(program: Program, pmap: Pmap) -> list[str]:
    """Return the parameters of the mapped function that partials leave free."""
    if pmap.function is None:
        return []
    names = [argument.arg for argument in pmap.function.args.args]
    parameters = [name for name in names if name != "self"]
    for call in pmap.wrappers:
        if is_partial(program, call):
            free = parameters[len(call.args) - 1 :]
            parameters = [name for name in free if name not in keywords_of(call)]
    return parameters


def find_module(path: Path) -> tuple[Path, str]:
    """Return the folder from which a file can be imported, and its dotted name."""
    folder = path.parent
    module = path.stem
    while (folder / "__init__.py").exists():
        module = f"{folder.name}.{module}"
        folder = folder.parent
    return folder, module
