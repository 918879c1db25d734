"""Make docs/mistakes.md from the catalogue: `python docs/mistakes.py > docs/mistakes.md`."""

from pmapdp.verify.causes import CATALOGUE

HEAD = """# Usual mistakes

None of these raises an error, and with most of them the loss still falls. So if a run on eight devices is worse than on
one, compare your step with this list, or let [`verify`](verify.md) do it.

If `verify` says "cause unknown", its facts narrow the list down. Do the devices hold different values? Then an
all-reduce is missing. Is one leaf N times too large? Then something is summed that should be averaged. Is only the last
batch wrong? Then padding counts, or the devices hold different numbers of examples.

The lines come from a [training step](../tests/verify/program.py): a line with a minus is wrong, a line with a plus is
right. The tests put each wrong line into that step, and `verify` must name the mistake as its heading does
(`report.causes`). Then comes the sentence that `verify` prints, in which braces stand for what it found. Under jit the
compiler adds the all-reduces, so you can't forget one."""
EVERYWHERE = ["pmap", "shard_map", "jit"]


def main() -> None:
    """Print the page."""
    print(HEAD)
    for cause, mistake in CATALOGUE.items():
        print(f"\n## {cause}\n")
        for line in mistake.get("lines", []):
            under = ", ".join(line.get("under", EVERYWHERE))
            print(
                f"Under {under}:\n\n```diff\n- {line['wrong']}\n+ {line['right']}\n```\n"
            )
        print(f"> {' '.join(mistake['says'].split())}")


if __name__ == "__main__":
    main()
