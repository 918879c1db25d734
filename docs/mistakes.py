"""Make docs/mistakes.md from the table.

`python docs/mistakes.py > docs/mistakes.md`.
"""

from pmapdp.verify.table import MISTAKES, SENTENCES

HEAD = """# Usual mistakes

Your run on eight devices is worse than on one, and nothing raised an error? Look for your symptom in the first column,
and follow the link in the last. Many of these mistakes show no symptom, because under Adam the loss curve often stays the
same. So let [`verify`](verify.md) compare your step with one device: it looks by experiments, and names the rows that fit."""

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
    print("\n| you notice | usually | what to write |\n| --- | --- | --- |")
    for row, mistake in MISTAKES.items():
        usually = one_line(mistake["usually"])
        print(f"| {mistake['symptom']} | {usually} | [{row}](#{anchor(row)}) |")
    print(ROWS)
    for row, mistake in MISTAKES.items():
        print(f"\n### {row}\n")
        print(f"**You notice:** {mistake['symptom']}.\n")
        print(f"**`verify` sees:** {mistake['see']}.\n")
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
