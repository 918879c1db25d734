"""Make docs/constructs.md from the table of `pmapdp.port`.

python docs/constructs.py > docs/constructs.md
"""

from pmapdp.port.rows import ROWS, SAME, Row

TOP = """# Pmap, construct by construct

Search this page for the function in your line. If you have an error message instead,
[search for the message](newer_jax.md#find-your-error-message), and if you have a whole
program, let [`port`](porting.md) find its lines.

*Stays* means that you keep the line, and *not needed* that you remove it. N is the
number of devices, `[B, ...]` the global batch, and `b = B / N`. Tests run every line
that fails, and the collectives and steps in their old and new form.
"""
# The headings of the lines to look at first, as port reports them, by its words.
FIRST = {
    "fails": "Fails: the line raises an error",
    "wrong": "Wrong: the line runs, and gives wrong numbers",
    "check": "Check: it depends on the rest of your step",
    "slow": "Slow: the numbers are correct",
}
OLD_NAMES = """
## Names that are gone or deprecated

These names raise an error, unless they're marked *deprecated*. The new name serves
under pmap, shard_map and jit alike, unless the row says otherwise.

| old | new |
| --- | --- |
"""
FINE = """
## Lines that run as they always did

They only change when you port the step.
"""
HEAD = """
| with pmap | under shard_map | under jit |
| --- | --- | --- |
"""
# The tables of the lines that are fine, by the first row of each.
HEADINGS = {
    "pmap": "The call of pmap",
    "committed": "Arrays and the device axis",
    "pmean": "Collectives",
    "batch-norm": "Batch norm, random keys, losses and metrics",
    "hosts": "Several hosts, and checkpoints",
}


def written(row: Row) -> str:
    """Return how people write a row's line, with the mark that links lead to."""
    return f'<a id="{row.name}"></a>{row.written}'


def list_item(row: Row) -> str:
    """Return a line to look at first as an item of a list."""
    text = f"- {written(row)}: {row.today}\n"
    if row.jit in (SAME, row.shard_map):
        return f"{text}  - write: {row.shard_map}\n"
    return f"{text}  - shard_map: {row.shard_map}\n  - jit: {row.jit}\n"


def old_name(row: Row) -> str:
    """Return an old name as a row of its table."""
    old = written(row)
    if row.status == "old":
        old += ", *deprecated*"
    new = row.shard_map
    if row.jit not in (SAME, row.shard_map) and not row.jit.startswith("not needed"):
        new += f"; under jit {row.jit}"
    return f"| {old} | {new} |\n"


def fine_line(row: Row) -> str:
    """Return a line that is fine as a row of a table."""
    line = written(row)
    if row.today:
        line += f": {row.today}"
    jit = "the same" if row.jit in (SAME, row.shard_map) else row.jit
    return f"| {line} | {row.shard_map} | {jit} |\n"


def main() -> None:
    """Print the page."""
    old, first, fine = OLD_NAMES, "", FINE
    for status, heading in FIRST.items():
        first += f"\n## {heading}\n\n"
        for row in ROWS.values():
            if row.status == status:
                first += list_item(row)
    for row in ROWS.values():
        if row.name in HEADINGS:
            fine += f"\n### {HEADINGS[row.name]}\n{HEAD}"
        if row.status in ("gone", "old"):
            old += old_name(row)
        elif row.status == "fine":
            fine += fine_line(row)
    print(TOP + old + first + fine, end="")


if __name__ == "__main__":
    main()
