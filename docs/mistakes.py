"""Make docs/mistakes.md from the table.

`python docs/mistakes.py > docs/mistakes.md`.
"""

from pmapdp.verify.table import MISTAKES, SENTENCES

HEAD = """# Usual mistakes

None of these raises an error, and with most of them the loss still falls. So if a run on eight devices is worse than on
one, look for what you see in the first column, or let [`verify`](verify.md) look for you."""

RULES = """
## How `verify` finds a row

`verify` reports facts, and each fact is a result of an experiment with your step. It's true whatever your program means
by it. A row fits if its rule holds, and the rules are below, beside the rows: `and`, `or` and `not` over the names of
facts. A fact can't say what you meant, so each row also says when the program is correct as it is.

| fact | sentence in the report |
| --- | --- |"""

ROWS = """
## The rows

The lines come from a [training step](../tests/verify/program.py): a line with a minus is wrong, a line with a plus is
right. The tests put each wrong line into that step, and its row must fit (`report.rows`). Under jit the compiler adds
the all-reduces, so you can't forget one."""
EVERYWHERE = ["pmap", "shard_map", "jit"]


def one_line(text: str) -> str:
    """Return a text of the table in one line."""
    return " ".join(text.split())


def anchor(row: str) -> str:
    """Return the address of a heading on its page."""
    return row.replace(" ", "-").replace("'", "").lower()


def main() -> None:
    """Print the page."""
    print(HEAD)
    print("\n| you see | usually | row |\n| --- | --- | --- |")
    for row, mistake in MISTAKES.items():
        usually = one_line(mistake["usually"])
        print(f"| {mistake['see']} | {usually} | [{row}](#{anchor(row)}) |")
    print(ROWS)
    for row, mistake in MISTAKES.items():
        print(f"\n### {row}\n")
        print(f"**You see:** {one_line(mistake['see'])}.\n")
        print(f"**Usually** {one_line(mistake['usually'])}.\n")
        print(f"**What to write:** {one_line(mistake['write'])}\n")
        print(f"**If the program is correct:** {one_line(mistake['correct'])}\n")
        print(f"**Rule:** `{mistake['rule']}`")
        for line in mistake.get("lines", []):
            under = ", ".join(line.get("under", EVERYWHERE))
            change = f"- {line['wrong']}\n+ {line['right']}"
            print(f"\nUnder {under}:\n\n```diff\n{change}\n```")
    print(RULES)
    for name, sentence in SENTENCES.items():
        print(f"| `{name}` | {sentence} |")


if __name__ == "__main__":
    main()
