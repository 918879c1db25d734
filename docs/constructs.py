"""Make docs/constructs.md from the table of `pmapdp.port`.

python docs/constructs.py > docs/constructs.md
"""

from pmapdp.port.rows import ROWS, Row

TOP = """# Pmap, construct by construct

What becomes of this line? Search the page for the function in it. For a whole program,
`python -m pmapdp.port train.py` finds the lines for you, and [Porting](porting.md)
takes you through the work.

Each entry begins with what JAX 0.10 and later do with the old line. Below it stands
what the line becomes under `shard_map` and under `jit`. Tests run every line that
fails, and the collectives and steps in their old and new form. N is the number of
devices, `[B, ...]` the global batch, and `b = B / N`.

The statuses, with the entries to look at first:

"""
# What each status says of the old line.
STATUSES = {
    "wrong": "it runs, and the numbers are wrong",
    "check": "it's correct or wrong, and that depends on the rest of your step",
    "fails": "the call raises an error",
    "slow": "it runs, and there's a faster way today",
    "old": "it runs, but it's deprecated",
    "gone": "JAX, Flax or Optax no longer has this name",
    "fine": "it runs as it always did",
}
MANY = ("gone", "fine")  # statuses of too many entries for a list of links
# The headings, by the first row below each.
HEADINGS = {
    "pmap": "The call of pmap",
    "committed": "Arrays and the device axis",
    "pmean": "Collectives",
    "batch-norm": "Batch norm, random keys, losses and metrics",
    "hosts": "Several hosts, and checkpoints",
    "tree-map": "Other names of JAX, Flax and Optax",
}
SAME = "as under shard_map"


def describe(row: Row) -> str:
    """Return a row as an item of a list."""
    text = f'- <a id="{row.name}"></a>**{row.status}** {row.written}'
    if row.today:
        text += f": {row.today}"
    if row.jit in (SAME, row.shard_map):
        return f"{text}\n  - shard_map, jit: {row.shard_map}\n"
    return f"{text}\n  - shard_map: {row.shard_map}\n  - jit: {row.jit}\n"


def describe_status(status: str) -> str:
    """Return a status as an item of a list, with links to its entries."""
    text = f"- **{status}**: {STATUSES[status]}"
    if status in MANY:
        return f"{text}.\n"
    names = [row.name for row in ROWS.values() if row.status == status]
    links = ", ".join(f"[{name}](#{name})" for name in names)
    return f"{text}: {links}.\n"


def main() -> None:
    """Print the page."""
    text = TOP + "".join(describe_status(status) for status in STATUSES)
    for row in ROWS.values():
        if row.name in HEADINGS:
            text += f"\n## {HEADINGS[row.name]}\n\n"
        text += describe(row)
    print(text, end="")


if __name__ == "__main__":
    main()
