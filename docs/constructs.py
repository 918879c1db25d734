"""Make docs/constructs.md from the table of `pmapdp.port`.

python docs/constructs.py > docs/constructs.md
"""

from pmapdp.port.rows import ROWS, SAME, Row

TOP = """# Pmap, construct by construct

Search this page for the function in your line. If you have an error message instead,
[search for the message](newer_jax.md#find-your-error-message), and if you have a whole
program, let [`port`](porting.md) find its lines.

The page lists [names that are gone](#names-that-are-gone-or-deprecated), lines that
[fail](#fails-the-line-raises-an-error), give [wrong
numbers](#wrong-the-line-runs-and-gives-wrong-numbers), need a
[check](#check-it-depends-on-the-rest-of-your-program) or are
[slow](#slow-the-numbers-are-correct), and lines that [run as they always
did](#lines-that-run-as-they-always-did).

*Stays* means that you keep the line, and *not needed* that you remove it. N is the
number of devices, `[B, ...]` the global batch, and `b = B / N`. Tests run every line
that fails, and the collectives and steps in their old and new form.
"""
# The headings of the lines to look at first, as port reports them, by its words.
FIRST = {
    "fails": "Fails: the line raises an error",
    "wrong": "Wrong: the line runs, and gives wrong numbers",
    "check": "Check: it depends on the rest of your program",
    "slow": "Slow: the numbers are correct",
}
OLD_NAMES = """
## Names that are gone or deprecated

These names raise an error, unless they're marked *deprecated*. They're in alphabetical
order. The new name works under pmap, shard_map and jit alike, unless the row says
otherwise.

| old | new |
| --- | --- |
"""
FINE = """
## Lines that run as they always did

They only change when you port the step.
"""
# The tables of the lines that are fine, by the first row of each.
HEADINGS = {
    "pmap": "The call of pmap",
    "committed": "Arrays and the device axis",
    "pmean": "Collectives",
    "batch-norm": "Batch norm, random keys, losses and metrics",
    "hosts": "Several hosts",
}


def written(row: Row) -> str:
    """Return how people write a row's line, with the mark that links lead to."""
    return f'<a id="{row.name}"></a>{row.written}'


def is_the_same(row: Row) -> bool:
    """Return True if one text serves under shard_map and jit."""
    return row.jit in (SAME, row.shard_map)


def line_to_change(row: Row) -> str:
    """Return a line that needs attention as a row of its table."""
    new = row.shard_map
    if not is_the_same(row):
        new = f"shard_map: {row.shard_map}<br>jit: {row.jit}"
    return f"| {written(row)} | {row.today} | {new} |\n"


def line_that_runs(row: Row) -> str:
    """Return a line that's fine as a row of its table."""
    line = written(row)
    if row.today:
        line += f": {row.today}"
    jit = row.jit
    if is_the_same(row):
        jit = "the same"
    return f"| {line} | {row.shard_map} | {jit} |\n"


def old_name(row: Row) -> str:
    """Return an old name as a row of its table."""
    old = written(row)
    if row.status == "old":
        old += ", *deprecated*"
    new = row.shard_map
    if not is_the_same(row) and not row.jit.startswith("not needed"):
        new += f"; under jit {row.jit}"
    return f"| {old} | {new} |\n"


def main() -> None:
    """Print the page."""
    old = OLD_NAMES
    first = ""
    fine = FINE
    for status, heading in FIRST.items():
        first += f"\n## {heading}\n\n| your line | what happens | write |\n"
        first += "| --- | --- | --- |\n"
        for row in ROWS.values():
            if row.status == status:
                first += line_to_change(row)
    for row in sorted(ROWS.values(), key=lambda row: row.written):
        if row.status in ("gone", "old"):
            old += old_name(row)
    for row in ROWS.values():
        if row.name in HEADINGS:
            fine += f"\n### {HEADINGS[row.name]}\n\n"
            fine += "| your line | under shard_map | under jit |\n| --- | --- | --- |\n"
        if row.status == "fine":
            fine += line_that_runs(row)
    print(TOP + old + first + fine, end="")


if __name__ == "__main__":
    main()
