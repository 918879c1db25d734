"""Write the trained model of a run to one file, for `pmapdp.predict` and others.

    python -m pmapdp.export runs/first model.zip         # its newest checkpoint
    python -m pmapdp.export runs/first model.zip --best  # its best epoch
    python -m pmapdp.export runs/texts model.zip --data-dir data

The file holds a program, so give people only files that they have a reason to trust.
"""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

from pmapdp import cli
from pmapdp.config import setting
from pmapdp.export.write import export_run
from pmapdp.run.report import in_words


@dataclass(frozen=True)
class Options:
    """Write the trained model of a run to one portable file, for python -m pmapdp.predict and others."""

    workdir: str = setting(
        "arguments",
        dataclasses.MISSING,
        "Folder of the run (what --workdir of python -m pmapdp.train named); its newest checkpoint is taken.",
        place="WORKDIR",
    )
    file: str = setting(
        "arguments",
        dataclasses.MISSING,
        "The file to write, for example model.zip; replaced if it exists.",
        place="FILE",
    )
    best: bool = setting("options", False, "The checkpoint of its best epoch instead of the newest.")
    data_dir: str | None = setting(
        "options",
        None,
        "For a text model: folder of the data set, whose vocabulary goes into the file; default: as in training.",
    )


def main(arguments: list[str]) -> None:
    """The command."""
    options = cli.parse(Options, arguments, __doc__)
    file = Path(options.file).absolute()
    metadata = export_run(options.workdir, options.file, options.data_dir, best=options.best)
    megabytes = file.stat().st_size / 1e6
    print(f"{options.file}: {metadata['model']} after {metadata['step']:,} updates, {megabytes:.2f} MB")
    if metrics := metadata["metrics"]:
        print(*(" ".join([name, *in_words(means)]) for name, means in metrics.items()), sep="\n")
    else:
        print("no metrics: this checkpoint is from the middle of an epoch, which ends with an evaluation")


if __name__ == "__main__":
    sys.exit(cli.run(main))
