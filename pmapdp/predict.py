"""Print the class that an exported model gives an image or a text.

    python -m pmapdp.predict model.zip digit.png
    python -m pmapdp.predict model.zip photo.jpeg
    python -m pmapdp.predict sentiment.zip "a wonderful film"

An image must have the model's own size, and digits must be light on a dark ground, as
in the data set. A greyscale model converts colour images. For arrays, for many
examples and for models that give no class, docs/export.md in pmapdp's repository has
ten lines of Python, which don't need pmapdp.
"""

import sys
from dataclasses import MISSING, dataclass
from typing import Any

import numpy as np

from pmapdp import cli, flags
from pmapdp.config import setting
from pmapdp.custom.images import read_image
from pmapdp.errors import UserError, in_one_line
from pmapdp.export import Exported, load_exported
from pmapdp.files import open_file

MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's, by the channels of a model's images
MANUAL = "docs/export.md in pmapdp's repository has ten lines for everything else"


def read_input(exported: Exported, text: str) -> Any:
    """Return a text, or the image in the file of that name, as inputs `[1, ...]`."""
    if exported.featurizer:
        return exported.featurizer([text])
    inputs = exported.metadata["input"]
    mode = None
    # Only bytes are images of 8 bits a colour. Other numbers are the model's own.
    match inputs:
        case {"dtype": "uint8", "shape": [_, _, _, channels]}:
            mode = MODES.get(channels)
    if mode is None:
        raise UserError(
            f"the model takes {inputs}, and this command reads images and texts: "
            f"{MANUAL}"
        )
    advice = f"name a PNG or JPEG image as the model takes it, {inputs}"
    with open_file(text, advice=advice) as file:
        return read_image(file, mode)[np.newaxis]


COMMAND = flags.Command(
    usage="python -m pmapdp.predict MODEL INPUT",
    example="python -m pmapdp.predict model.zip digit.png",
    description=__doc__,
    removed={
        "--lines": f"call it once for each text, and {MANUAL}",
        "--json": MANUAL,
    },
)


@dataclass(frozen=True)
class Options:
    """The model, and what to ask it."""

    model: str = setting(
        "arguments",
        MISSING,
        "Exported file. It holds a program, so open only files from people you trust.",
        positional="MODEL",
    )
    input: str = setting(
        "arguments", MISSING, "Image file, or a text in quotes.", positional="INPUT"
    )


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = flags.parse(COMMAND, Options, arguments)
    exported = load_exported(options.model)
    if not exported.metadata["classifies"]:
        raise UserError(f"{options.model} gives no class: {MANUAL}")
    outputs = exported.outputs(read_input(exported, options.input))
    probabilities = outputs["probabilities"][0]
    best = int(np.argmax(probabilities))
    label = exported.metadata["labels"][best]
    print(f"{in_one_line(label)}  {probabilities[best]:.4f}")


if __name__ == "__main__":
    sys.exit(cli.run(main))
