"""Make docs/constructs.md from the table of `pmapdp.port`.

python docs/constructs.py > docs/constructs.md
"""

from pmapdp.port.rows import ROWS

HEAD = """# Pmap, construct by construct

Look up a line of your pmap program here: what it does today, and what it becomes under
`shard_map` and under `jit`. [Porting](porting.md) takes you through a whole program,
and `python -m pmapdp.port train.py` finds these constructs in yours.

*Today* says what JAX 0.10 and later do with the old line. Tests run every line that
fails, and the collectives and steps in their old and new form. N is the number of
devices, and `[B, ...]` the global batch.

| status | meaning |
| --- | --- |
| gone | JAX, Flax or Optax no longer has this name |
| fails | the call raises an error |
| wrong | it runs, and the numbers are wrong |
| check | it's correct or wrong, and that depends on the rest of your step |
| slow | it runs, but there's a faster way today |
| old | it runs, but it's deprecated |
| fine | it runs as it always did |

| pmap | today | shard_map | jit |
| --- | --- | --- | --- |"""


def main() -> None:
    """Print the page."""
    print(HEAD)
    for row in ROWS.values():
        today = row.status
        if row.today:
            today = f"{today}: {row.today}"
        written = f'<a id="{row.name}"></a>{row.written}'
        print(f"| {written} | {today} | {row.shard_map} | {row.jit} |")


if __name__ == "__main__":
    main()
