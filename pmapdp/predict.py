"""Ask an exported model: `python -m pmapdp.predict MODEL INPUT...`, where inputs are image files or texts.

python -m pmapdp.predict model.zip digit.png                  # file, class and its probability
python -m pmapdp.predict model.zip *.png --json               # one JSON object a line
python -m pmapdp.predict model.zip images.npy                 # one line for every image in the array
python -m pmapdp.predict sentiment.zip "a wonderful film"     # class, probability and text
python -m pmapdp.predict sentiment.zip --lines reviews.txt    # one line for every line; - is standard input
"""

import json
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from pmapdp.cli import parse_options
from pmapdp.errors import UserError, run_command
from pmapdp.export.inputs import read_images, read_lines
from pmapdp.export.read import Exported, load_exported

PROGRAM = "python -m pmapdp.predict"
SHOWN_LETTERS = 60


@dataclass(frozen=True)
class Options:
    """Say which class each input is of, and how probable the model takes it to be.

    Of a model of images, the inputs are PNG or JPEG files, or .npy arrays of uint8 ([28, 28] or [n, 28, 28]), of the
    size that the model was trained on. They are taken as they are: digits and clothes must be light on a dark ground,
    as in the data sets. Colours become grey.

    Of a model of texts, every input is a text itself; --lines reads them from a file.
    """

    model: Annotated[str, "MODEL"]
    """A file that python -m pmapdp.export wrote."""
    input: Annotated[tuple[str, ...], "[INPUT...]"] = ()
    """Files with images, or texts."""
    lines: str | None = None
    """Model of texts: take every line of this file as a text, or of standard input where it is "-"."""
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
                f"{path} takes {other['dtype']} of shape {other['shape']}, and this command reads grey images and "
                "texts: call it from Python with pmapdp.export.read.load_exported"
            )


def read_texts(exported: Exported, options: Options) -> tuple[list[dict[str, Any]], list[str], np.ndarray]:
    """The texts on the command line and in the file of texts: what JSON says of each, their names, and the inputs.

    Raises:
        UserError: there is none, or the file cannot be read.
    """
    texts = [*options.input, *(read_lines(options.lines) if options.lines else [])]
    if not texts:
        raise UserError(f'INPUT is missing: try {PROGRAM} {options.model} "a wonderful film"')
    names = [" ".join(text.split()) for text in texts]
    names = [name if len(name) <= SHOWN_LETTERS else name[: SHOWN_LETTERS - 3] + "..." for name in names]
    return [{"text": text} for text in texts], names, exported.view(texts)


def read_files(exported: Exported, options: Options) -> tuple[list[dict[str, Any]], list[str], np.ndarray]:
    """The images in the files on the command line: what JSON says of each, their names, and the inputs.

    Raises:
        UserError: there is none, or a file is no image that the model takes.
    """
    if options.lines:
        raise UserError(f"--lines {options.lines} is for models of texts, and {options.model} takes images: name files")
    if not options.input:
        raise UserError(f"INPUT is missing: try {PROGRAM} {options.model} digit.png")
    height, width = image_size(exported, options.model)
    known, names, parts = [], [], []
    for path in options.input:
        parts.append(part := read_images(path, height, width))
        known += [{"file": path, "index": index} for index in range(len(part))]
        names += [path] if len(part) == 1 else [f"{path}[{index}]" for index in range(len(part))]
    return known, names, np.concatenate(parts)


def main(arguments: list[str]) -> None:
    """The command. All is read before the first line is printed, so that a mistake leaves nothing half done."""
    options = parse_options(Options, arguments, program=PROGRAM, example="model.zip digit.png")
    exported = load_exported(options.model)
    known, names, inputs = (read_texts if exported.view else read_files)(exported, options)
    classes, probabilities = exported.predict(inputs)
    labels = exported.metadata["labels"]
    width = max(map(len, labels))
    for number, about, name, row in zip(classes, known, names, probabilities.tolist(), strict=True):
        label, probability = labels[number], row[number]
        if options.json:
            answer = {"class": label, "probability": probability, "probabilities": dict(zip(labels, row, strict=True))}
            print(json.dumps(about | answer))
        elif exported.view:  # texts are long and differ in length: they come last
            print(f"{label:<{width}}  {probability:.4f}  {name}")
        else:
            print(f"{name:<{max(map(len, names))}}  {label:<{width}}  {probability:.4f}")


if __name__ == "__main__":
    sys.exit(run_command(main))
