"""Look at images with an exported model: `python -m pmapdp.predict model.zip FILE...`.

python -m pmapdp.predict model.zip digit.png            # file, class and its probability
python -m pmapdp.predict model.zip *.png --json         # one JSON object a line
python -m pmapdp.predict model.zip images.npy           # one line for every image in the array
"""

import json
import sys
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import tyro

from pmapdp.arguments import parse_arguments
from pmapdp.errors import UserError, run_command
from pmapdp.exported import Exported, load_exported
from pmapdp.images import read_images


@dataclass(frozen=True)
class Options:
    """Say what images show: one line per image with the file, the class and its probability.

    Images are PNG or JPEG files, or .npy arrays of uint8 ([28, 28] or [n, 28, 28]), of the size that the model was
    trained on. They are taken as they are: digits and clothes must be light on a dark ground, as in the data sets.
    Colours become grey.
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A file that python -m pmapdp.export wrote."""
    file: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="FILE...", help_behavior_hint="")]
    """Images, or arrays of images."""
    json: bool = False
    """Print one JSON object a line, with the probabilities of all classes."""


def image_size(exported: Exported, path: str) -> tuple[int, int]:
    """Height and width of the grey images that the model takes.

    Raises:
        UserError: it takes something else.
    """
    match exported.metadata["input"]:
        case {"dtype": "uint8", "shape": [_, int(height), int(width), 1]}:
            return height, width
        case other:
            raise UserError(
                f"{path} takes {other['dtype']} of shape {other['shape']}, and this command reads grey images: call "
                "it from Python with pmapdp.exported.load_exported"
            )


def main(arguments: list[str]) -> None:
    """The command. All files are read before the first line is printed, so that a mistake leaves nothing half done."""
    options = parse_arguments(Options, arguments, program="python -m pmapdp.predict", example="model.zip digit.png")
    exported = load_exported(options.model)
    height, width = image_size(exported, options.model)
    parts = [read_images(path, height, width) for path in options.file]
    classes, probabilities = exported.predict(np.concatenate(parts))

    images = [
        (path, index, len(part)) for path, part in zip(options.file, parts, strict=True) for index in range(len(part))
    ]
    labels = exported.metadata["labels"]
    if options.json:
        for (path, index, _), number, row in zip(images, classes, probabilities, strict=True):
            result = {"file": path, "index": index, "class": labels[number], "probability": float(row[number])}
            print(json.dumps(result | {"probabilities": dict(zip(labels, row.tolist(), strict=True))}))
        return
    names = [path if count == 1 else f"{path}[{index}]" for path, index, count in images]
    name_width, label_width = max(map(len, names)), max(map(len, labels))
    for name, number, row in zip(names, classes, probabilities, strict=True):
        print(f"{name:<{name_width}}  {labels[number]:<{label_width}}  {row[number]:.4f}")


if __name__ == "__main__":
    sys.exit(run_command(main))
