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
# The lists of the lines that are fine, by the first row of each.
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
    """Return a line, and what becomes of it, as an item of a list."""
    text = f"- {written(row)}"
    if row.today:
        text += f": {row.today}"
    if row.jit not in (SAME, row.shard_map):
        return f"{text}\n  - shard_map: {row.shard_map}\n  - jit: {row.jit}\n"
    if row.status == "fine":
        return f"{text}\n  - shard_map, jit: {row.shard_map}\n"
    return f"{text}\n  - write: {row.shard_map}\n"


def old_name(row: Row) -> str:
    """Return an old name as a row of its table."""
    old = written(row)
    if row.status == "old":
        old += ", *deprecated*"
    new = row.shard_map
    if row.jit not in (SAME, row.shard_map) and not row.jit.startswith("not needed"):
        new += f"; under jit {row.jit}"
    return f"| {old} | {new} |\n"


def main() -> None:
    """Print the page."""
    old = OLD_NAMES
    first = ""
    fine = FINE
    for status, heading in FIRST.items():
        first += f"\n## {heading}\n\n"
        for row in ROWS.values():
            if row.status == status:
                first += list_item(row)
    for row in ROWS.values():
        if row.name in HEADINGS:
            fine += f"\n### {HEADINGS[row.name]}\n\n"
        if row.status in ("gone", "old"):
            old += old_name(row)
        elif row.status == "fine":
            fine += list_item(row)
    print(TOP + old + first + fine, end="")


if __name__ == "__main__":
    main()
