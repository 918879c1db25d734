"""The tables, the figures and the picture of docs/speedrun.md, from the results."""

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.speedrun.choice import CLOSE, CONFIG, HELD_BACK, MARGIN, SETTINGS, TARGET, WIDTHS, chosen
from benchmarks.speedrun.runs import LONG, Timed
from pmapdp.compare.pictures import INK, STRATEGY_COLOURS, drawing, svg

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parent.parent.parent / "docs" / "speedrun.md"
PICTURE = PAGE.parent / "pictures" / "speedrun.svg"
Runs = list[list[float]]  # of one command, each a `Timed` as JSON has it
EXAMPLES = 60_000  # of the training set, in one epoch
COLUMNS = "seconds of the command | of training | test accuracy"


def table(heads: str, rows: list[str]) -> str:
    """A table in Markdown; cells are separated by ` | `."""
    return "\n".join(f"| {row} |" for row in (heads, " | ".join(["---"] * (heads.count("|") + 1)), *rows))


def median(runs: Runs, field: str) -> float:
    """Of one attribute of `Timed`."""
    return statistics.median(getattr(Timed(*run), field) for run in runs)


def accuracy(runs: Runs) -> float:
    """In the mean."""
    return statistics.fmean(Timed(*run).accuracy for run in runs)


def row(words: str, runs: Runs) -> str:
    """Medians of the seconds, the mean accuracy."""
    return f"{words} | {median(runs, 'command'):.1f} | {median(runs, 'training'):.1f} | {accuracy(runs):.4f}"


def of_machine(facts: dict[str, Any]) -> str:
    """What was measured on, and whether it was busy."""
    peers = ", ".join(f"{name} {version}" for name, version in facts.get("peers", {}).items())
    return (
        f"{facts['cores']} cores ({facts['processor']}), jax {facts['jax']}{'; peers: ' * bool(peers)}{peers}; load of "
        f"the machine {facts['load before']:.1f} before and {facts['load after']:.1f} after, where the run itself is "
        "about 1.5."
    )


def over_seeds(runs: Runs) -> str:
    """How often a group of commands ran, of which `runs` are those of a short one."""
    seeds = f"{len(runs)} seed{'s' * (len(runs) > 1)}"
    return (
        f"Medians of the seconds and means of the accuracy over {seeds}; all commands ran with the first seed, then "
        f"all with the next. A command of more than {LONG} seconds ran once."
    )


def seeds(found: dict[str, Runs]) -> dict[str, str]:
    """The recipe with its compile cache cold and warm."""
    values = [Timed(*run).accuracy for run in found["warm"]]
    return {
        "seeds": table(f"compile cache | {COLUMNS}", [row(name, runs) for name, runs in found.items()])
        + f"\n\nMedians of the seconds over {len(values)} seeds. The test accuracy is {statistics.fmean(values):.4f} "
        f"in the mean, with a standard deviation of {statistics.stdev(values):.4f}, from {min(values):.4f} to "
        f"{max(values):.4f}."
    }


def candidates(found: dict[str, Runs]) -> dict[str, tuple[float, float]]:
    """What the rule looks at: the least seconds, since medians of one program differ by over a tenth."""
    return {flags: (min(Timed(*run).training for run in runs), accuracy(runs)) for flags, runs in found.items()}


def validation(found: dict[str, Runs]) -> dict[str, str]:
    """The candidates, the rule and what it chooses."""
    blocks = {
        "rule": f"> Of the candidates whose mean accuracy on the {HELD_BACK:,} examples held back is at least "
        f"{TARGET + MARGIN:.4f}, take the fastest in training. If others are slower by less than {CLOSE - 1:.0%}, take "
        "the most accurate of them.\n\n"
        f"The bound is the target, {TARGET}, and one standard error of an accuracy that is measured on {HELD_BACK:,} "
        f"examples, {MARGIN:.4f}."
    }
    facts = candidates(found)
    for part, names in (("widths", WIDTHS), ("settings", SETTINGS)):
        rows = [
            f"`{flags}`{f'<br>{WIDTHS[flags]}' if part == 'widths' else ''} | {facts[flags][0]:.2f} | "
            f"{facts[flags][1]:.5f} | {', '.join(f'{Timed(*run).accuracy:.4f}' for run in found[flags])}"
            for flags in names
        ]
        choice = chosen({flags: facts[flags] for flags in names})
        blocks[part] = (
            table("flags | least seconds of training | mean accuracy on the examples held back | of each seed", rows)
            + "\n\n"
            + (f"The rule chooses `{choice}`." if choice else "No candidate reaches the target.")
        )
    return blocks


def changes(found: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """The way to the recipe, and around it."""
    return {
        name: table(
            f"change | {COLUMNS}",
            [row(f"{change['words']}<br>`{change['flags']}`", change["runs"]) for change in group],
        )
        + f"\n\n{over_seeds(group[-1]['runs'])}"
        for name, group in found.items()
    }


def devices(found: dict[str, dict[str, Runs]]) -> dict[str, str]:
    """Every strategy in two types."""
    rows = [
        f"`--strategy {name}` | {' | '.join(f'{accuracy(runs[name]):.4f}' for runs in found.values())}"
        for name in found["float32"]
    ]
    apart = []
    for dtype, runs in found.items():
        values = [accuracy(each) for each in runs.values()]
        apart.append(f"{10_000 * (max(values) - min(values)):.0f} of the 10,000 test images in {dtype}")
    return {
        "devices": table(f"8 devices, `single` on 1 | {' | '.join(f'`--dtype {dtype}`' for dtype in found)}", rows)
        + f"\n\nTest accuracy, seed 0. The best and the worst differ by {' and by '.join(apart)}."
    }


def phases(runs: Runs) -> list[float]:
    """Median seconds of ours: start of Python, data and first state, compiling, training."""
    whole = [Timed(*run) for run in runs]
    parts = [(t.started, t.command - t.started - t.compiling - t.training, t.compiling, t.training) for t in whole]
    return [statistics.median(each) for each in zip(*parts, strict=True)]


def peers(found: dict[str, dict[str, Runs]], limit: dict[str, Any]) -> dict[str, str]:
    """Ours beside others, and where our seconds go."""
    cold, warm = found["ours"].values()
    rows = [row(name, runs) for group in found.values() for name, runs in group.items()]

    def fastest(group: str, field: str) -> tuple[str, float]:
        return min(((name, median(runs, field)) for name, runs in found[group].items()), key=lambda each: each[1])

    def times(seconds: float, runs: Runs, field: str) -> str:
        return f"{median(runs, field):.1f} s, {seconds / median(runs, field):.1f} times as fast"

    (whole, seconds), (trained, training) = fastest("same", "command"), fastest("same", "training")
    own, own_seconds = fastest("own", "command")
    *beside, _ = phases(warm)
    operations = limit["operations"] * EXAMPLES / CONFIG.global_batch_size
    at_limit = operations / (1e9 * limit["machine_gflop_per_second"])  # seconds
    least = sum(beside) + at_limit
    return {
        "peers": table(f"program | {COLUMNS}", rows) + f"\n\n{over_seeds(cold)}\n\n"
        f"- **Whole command.** The fastest with the same network is {whole} with {seconds:.1f} s. Ours takes "
        f"{times(seconds, cold, 'command')}, with an empty compile cache, and {times(seconds, warm, 'command')}, with "
        f"a full one.\n"
        f"- **Training alone.** The fastest is {trained} with {training:.1f} s. Ours takes "
        f"{times(training, cold, 'training')}.\n"
        f"- **With the study's settings** the fastest is {own.split(', the study')[0]} with "
        f"{own_seconds:.1f} s for the whole command.",
        "phases": table(
            "compile cache | Python and imports | data, first state | compiling, first updates, evaluation | training",
            [
                " | ".join([name, *(f"{each:.1f}" for each in phases(runs))])
                for name, runs in (("cold", cold), ("warm", warm))
            ],
        )
        + f"\n\nFour times as fast as the fastest would be {seconds / 4:.1f} s for the whole command. All but training "
        f"takes {sum(beside):.1f} s, with a full cache. If every step ran at the speed that this machine reaches with "
        f"a product of large matrices, training would take {at_limit:.1f} s and the command {least:.1f} s, "
        f"{seconds / least:.1f} times as fast as the fastest. In training alone, four times would be "
        f"{training / 4:.1f} s: {4 * at_limit / training:.0%} of that speed.",
    }


def limit(found: dict[str, Any]) -> dict[str, str]:
    """Operations of a step over the machine's speed."""
    kinds = ", ".join(f"`{kind}` {share:.0%}" for kind, share in found["kinds"].items())
    return {
        "limit": f"A step takes {found['operations'] / 1e6:.0f} million operations and {found['step_ms']:.2f} ms: "
        f"{found['gflop_per_second']:.0f} GFLOP/s, {found['share']:.0%} of the {found['machine_gflop_per_second']:.0f} "
        f"GFLOP/s that a product of matrices reaches on this machine. Of the time of the operations: {kinds}."
        "\n\nThe least of 30 calls."
    }


PARTS = {"validation": validation, "seeds": seeds, "changes": changes, "devices": devices, "limit": limit}


def blocks(results: dict[str, Any]) -> dict[str, str]:
    """What stands on the page between the marks of each block, of the parts that were measured."""
    made: dict[str, str] = {}
    for part, measured in results.items():
        found = measured["found"]
        texts = peers(found, results["limit"]["found"]) if part == "peers" else PARTS[part](found)
        last = next(reversed(texts))
        made |= texts | {last: f"{texts[last]}\n\n{of_machine(measured['machine'])}"}
    return made


def picture(way: list[dict[str, Any]]) -> str:
    """One bar a change: seconds of the command, those of training in it, and the accuracy."""
    title = "Seconds of the command; blue: of training"
    with drawing(9, 0.8 + 0.35 * len(way)) as (figure, axes):
        for number, change in enumerate(way):
            runs = change["runs"]
            command = median(runs, "command")
            axes.barh(number, command, height=0.7, color=STRATEGY_COLOURS["single"], alpha=0.5)
            axes.barh(number, median(runs, "training"), height=0.7, color=STRATEGY_COLOURS["pmap"])
            axes.text(command, number, f"  {command:.1f} s, {100 * accuracy(runs):.2f} %", va="center", color=INK)
        axes.set_yticks(range(len(way)), [change["words"] for change in way])
        axes.set_ylim(len(way) - 0.4, -0.6)
        axes.set_xlim(0, 1.25 * max(median(change["runs"], "command") for change in way))
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        figure.suptitle(title, weight="bold")
        return svg(figure, title)


def mark(block: str) -> tuple[str, str]:
    """Between which lines of the page a block stands."""
    return f"<!-- made by python -m benchmarks.speedrun: {block} -->\n", f"\n<!-- end of {block} -->"


def filled(text: str, made: dict[str, str]) -> str:
    """The page's text with every block between its marks."""
    for block, content in made.items():
        begin, end = mark(block)
        before, rest = text.split(begin)
        text = f"{before}{begin}{content}{end}{rest.split(end)[1]}"
    return text


def write() -> None:
    """Write the page and the picture."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), blocks(results)), encoding="utf-8")
    PICTURE.write_text(picture(results["changes"]["found"]["way"]), encoding="utf-8")
