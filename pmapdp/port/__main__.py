"""Find what fails, is slow or gives other numbers in a pmap program, and port it.

    python -m pmapdp.port train.py            # with the files that it imports
    python -m pmapdp.port my_project --all    # a folder, also the fine lines
    python -m pmapdp.port train.py --json     # one JSON object

Your program is read, not run. The exit status is 1 if a line of it fails or gives wrong
numbers with this JAX.
"""

import ast
import json
import logging
import re
import sys
from dataclasses import MISSING, dataclass
from importlib.metadata import version
from pathlib import Path
from textwrap import shorten
from typing import Any

from pmapdp import cli
from pmapdp.config import setting
from pmapdp.errors import FailedError
from pmapdp.port.find import BROKEN, Use, expand, find, read_pmap
from pmapdp.port.read import File, read_program
from pmapdp.verify.report import wrap

TRAINS = re.compile(
    r"(?!.*(eval|test|predict|valid|init|metric)).*(train|update|epoch|step|learn)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Options:
    """Find what fails, is slow or gives other numbers in a pmap program."""

    path: str = setting(
        "arguments", MISSING, "A Python file, or a folder of them.", place="PATH"
    )
    all: bool = setting(
        "options",
        False,
        "Also list the lines that are fine, and what becomes of them in a port.",
    )
    json: bool = setting("options", False, "Print one JSON object.")


def report_program(given: str) -> dict[str, Any]:
    """Report on a program as one object."""
    files, unread = read_program(given)
    lines, uses = find(files)
    return {
        "jax": version("jax"),
        "lines": lines,
        "unread": unread,
        "verify": describe_step(uses, files),
    }


def describe_step(uses: list[Use], files: dict[str, File]) -> dict[str, Any] | None:
    """Write the harness of the function that seems to train, or the questions that are open. None if nothing trains."""
    steps = [
        use
        for use in uses
        if "axis_name" in use.options
        and TRAINS.match(getattr(use.function, "name", ""))
    ]
    if not steps:
        return None
    options, function, inside = steps[0]
    name, file, axis = (
        function.name,
        function.file,
        expand(options["axis_name"]).replace("'", '"'),
    )
    calls = [
        node
        for each in files.values()
        for node in each.nodes
        if isinstance(node, ast.Call)
    ]
    calls = [
        call
        for call in calls
        if isinstance(call.parent, ast.Assign) and read_pmap(call.func) == steps[0]
    ]
    given = [ast.unparse(each) for call in calls[:1] for each in call.args]
    results = [
        each
        for call in calls[:1]
        for each in ast.unparse(call.parent.targets[0]).strip("()").split(", ")
    ]
    is_plain = (
        results[:1] == given[:1] != []
        and len(results) < 3
        and len(given) < 4
        and not calls[0].keywords
    )
    is_plain = is_plain and all(re.search("rng|key|seed", each) for each in given[2:])
    is_module = (
        function in file.tree.body and (module := Path(file.path).stem).isidentifier()
    )
    questions = {
        f"Where can {name} be imported from? It isn't at the top level of a module with a name.": not is_module,
        "Which axis_name is it? It's made when the program runs.": axis[0] != '"',
        f"Which function makes one update? pmap maps a partial, a loop or a vmap around {name}.": inside,
        f"Which arguments of {name} are the state that it returns, the batch and the key? Put a function of "
        "(state, batch, key) around it that returns (state, metrics).": not is_plain,
    }
    if unanswered := [question for question, is_open in questions.items() if is_open]:
        return {"step": name, "path": file.path, "harness": "", "questions": unanswered}
    names = ["state", "batch", "key"][: len(given)]
    rows = (
        ["key"] if "key" in names and "in_axes" not in options else []
    )  # pmap gives each device its row
    rows += [
        leaf
        for leaf in ("dropout_rng", "batch_stats")
        if leaf in ast.unparse(file.tree)
    ]
    harness = f"""# Call `check` with your program's first state and batch, before they are replicated or split.
# Leaves in `per_device` have a row for each device.
import jax
from {module} import {name}
from pmapdp.verify import old_program, one_device, verify

def check({", ".join(names)}, new_step=None):
    step = getattr({name}, "__wrapped__", {name})  # without a decorator @pmap
    given = {{{", ".join(f'"{each}": {each}' for each in names)}, "per_device": {json.dumps(rows)}}}
    # The reference is the step on one device, where a psum is a pmean: this finds a sum in place of a mean.
    print(verify(step=jax.pmap(step, axis_name={axis}), reference=one_device(step, {axis}), **given))
    if new_step is not None:  # The port. Its reference is the old step: this can't see a mistake that both make.
        reference = old_program(step, {axis}, groups=jax.device_count())
        print(verify(step=new_step, layout="sharded", reference=reference, **given))
"""
    return {"step": name, "path": file.path, "harness": harness, "questions": []}


def as_text(report: dict[str, Any], everything: bool) -> str:
    """Return the report as text. Without `everything`, lines that are fine are only counted."""
    lines = [each for each in report["lines"] if everything or each["status"] != "fine"]
    out = [*report["unread"]]
    for row in {each["construct"]: each for each in lines}.values():
        out += ["", f"  {row['status']:5}  {row['construct']:20}  {row['link']}"]
        out += [
            wrap(f"    {part + ':':10} {row[part]}", " " * 15)
            for part in ("today", "shard_map", "jit")
        ]
        found = [each for each in lines if each["construct"] == row["construct"]]
        out += [
            f"    {each['path']}:{each['line']}  {shorten(each['code'], 70)}"
            for each in found
        ]
    listed = f"Listed: {len(lines)} of {len(report['lines'])} constructs of pmap. --all lists the fine ones too."
    out += ["", listed if report["lines"] else "No construct of pmap was found."]
    if step := report["verify"]:
        questions = [wrap(f"  - {question}", " " * 4) for question in step["questions"]]
        then = (
            "answer this first (docs/verify.md):"
            if questions
            else "save this as verify_step.py:"
        )
        out += [
            "",
            f"To verify {step['step']} of {step['path']}, {then}",
            *(questions or ["", step["harness"]]),
        ]
    return "\n".join(out).strip("\n")


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = cli.parse(Options, arguments, __doc__)
    logging.getLogger("absl").setLevel(
        logging.ERROR
    )  # Flax warns when its modules are looked up
    report = report_program(options.path)
    print(json.dumps(report) if options.json else as_text(report, options.all))
    if broken := [each for each in report["lines"] if each["status"] in BROKEN]:
        where = "{path}:{line} ({construct}): {today}".format(**broken[0])
        raise FailedError(
            f"lines that fail or are wrong with jax {report['jax']}: {len(broken)}, first {where}"
        )


if __name__ == "__main__":
    sys.exit(cli.run(main))
