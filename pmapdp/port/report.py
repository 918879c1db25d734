"""The report about a program: its lines, what stands there instead, in which order to port, and how to verify it."""

import ast
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pmapdp.port.constructs import Finding, Mapped
from pmapdp.port.names import File, place
from pmapdp.port.table import PAGE

ORDER = ("gone", "fails", "slow", "fine")
TRAINS = re.compile(r"train|update|epoch|learn", re.IGNORECASE)
OTHERS = re.compile(r"eval|test|predict|valid|sample|generate|init|metric|encode|decode", re.IGNORECASE)
BATCH = re.compile(r"batch|data|image|label|input|graph|example|obs|token|^xs?$|^ys?$", re.IGNORECASE)
KEY = re.compile(r"rng|key|seed", re.IGNORECASE)
KEYWORDS = re.compile(r", (?:in_axes|out_axes|donate_argnums)=(?:\([^()]*\)|\w+)")
STATE = re.compile(r"replicate\(((?:[\w.]*state[\w.]*|create\w*|init\w*)(?:\([^()]*(?:\([^()]*\))?[^()]*\))?)\)")
HARNESS = """import jax
from pmapdp.devices import simulate
from pmapdp.verify import old_program, verify
from {module} import {step}  # the step itself, without pmap{inside}

simulate(8)
verify(
    step=jax.pmap({step}, axis_name={axis}{keywords}),
    reference=old_program({step}, {axis}, groups=8),
    state={given},  # {state}: as for one device, without a device axis
    batch=...,  # {batch}as for one device, [B, ...]
{optional}    layout="{layout}",
).require()"""


def needs(mapped: list[Mapped], files: dict[str, File]) -> dict[str, Any] | None:
    """What verify needs of the function that seems to be the training step, and the harness with it."""
    steps = [each for each in mapped if not OTHERS.search(each.name) and (each.axis or "axis_name" in each.call)]
    if not steps:
        return None
    step = min(steps, key=lambda each: (not TRAINS.search(each.name), "step" not in each.name, "lambda" in each.name))
    names = [each.arg for each in step.function.args.args if each.arg not in ("self", "cls")]
    source, key = ast.unparse(files[step.path].tree), [each for each in names if KEY.search(each)]
    batch = [each for each in names if BATCH.search(each) and each not in key]
    state = [each for each in names if each not in key + batch]
    axis = step.axis if step.axis and step.axis[0] in "'\"" else "..."
    given, per_device = STATE.search(source), [leaf for leaf in ("batch_stats", "dropout_rng") if leaf in source]
    harness = HARNESS.format(
        module=re.sub(r"\W", "_", Path(step.path).stem),
        step=step.name if step.name.isidentifier() else "step",
        axis=axis,
        keywords="".join(KEYWORDS.findall(step.call)),
        given=given[1] if given else "...",
        inside=", moved to the top level of the file" * (step.function not in files[step.path].tree.body),
        state=as_argument(state) or "the state",
        batch=f"{as_argument(batch)}: " if batch else "leave it out if there is none; ",
        optional=f"    key=jax.random.key(0),  # {', '.join(key)}\n" * bool(key)
        + f"    per_device={per_device},\n" * bool(per_device),
        layout="replicated" if "in_axes=(None" in step.call else "stacked",
    )
    found = {"step": step.name, "path": step.path, "axis_name": axis.strip("'\""), "state": state, "batch": batch}
    return found | {"key": key, "per_device": per_device, "harness": harness}


def as_argument(names: list[str]) -> str:
    """Several arguments are given to verify as a tuple."""
    return f"({', '.join(names)})" if len(names) > 1 else "".join(names)


def as_json(findings: list[Finding], mapped: list[Mapped], files: dict[str, File], unread: list[str]) -> dict[str, Any]:
    """The report as one object."""
    fields = ("status", "today", "shard_map", "jit", "link")
    fewest = sorted(mapped, key=lambda each: sum(each.function in found.inside for found in findings))
    return {
        "jax": version("jax"),
        "lines": [
            {"path": each.path, "line": place(each.line), "construct": each.row.id, "code": each.code}
            | {name: getattr(each.row, name) for name in fields}
            for each in findings
        ],
        "unread": unread,
        "summary": {status: sum(each.row.status == status for each in findings) for status in ORDER},
        "order": [f"{each.path}:{place(each.line)} {each.name}" for each in fewest],
        "verify": needs(mapped, files),
    }


def as_text(report: dict[str, Any]) -> str:
    """The same to read."""
    out, lines, path = list(report["unread"]), report["lines"], None
    if not lines:
        return "\n".join([*out, "No construct of pmap was found."])
    for each in lines:
        out += ["", each["path"]] if each["path"] != path else []
        path, code = each["path"], each["code"]
        code = code if len(code) < 80 else f"{code[:77]}..."
        out.append(f"  {each['line']:>6}  {each['status']:5}  {each['construct']:14}  {code}")
    out += ["", "What stands there instead"]
    for row in sorted({each["construct"]: each for each in lines}.values(), key=lambda row: ORDER.index(row["status"])):
        out += [f"  {row['construct']}"]
        out += [f"    {part + ':':10} {row[part]}" for part in ("today", "shard_map", "jit", "link")]
    said = ", ".join(f"{count} {status}" for status, count in report["summary"].items() if count)
    out += ["", f"Constructs: {said}."]
    steps = ["Correct the lines that are gone or fail."] * any(report["summary"][each] for each in ORDER[:2])
    if report["order"]:
        steps += [
            f"Put my_pmap of {PAGE} in the place of jax.pmap, and compare the numbers.",
            "Move one function at a time to shard_map: " + "; ".join(report["order"]) + ".",
            "Take away the device axis: replicate, shard, unreplicate, [0].",
            "Go on to jit only if results may change: they then no longer depend on the number of devices.",
        ]
    out += ["Port in this order:"] * bool(steps) + [f"  {number}. {step}" for number, step in enumerate(steps, 1)]
    if need := report["verify"]:
        out += ["", f"Verify {need['step']} of {need['path']}; what could not be read is marked with three dots:", ""]
        out.append(need["harness"])
    return "\n".join(out).lstrip()
