"""The predictions of `pmapdp.scaling` beside what can be found here: `python -m benchmarks.scaling [MODEL]`.

A published run, compiled programs and simulated devices; a minute or two. Each prediction stands beside what was found,
with its error. Run it from the repository's root and leave the machine alone meanwhile.
"""

import statistics
import sys

from rich.console import Console
from rich.table import Table

from benchmarks import make_parser
from benchmarks.scaling.checks import Line, check_compiled, check_published, check_simulated
from pmapdp import cli
from pmapdp.registry import MODELS
from pmapdp.scaling.table import percent, seconds


def quantity(value: float, unit: str) -> str:
    """A value of a check."""
    if unit == "s":
        return seconds(value)
    return f"{value:,.0f} {unit}".strip() if value == int(value) else f"{value:.3f} {unit}".strip()


def table(title: str, lines: list[Line]) -> Table:
    """Every prediction beside what was found, and the typical error."""
    median = statistics.median(abs(line.error) for line in lines)
    found = Table("check", "predicted", "found", "error", title=title, caption=f"median error {percent(median)}")
    for line in lines:
        values = (quantity(value, line.unit) for value in (line.predicted, line.found))
        found.add_row(line.what, *values, f"{100 * line.error:+.1f} %")
    return found


def main(arguments: list[str]) -> None:
    """The command."""
    parser = make_parser(__doc__, "scaling", "cnn")
    classifiers = [name for name, model in MODELS.items() if not hasattr(model, "loss")]
    parser.add_argument("model", nargs="?", choices=classifiers, default="cnn")
    model, screen = parser.parse_args(arguments).model, Console(highlight=False, width=400)
    screen.print(table("efficiency of ResNet-50 in published runs", check_published()))
    screen.print(table(f"collectives in the step of {model}, compiled and not run", check_compiled(model)))
    screen.print(table("simulated devices of this machine", check_simulated(model)))


if __name__ == "__main__":
    sys.exit(cli.run(main))
