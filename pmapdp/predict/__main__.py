"""Ask an exported model about files or texts: which class is each of, or which numbers does the model give.

    python -m pmapdp.predict model.zip digit.png
    python -m pmapdp.predict model.zip *.png --json  # a JSON object a line
    python -m pmapdp.predict model.zip images.npy   # several in an array
    python -m pmapdp.predict prices.zip houses.csv  # a row of a table each
    python -m pmapdp.predict sentiment.zip "a wonderful film"
    python -m pmapdp.predict sentiment.zip --lines reviews.txt

A model of uint8 images takes PNG and JPEG files of the size that it was trained on, as they are: digits must be light
on a dark ground, as in the data set. A model of grey images makes colours grey. A model of rows of numbers takes .csv
files, whose first line may name the columns. Every model takes .npy arrays of one example or of several.
"""

import dataclasses
import json
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from pmapdp import cli
from pmapdp.config import setting
from pmapdp.errors import UserError
from pmapdp.export.read import Exported, load_exported
from pmapdp.predict.inputs import read_examples, read_lines

PROGRAM = "python -m pmapdp.predict"
SHOWN_LETTERS = 60


@dataclass(frozen=True)
class Options:
    """Say which class each input is of, and how probable the model takes it to be; of a model that is no classifier,
    say what it answers.

    The inputs are .npy arrays of one example or of several. Of a model of uint8 images they may be PNG or JPEG files of
    the size that the model was trained on, taken as they are: digits and clothes must be light on a dark ground, as in
    the data sets. For a model of grey images colours become grey. Of a model of rows of numbers they may be tables,
    .csv, whose first line may name the columns.

    Of a text model, every input is a text itself; --lines reads them from a file.
    """

    model: str = setting(
        "arguments",
        dataclasses.MISSING,
        "A file that python -m pmapdp.export wrote. It holds a program, so use only files of people whom you trust.",
        place="MODEL",
    )
    input: tuple[str, ...] = setting("arguments", (), "Files, or texts.", place="[INPUT...]")
    lines: str | None = setting(
        "options", None, 'Text model: take every line of this file as a text, or of standard input where it is "-".'
    )
    json: bool = setting(
        "options", False, "Print one JSON object a line; of a classifier with the probabilities of all classes."
    )


def read_inputs(exported: Exported, options: Options) -> tuple[list[dict[str, Any]], list[str], np.ndarray]:
    """What the model is asked about: what JSON says of each input, their names for people, and the n inputs.

    Raises:
        UserError: there is none, one cannot be read, or the model takes several arrays for each example.
    """
    if exported.view:
        texts = [*options.input, *(read_lines(options.lines) if options.lines else [])]
        names = [textwrap.shorten(text, SHOWN_LETTERS, placeholder="...") for text in texts]
        return [{"text": text} for text in texts], names, exported.view(texts)
    if options.lines:
        raise UserError(f"--lines {options.lines} is for text models, and {options.model} takes no texts: name files")
    match exported.metadata["input"]:
        case {"dtype": str(dtype), "shape": [_, *shape]} if hasattr(jnp, dtype):
            examples = [(path, read_examples(path, tuple(shape), dtype)) for path in options.input]
        case other:
            raise UserError(
                f"{options.model} takes {other}, and this command reads pictures, arrays, tables and texts: call it "
                "from Python with pmapdp.export.read.load_exported"
            )
    known = [{"file": path, "index": index} for path, each in examples for index in range(len(each))]
    names = [f"{path}[{index}]" if len(each) > 1 else path for path, each in examples for index in range(len(each))]
    return known, names, np.concatenate([each for _, each in examples])


def print_answers(
    known: list[dict[str, Any]], names: list[str], outputs: dict[str, np.ndarray], *, as_json: bool
) -> None:
    """One line for each input: what a model that is no classifier answers, several outputs with their names."""
    for number, (about, name) in enumerate(zip(known, names, strict=True)):
        answers = {key: each[number].tolist() for key, each in outputs.items()}
        only = answers.get("outputs") if len(answers) == 1 else None
        if as_json:
            print(json.dumps(about | ({"output": only} if only is not None else {"outputs": answers})))
        elif only is not None:
            print(f"{name}  {in_digits(only)}")
        else:
            print("  ".join([name, *(f"{key} {in_digits(each)}" for key, each in answers.items())]))


def in_digits(answer: Any) -> str:
    """A number, or lists of them, with six digits that count."""
    if isinstance(answer, list):
        return f"[{', '.join(map(in_digits, answer))}]"
    return f"{answer:.6g}" if isinstance(answer, float) else str(answer)


def main(arguments: list[str]) -> None:
    """The command. All is read before the first line is printed, so that a mistake leaves nothing half done."""
    options = cli.parse(Options, arguments, __doc__)
    exported = load_exported(options.model)
    if not options.input and not options.lines:
        rows = len(exported.metadata["input"].get("shape", [])) == 2
        example = '"a wonderful film"' if exported.view else "rows.csv" if rows else "digit.png"
        raise UserError(f"INPUT is missing: try {PROGRAM} {options.model} {example}")
    known, names, inputs = read_inputs(exported, options)
    outputs = exported.outputs(inputs)
    if not exported.classifies:
        print_answers(known, names, outputs, as_json=options.json)
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


if __name__ == "__main__":
    sys.exit(cli.run(main))
