"""Make docs/mistakes.md from the rows of `pmapdp/verify/mistakes.py`.

`python docs/mistakes.py > docs/mistakes.md`.
"""

import inspect

from pmapdp.verify.mistakes import ROWS, Mistake

HEAD = """# Usual mistakes

Your loss is worse on eight devices than on one, and nothing raised an error? Look for what you see, and follow the link.
If nothing fits, let [`verify`](verify.md) compare your step with one device: under Adam, many mistakes leave the loss curve
as it was.

| what you see | look at |
| --- | --- |"""

ROWS_HEAD = """
In the examples, the line with a minus is wrong. Under jit the compiler adds the all-reduces, so you can't forget one. If each
device is meant to hold values of its own, name them in `per_device`, and take `old_program` as the reference."""

RULES_HEAD = """
## How `verify` finds a row

`verify` reports [facts](../pmapdp/verify/mistakes.py), which experiments with your step have shown. A row fits if its rule
holds. Every line above is [planted in a step](../tests/verify/program.py) by the tests, and its row must fit.

| row | rule |
| --- | --- |"""


def read_rule(row: Mistake) -> str:
    """Return the expression that a rule returns, as it's written."""
    source = inspect.getsource(row.rule)
    return " ".join(source.partition("return ")[2].split())


def print_row(row: Mistake) -> None:
    """Print a section of the page."""
    print(f"\n## {row.name}\n")
    print(f"Usually {row.usually}. {row.write}")
    if row.no_mistake_if:
        print(f"\nIt's no mistake if {row.no_mistake_if}.")
    for line in row.lines:
        print(f"\n```diff\n- {line.wrong}\n+ {line.correct}\n```")


def main() -> None:
    """Print the page."""
    print(HEAD)
    for row in ROWS:
        print(f"| {row.symptom} | [{row.name}](#{row.anchor}) |")
    print(ROWS_HEAD)
    for row in ROWS:
        print_row(row)
    print(RULES_HEAD)
    for row in ROWS:
        print(f"| {row.name} | `{read_rule(row)}` |")


if __name__ == "__main__":
    main()
