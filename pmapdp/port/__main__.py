"""Find what fails, is slow or gives other numbers in a pmap program, and port it.

    python -m pmapdp.port train.py            # with the files that it imports
    python -m pmapdp.port my_project --all    # a folder, also the fine lines
    python -m pmapdp.port train.py --json     # one JSON object

The program is read, and neither run nor changed. The exit status is 1 if a line fails or gives wrong numbers with this
JAX, 0 otherwise, and 2 if the command is wrong.
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
from pmapdp.port.find import BROKEN, KEY, Use, find, mapped
from pmapdp.port.read import File, constant, read_program
from pmapdp.verify.report import wrap

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


@dataclass(frozen=True)
class Options:
    """Find what fails, is slow or gives other numbers in a pmap program."""

    path: str = setting("arguments", MISSING, "A Python file, or a folder of them.", place="PATH")
    all: bool = setting("options", False, "Also list the lines that are fine, and what becomes of them in a port.")
    json: bool = setting("options", False, "Print one JSON object.")


def report_program(given: str) -> dict[str, Any]:
    """Report on a program as one object."""
    files, unread = read_program(given)
    lines, uses = find(files)
    maps = [f"{use.node.file.path}:{use.node.lineno} {use.name}" for use in uses]
    verify = describe_step(uses, files)
    return {"jax": version("jax"), "lines": lines, "unread": unread, "mapped": maps, "verify": verify}


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


def as_text(report: dict[str, Any], everything: bool) -> str:
    """Write the report to read. Without `everything`, lines that are fine are only counted."""
    out, path = list(report["unread"]), None
    if not report["lines"]:
        return "\n".join([*out, "No construct of pmap was found."])
    shown = [each for each in report["lines"] if everything or each["status"] != "fine"]
    for each in shown:
        out += ["", each["path"]] if each["path"] != path else []
        path, code = each["path"], shorten(each["code"], 70, placeholder="...")
        out.append(f"  {each['line']:>6}  {each['status']:5}  {each['construct']:18}  {code}")
    out += ["", "What to write instead"] * bool(shown)
    for row in {each["construct"]: each for each in shown}.values():
        out.append(f"  {row['construct']}")
        out += [wrap(f"    {part + ':':10} {row[part]}", " " * 15) for part in ("today", "shard_map", "jit", "link")]
    statuses = [each["status"] for each in report["lines"]]
    counts = ", ".join(f"{statuses.count(each)} {each}" for each in dict.fromkeys(statuses))
    hint = " (--all lists those that are fine, and what becomes of them)" * (len(shown) < len(statuses))
    out += ["", f"Constructs: {counts}{hint}."]
    mapped = f"Mapped: {'; '.join(report['mapped'])}. docs/porting.md ports one at a time."
    out += [wrap(mapped, " " * 8)] * bool(report["mapped"])
    if need := report["verify"]:
        questions = [wrap(f"  - {question}", " " * 4) for question in need["questions"]]
        then = "answer this first (docs/verify.md):" if questions else "save this as verify_step.py:"
        out += ["", f"To verify {need['step']} of {need['path']}, {then}", *(questions or ["", need["harness"]])]
    return "\n".join(out).lstrip()


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = cli.parse(Options, arguments, __doc__)
    logging.getLogger("absl").setLevel(logging.ERROR)  # Flax warns when its modules are looked up
    report = report_program(options.path)
    print(json.dumps(report) if options.json else as_text(report, options.all))
    broken = [each for each in report["lines"] if each["status"] in BROKEN]
    if broken:
        first = f"{broken[0]['path']}:{broken[0]['line']} ({broken[0]['construct']})"
        fail = "1 line fails or gives" if len(broken) == 1 else f"{len(broken)} lines fail or give"
        raise FailedError(f"{fail} wrong numbers with jax {version('jax')}, first {first}: {broken[0]['today']}")


if __name__ == "__main__":
    sys.exit(cli.run(main))
