"""Ask an exported model about files or texts: it answers with the class of each, or with the model's numbers.

    python -m pmapdp.predict model.zip digit.png
    python -m pmapdp.predict model.zip *.png --json     # a JSON object a line
    python -m pmapdp.predict model.zip images.npy       # an array of several
    python -m pmapdp.predict prices.zip houses.csv      # each row of a table
    python -m pmapdp.predict sentiment.zip "a wonderful film"
    python -m pmapdp.predict sentiment.zip --lines reviews.txt

A model of uint8 images takes PNG and JPEG files of its own size, as they are: digits
must be light on a dark ground, as in the data set. A model of grey images makes colours
grey. A model of rows of numbers takes .csv files, whose first line may name the
columns. Every model takes .npy arrays of one example or of several.
"""

import csv
import io
import json
import re
import sys
import textwrap
from dataclasses import MISSING, dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from pmapdp import cli
from pmapdp.config import setting
from pmapdp.custom.images import read_image
from pmapdp.errors import UserError, explain_errors, in_one_line
from pmapdp.export import load_exported
from pmapdp.files import read_file

NUMBER = re.compile(
    r"\s*[-+]?(\.?\d|(nan|inf)\s*$)", re.IGNORECASE
)  # the beginning of one in a table
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's, by the channels of a model's images


COMMAND = cli.Command(
    usage="python -m pmapdp.predict MODEL [INPUT...] [flags]",
    example="python -m pmapdp.predict model.zip digit.png",
    description=__doc__,
)


@dataclass(frozen=True)
class Options:
    """The model and the questions."""

    model: str = setting(
        "arguments",
        MISSING,
        "An exported file, a program of people you trust.",
        place="MODEL",
    )
    input: tuple[str, ...] = setting(
        "arguments", (), "Files, or texts.", place="[INPUT...]"
    )
    lines: str | None = setting(
        "options", None, 'Take each line of this file as a text; "-" is standard input.'
    )
    json: bool = setting(
        "options",
        False,
        "Print a JSON object a line, with the probabilities of all classes.",
    )


def read_examples(path: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return the n examples in a file as `[n, *shape]` of `dtype`.

    The file is a .npy array of one example or of n; for a model of uint8 images `[H, W,
    C]` an image; for a model of rows `[D]` a table of numbers, .csv. A `UserError` says
    that it is none of these.
    """
    wanted, pictures = (
        np.dtype(dtype),
        dtype == "uint8" and len(shape) == 3 and shape[2] in MODES,
    )
    kinds = (
        ["a PNG or JPEG image"] * pictures
        + ["a table in UTF-8, .csv,"] * (len(shape) == 1)
        + ["a .npy array"]
    )
    advice = f"name {' or '.join(kinds)} of shape {[*shape]} and type {dtype}, as the model takes it"
    content = read_file(path, advice=advice)
    with explain_errors(f"{path} is nothing for this model", advice):
        if content.startswith(b"\x93NUMPY"):
            array = np.load(io.BytesIO(content))  # reads no pickle, which is code
        elif len(shape) == 1 and path.lower().endswith(".csv"):
            array = read_table(content, shape[0])
        elif pictures:
            array = read_image(io.BytesIO(content), MODES[shape[2]])
        else:
            raise ValueError("it is no .npy array")
        one = {
            shape,
            shape[:-1] if len(shape) == 3 and shape[2] == 1 else shape,
        }  # a single channel may be left out
        if array.size == 0 or (array.shape not in one and array.shape[1:] not in one):
            raise ValueError(f"its shape is {[*array.shape]}")
        if wanted == np.uint8 != array.dtype:
            raise ValueError(
                f"it holds {array.dtype}; numpy.rint(255 * array).astype('uint8') makes pixels of 0 to 1"
            )
        if array.dtype.kind not in "biuf":
            raise ValueError(f"it holds {array.dtype}")
        with np.errstate(all="ignore"):
            result = array.astype(wanted).reshape(-1, *shape)
        if wanted.kind != "f" and not np.array_equal(result.ravel(), array.ravel()):
            raise ValueError(f"it holds numbers that are not {dtype}")
        if (
            bad := np.argwhere(~np.isfinite(result.reshape(len(result), -1)).all(1))
            .ravel()
            .tolist()
        ):
            raise ValueError(
                f"example {bad[0]}, counted from 0, is not finite in {dtype}"
            )
    return result


def read_table(content: bytes, columns: int) -> np.ndarray:
    """Return the rows `[n, columns]` of a table with commas, the first line of which may name the columns."""
    rows = [
        row
        for row in csv.reader(io.StringIO(content.decode("utf-8-sig")), strict=True)
        if row
    ]
    names = bool(rows) and not any(map(NUMBER.match, rows[0]))
    for number, row in enumerate(rows, 1):
        if len(row) != columns:
            raise ValueError(
                f"row {number} has {len(row)} columns, and the model takes {columns}, without a label"
            )
        if number > names and (
            wrong := [each for each in row if not NUMBER.match(each)]
        ):
            raise ValueError(f"row {number} has {wrong[0]!r}, which is no number")
    return np.array(rows[names:], float).reshape(-1, columns)


def read_lines(path: str) -> list[str]:
    """Return the lines of a UTF-8 file, or of standard input if the path is `-`, without empty ones."""
    advice = "name a file in UTF-8 with one text a line"
    content = sys.stdin.buffer.read() if path == "-" else read_file(path, advice=advice)
    with explain_errors(f"{path} cannot be read", advice):
        lines = content.decode("utf-8-sig").split(
            "\n"
        )  # str.splitlines also splits at characters inside of a text
        if not (texts := [line.removesuffix("\r") for line in lines if line.strip()]):
            raise ValueError("it holds no text")
    return texts


def in_digits(answer: Any) -> str:
    """Write a number, or lists of them, with six digits that count."""
    if isinstance(answer, list):
        return f"[{', '.join(map(in_digits, answer))}]"
    return f"{answer:.6g}" if isinstance(answer, float) else str(answer)


def main(arguments: list[str]) -> None:
    """Run the command. All is read before the first line is printed, so that a mistake leaves nothing half done."""
    options = cli.parse(COMMAND, Options, arguments)
    exported = load_exported(options.model)
    known: list[dict[str, Any]]
    if exported.featurizer:
        texts = [*options.input, *(read_lines(options.lines) if options.lines else [])]
        known = [{"text": text} for text in texts]
        names = [textwrap.shorten(text, 60, placeholder="...") for text in texts]
        inputs = exported.featurizer(texts) if texts else None
    elif options.lines:
        raise UserError(
            f"--lines {options.lines} is for text models, and {options.model} takes no texts: name files"
        )
    else:
        match exported.metadata["input"]:
            case {"dtype": str(dtype), "shape": [_, *shape]} if hasattr(jnp, dtype):
                examples = [
                    (path, read_examples(path, tuple(shape), dtype))
                    for path in options.input
                ]
            case other:
                raise UserError(
                    f"{options.model} takes {other}, and this command reads pictures, arrays, tables and texts: call "
                    "it from Python with pmapdp.export.load_exported"
                )
        known = [
            {"file": path, "index": index}
            for path, each in examples
            for index in range(len(each))
        ]
        names = [
            f"{path}[{index}]" if len(each) > 1 else path
            for path, each in examples
            for index in range(len(each))
        ]
        inputs = np.concatenate([each for _, each in examples]) if examples else None
    if inputs is None:
        raise UserError(
            f"INPUT is missing: name a file, or a text in quotes, after {options.model}"
        )
    outputs, names = exported.outputs(inputs), [in_one_line(name) for name in names]
    labels, width = exported.metadata["labels"], max(map(len, names))
    for number, (about, name) in enumerate(zip(known, names, strict=True)):
        answers = {key: each[number].tolist() for key, each in outputs.items()}
        if exported.metadata["classifies"]:
            best, probabilities = (
                int(np.argmax(answers["logits"])),
                answers["probabilities"],
            )
            label, probability = (
                in_one_line(labels[best]).ljust(max(map(len, labels))),
                f"{probabilities[best]:.4f}",
            )
            # Texts are long and differ in length, so they come last.
            line = (
                [label, probability, name]
                if exported.featurizer
                else [name.ljust(width), label, probability]
            )
            answer = {"class": labels[best], "probability": probabilities[best]}
            answer["probabilities"] = dict(zip(labels, probabilities, strict=True))
        elif list(answers) == ["outputs"]:
            line, answer = (
                [name, in_digits(answers["outputs"])],
                {"output": answers["outputs"]},
            )
        else:
            line, answer = (
                [name, *(f"{key} {in_digits(each)}" for key, each in answers.items())],
                {"outputs": answers},
            )
        print(json.dumps(about | answer) if options.json else "  ".join(line))


if __name__ == "__main__":
    sys.exit(cli.run(main))
