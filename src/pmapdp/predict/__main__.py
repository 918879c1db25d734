"""Ask an exported model: `python -m pmapdp.predict MODEL INPUT...`, where inputs are image files or texts.

python -m pmapdp.predict model.zip digit.png                  # file, class and its probability
python -m pmapdp.predict model.zip *.png --json               # one JSON object a line
python -m pmapdp.predict model.zip images.npy                 # one line for every image in the array
python -m pmapdp.predict sentiment.zip "a wonderful film"     # class, probability and text
python -m pmapdp.predict sentiment.zip --lines reviews.txt    # one line for every line; - is standard input
"""

if __name__ == "__main__":  # before the imports, which take a second: a signal or an error in it ends in one line too
    from pmapdp.command.program import run

    run("pmapdp.predict.__main__")

import dataclasses
import json
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np

from pmapdp.command.flags import parse_options
from pmapdp.config import setting
from pmapdp.errors import UserError
from pmapdp.export.read import Exported, load_exported
from pmapdp.predict.inputs import read_images, read_lines

PROGRAM = "python -m pmapdp.predict"
SHOWN_LETTERS = 60


@dataclass(frozen=True)
class Options:
    """Say which class each input is of, and how probable the model takes it to be.

    Of a model of images, the inputs are PNG or JPEG files, or .npy arrays of uint8 ([28, 28] or [n, 28, 28]), of the
    size that the model was trained on. They are taken as they are: digits and clothes must be light on a dark ground,
    as in the data sets. Colours become grey.

    Of a text model, every input is a text itself; --lines reads them from a file.
    """

    model: str = setting(
        "arguments",
        dataclasses.MISSING,
        "A file that python -m pmapdp.export wrote. It holds a program, so use only files of people whom you trust.",
        place="MODEL",
    )
    input: tuple[str, ...] = setting("arguments", (), "Files with images, or texts.", place="[INPUT...]")
    lines: str | None = setting(
        "options", None, 'Text model: take every line of this file as a text, or of standard input where it is "-".'
    )
    json: bool = setting("options", False, "Print one JSON object a line, with the probabilities of all classes.")


def read_inputs(exported: Exported, options: Options) -> tuple[list[dict[str, Any]], list[str], np.ndarray]:
    """What the model is asked about: what JSON says of each input, their names for people, and the n inputs.

    Raises:
        UserError: there is none, one cannot be read, or the model takes neither texts nor grey images.
    """
    if exported.view:
        texts = [*options.input, *(read_lines(options.lines) if options.lines else [])]
        names = [textwrap.shorten(text, SHOWN_LETTERS, placeholder="...") for text in texts]
        return [{"text": text} for text in texts], names, exported.view(texts)
    if options.lines:
        raise UserError(f"--lines {options.lines} is for text models, and {options.model} takes images: name files")
    match exported.metadata["input"]:
        case {"dtype": "uint8", "shape": [_, int(height), int(width), 1]}:
            images = [(path, read_images(path, height, width)) for path in options.input]
        case other:
            raise UserError(
                f"{options.model} takes {other['dtype']} of shape {other['shape']}, and this command reads grey images "
                "and texts: call it from Python with pmapdp.export.read.load_exported"
            )
    known = [{"file": path, "index": index} for path, each in images for index in range(len(each))]
    names = [f"{path}[{index}]" if len(each) > 1 else path for path, each in images for index in range(len(each))]
    return known, names, np.concatenate([each for _, each in images])


def main(arguments: list[str]) -> None:
    """The command. All is read before the first line is printed, so that a mistake leaves nothing half done."""
    options = parse_options(Options, arguments, program=PROGRAM, example="model.zip digit.png")
    exported = load_exported(options.model)
    if not options.input and not options.lines:
        example = '"a wonderful film"' if exported.view else "digit.png"
        raise UserError(f"INPUT is missing: try {PROGRAM} {options.model} {example}")
    known, names, inputs = read_inputs(exported, options)
    outputs = exported.outputs(inputs)
    if not exported.classifies:
        for about, name, answer in zip(known, names, outputs["outputs"].tolist(), strict=True):
            print(json.dumps(about | {"output": answer}) if options.json else f"{name}  {answer}")
        return
    labels = exported.metadata["labels"]
    columns = max(map(len, names)), max(map(len, labels))
    for about, name, number, row in zip(
        known, names, outputs["logits"].argmax(-1), outputs["probabilities"].tolist(), strict=True
    ):
        label, probability = labels[number], row[number]
        if options.json:
            answer = {"class": label, "probability": probability, "probabilities": dict(zip(labels, row, strict=True))}
            print(json.dumps(about | answer))
        elif exported.view:  # texts are long and differ in length: they come last
            print(f"{label:<{columns[1]}}  {probability:.4f}  {name}")
        else:
            print(f"{name:<{columns[0]}}  {label:<{columns[1]}}  {probability:.4f}")
