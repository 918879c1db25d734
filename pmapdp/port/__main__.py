"""Find what fails, is slow or gives other numbers in a pmap program, and port it.

    python -m pmapdp.port train.py            # with the files that it imports
    python -m pmapdp.port my_project --all    # a folder, also the fine lines
    python -m pmapdp.port train.ipynb --json  # a notebook; one JSON object

The program is read, and neither run nor changed. The exit status is 1 if a line fails or gives wrong numbers with this
JAX, 0 otherwise, and 2 if the command is wrong.
"""

import json
import logging
import sys
import textwrap
from dataclasses import MISSING, dataclass
from importlib.metadata import version
from typing import Any

from pmapdp import cli
from pmapdp.config import setting
from pmapdp.errors import FailedError
from pmapdp.port.find import BROKEN, STATUS, TABLE, find
from pmapdp.port.harness import describe_step
from pmapdp.port.read import CELL, read_program


@dataclass(frozen=True)
class Options:
    """Find what fails, is slow or gives other numbers in a pmap program."""

    path: str = setting("arguments", MISSING, "A Python file, a notebook, or a folder of both.", place="PATH")
    all: bool = setting("options", False, "Also list the lines that are fine, and what becomes of them in a port.")
    json: bool = setting("options", False, "Print one JSON object.")


def report_program(given: str) -> dict[str, Any]:
    """Report on a program as one object."""
    files, unread = read_program(given)
    findings, uses = find(files)
    lines = [
        {"path": path, "line": place(line), "construct": row, "status": STATUS[row], "code": code, **TABLE[row]}
        | {"link": f"docs/porting.md#{row}"}
        for path, line, row, code in findings
    ]
    mapped = [f"{use.node.file.path}:{place(use.node.lineno)} {use.name}" for use in uses]
    verify = describe_step(uses, files)
    return {"jax": version("jax"), "lines": lines, "unread": unread, "mapped": mapped, "verify": verify}


def place(line: int) -> str:
    """Give the number of a line, in a notebook with the number of its cell."""
    cell, line = divmod(line, CELL)
    return f"cell {cell} line {line}" if cell else str(line)


def wrap(text: str, indent: str) -> str:
    """Break a text into lines of at most 100 characters."""
    return textwrap.fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def as_text(report: dict[str, Any], everything: bool) -> str:
    """Write the report to read. Without `everything`, lines that are fine are only counted."""
    out, path = list(report["unread"]), None
    if not report["lines"]:
        return "\n".join([*out, "No construct of pmap was found."])
    shown = [each for each in report["lines"] if everything or each["status"] != "fine"]
    for each in shown:
        out += ["", each["path"]] if each["path"] != path else []
        path, code = each["path"], textwrap.shorten(each["code"], 70, placeholder="...")
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
    sys.setrecursionlimit(20_000)  # a long sum is a deep tree
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
