"""List the lines of a pmap program that need attention, and print a check of its step.

    python -m pmapdp.port train.py            # with the files that it imports
    python -m pmapdp.port my_project --all    # a folder, also the fine lines
    python -m pmapdp.port train.py --json     # one JSON object

Your program is read, and neither run nor changed. The report names sections of
docs/constructs.md in pmapdp's repository. The exit status is 1 if a line of the program
fails or gives wrong numbers with this JAX.
"""

import json
import logging
import sys
from collections import defaultdict
from dataclasses import MISSING, dataclass
from importlib.metadata import version
from textwrap import shorten
from typing import Any

from pmapdp import cli, flags
from pmapdp.config import setting
from pmapdp.errors import FailedError
from pmapdp.port.find import BROKEN, Line, find_constructs
from pmapdp.port.names import Program
from pmapdp.port.pmaps import find_pmaps
from pmapdp.port.read import read_files
from pmapdp.port.rows import PLACES, SAME
from pmapdp.port.verify_step import choose_step, write_verification
from pmapdp.verify.report import wrap

COMMAND = flags.Command(
    usage="python -m pmapdp.port PATH [flags]",
    example="python -m pmapdp.port old_program.py",
    description=__doc__,
)


NO_STEP = (
    "There's no program to verify a step, because no pmapped function with an "
    "axis_name computes gradients, or is called like train_step. Without an axis, a "
    "step averages nothing. docs/verify.md in pmapdp's repository says how to verify "
    "any other step."
)


@dataclass(frozen=True)
class Options:
    """List the lines of a pmap program that need attention."""

    path: str = setting(
        "arguments", MISSING, "A Python file, or a folder of them.", positional="PATH"
    )
    all: bool = setting(
        "options",
        False,
        "Also list the lines that are fine, and what becomes of them in a port.",
    )
    json: bool = setting("options", False, "Print one JSON object.")


def report_program(path: str) -> dict[str, Any]:
    """Report on a program as one object."""
    files, unread = read_files(path)
    program = Program(files)
    pmaps = find_pmaps(program)
    lines = find_constructs(program, pmaps)
    step = choose_step(program, pmaps)
    verification = None
    if step:
        constructs = {line["construct"] for line in lines}
        verification = write_verification(program, step, constructs)
    return {
        "jax": version("jax"),
        "lines": lines,
        "pmaps": len(pmaps),
        "unread": unread,
        "verify": verification,
    }


def as_text(report: dict[str, Any], everything: bool) -> str:
    """Return the report as text. Lines that are fine are listed if `everything` is."""
    listed = report["lines"]
    if not everything:
        listed = [line for line in listed if line["status"] != "fine"]
    lines_of = defaultdict(list)  # by construct: first what stops the program
    for line in sorted(listed, key=lambda line: PLACES[line["status"]]):
        lines_of[line["construct"]].append(line)
    text = [*report["unread"]]
    for lines in lines_of.values():
        text += describe_construct(lines)
    end = "No construct of pmap was found."
    if report["lines"]:
        end = f"Listed: {len(listed)} of {len(report['lines'])} constructs of pmap."
        if not everything:
            end += " --all lists the fine ones too."
    text += ["", end]
    verification = report["verify"]
    if report["pmaps"] and not verification:
        text += ["", wrap(NO_STEP)]
    if verification:
        step = verification["step"]
        text += ["", f"To verify {step}, save this as verify_step.py:", ""]
        text.append(verification["program"])
    return "\n".join(text).strip("\n")


def describe_construct(lines: list[Line]) -> list[str]:
    """Return what the table says of a construct, and the program's lines with it."""
    row = lines[0]
    text = ["", f"  {row['status']:5}  {row['construct']:20}  {row['link']}"]
    texts = {"today": row["today"], "shard_map": row["shard_map"], "jit": row["jit"]}
    if row["status"] != "fine" and row["jit"] == SAME:
        texts = {"today": row["today"], "write": row["shard_map"]}
    for label, words in texts.items():
        if words:
            start = f"    {label}:"
            text.append(wrap(f"{start:15}{words}", " " * 15))
    for line in lines:
        code = shorten(line["code"], 70)
        text.append(f"    {line['path']}:{line['line']}  {code}")
    return text


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = flags.parse(COMMAND, Options, arguments)
    # Flax warns when its modules are looked up.
    logging.getLogger("absl").setLevel(logging.ERROR)
    report = report_program(options.path)
    if options.json:
        print(json.dumps(report))
    else:
        print(as_text(report, options.all))
    broken = [line for line in report["lines"] if line["status"] in BROKEN]
    if broken:
        first = broken[0]
        line = f"{first['path']}:{first['line']} ({first['construct']})"
        raise FailedError(
            f"lines that fail or are wrong with jax {report['jax']}: {len(broken)}, "
            f"first {line}: {first['status']}"
        )


if __name__ == "__main__":
    sys.exit(cli.run(main))
