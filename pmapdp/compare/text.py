"""What a run holds, exchanges and takes, in words: for the page and for the terminal."""

from typing import Any, NamedTuple

from rich.filesize import decimal

WRITTEN = {"psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "reduce_scatter", "ppermute", "all_to_all"}
EQUAL = 1e-9  # relative, in float64: what is less is rounding


def figures(run: dict[str, Any]) -> dict[str, str]:
    """The figures of a run by the name of the column."""
    far = run["largest_difference"]
    return {
        **({"loss": f"{run['losses'][-1]:.4f}"} if "losses" in run else {}),
        "difference": "another start" if far is None else f"{far:.1e}",
        "step": "{median:.3g} ms ({low:.3g} to {high:.3g})".format(**run["step_ms"]),
        "examples/s": f"{run['examples_per_second']:,.0f}",
        "collectives": "; ".join(map(collective, run["collectives"])) or "none",
        "peak memory": decimal(run["memory"]["peak"]),
        "verify": verified(run),
    }


def verified(run: dict[str, Any]) -> str:
    """What `pmapdp.verify` finds: that the step equals one device, or what is wrong."""
    if run["strategy"] == "single":
        return "the reference"
    return ", ".join(run["causes"]) or {"failed": "failed", "incomplete": "not proven"}.get(
        run.get("verdict", ""), "equal"
    )


def collective(each: dict[str, Any]) -> str:
    """For example `all-reduce of 9 arrays, 2.7 MB`."""
    return f"{each['kind']} of {plural(each['arrays'], 'array')}, {decimal(each['bytes'])}"


def origin(each: dict[str, Any]) -> str:
    """Who asks for a collective: a line of the source, or the compiler, which needs it for operations of a line."""
    if set(each["operations"]) & WRITTEN:
        return f"written in {each['source']}:"
    return f"added by the compiler for {', '.join(each['operations'])}" + (
        f", as in {each['source']}:" if each["source"] else ""
    )


class Fact(NamedTuple):
    """Something that the arrays or the compiled program of a run say."""

    head: str
    detail: str
    line: str = ""  # of source
    parts: tuple[list[float], ...] = ()  # of an array, to draw


def ran(what: str | None, run: dict[str, Any]) -> list[Fact]:
    """What stands below a row of sources: collectives, memory, or what the devices hold."""
    if what == "collectives":
        found = [Fact(collective(each), origin(each), each["text"]) for each in run["collectives"]]
        return found or [Fact("no collective", "in the compiled program")]
    if what == "memory":
        parts = " + ".join(f"{name} {decimal(run['memory'][name])}" for name in ("arguments", "results", "temporary"))
        return [Fact(f"{decimal(run['memory']['peak'])} on a device", parts)]
    # Of a reader's own programs some rows show two groups of arrays.
    several = {"placed": ("state", "batch"), "saved": ("saved", "metric")} if "verdict" in run else {}
    return [placed(run["held"][name]) for name in several.get(what or "", (what,)) if name in run["held"]]


def placed(group: dict[str, Any]) -> Fact:
    """What a device holds of a tree: its largest array, and then which one that is and how much it is in all."""
    array = group["largest"]
    name = "" if array["name"] == "the value itself" else f"{array['name']}, "
    most = "" if group["arrays"] == 1 else f", the largest of {group['arrays']} arrays; together"
    detail = f"{name}{array['dtype']}{most or ';'} {decimal(group['bytes'])}"
    head = f"{shape(array['shape'])} {'by ' * array['sharding'].startswith('P(')}{array['sharding']}"
    if len(array["parts"]) > 1:
        here = shape(array["on_device"]) if array["on_device"] != array["shape"] else "all of it"
        head += f": {here} on a device"
        detail += " on a device"
    return Fact(head, detail, parts=tuple(array["parts"]))


def shape(sizes: list[int]) -> str:
    """Of an array."""
    return str(sizes) if sizes else "a number, []"


def verdict(result: dict[str, Any]) -> str:
    """`equal`, or what is off and by how much, for example `gradient 31.0% off`."""
    wrong = [what for what in ("loss", "gradient") if result[what] > EQUAL]
    said = ", ".join(f"{what} {result[what]:.1%} off" for what in wrong) or "equal"
    if wrong == ["gradient"] and abs(result["times"] - 1 - result["gradient"]) < EQUAL:  # in the same direction
        said = f"gradient \u00d7 {result['times']:.3g}"
    return said + ("" if result["agree"] else "; another on each device")


def heading(words: str) -> str:
    """With a capital letter in front."""
    return words[:1].upper() + words[1:]


def plural(number: int, what: str) -> str:
    """For example `1 array`, `2 arrays`."""
    return f"{number} {what}{'s' * (number != 1)}"
