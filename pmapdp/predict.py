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

import csv
import dataclasses
import io
import json
import sys
import textwrap
import warnings
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from pmapdp import cli
from pmapdp.config import setting
from pmapdp.errors import UserError, in_one_line, reason
from pmapdp.export import load_exported
from pmapdp.files import read_file


@dataclass(frozen=True)
class Options:
    """The model and what it is asked about."""

    model: str = setting(
        "arguments",
        dataclasses.MISSING,
        "A file that python -m pmapdp.export wrote. It holds a program, so use only files of people whom you trust.",
        place="MODEL",
    )
    input: tuple[str, ...] = setting("arguments", (), "Files, or texts.", place="[INPUT...]")
    lines: str | None = setting(
        "options", None, 'Text model: take every line of this file as a text, or of standard input if it is "-".'
    )
    json: bool = setting(
        "options", False, "Print one JSON object a line; of a classifier with the probabilities of all classes."
    )


def read_examples(path: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return the n examples in a file as `[n, *shape]` of `dtype`.

    The file is a .npy array of one example or of n; for a model of uint8 images `[H, W, 1]` or `[H, W, 3]` a PNG or
    JPEG image, in which 0 is black; for a model of rows `[D]` a table of numbers, .csv. A `UserError` says that it is
    none of these, or of another shape or type.
    """
    wanted, pictures = np.dtype(dtype), dtype == "uint8" and len(shape) == 3 and shape[2] in (1, 3)
    kinds = ["a PNG or JPEG image"] * pictures + ["a table, .csv,"] * (len(shape) == 1) + ["a .npy array"]
    advice = f"name {' or '.join(kinds)} of shape {[*shape]} and type {dtype}, as the model takes it"
    content = read_file(path, advice=advice)
    try:
        if content.startswith(b"\x93NUMPY"):
            with warnings.catch_warnings(action="ignore"):  # of headers that Python 2 wrote
                array = np.load(io.BytesIO(content))  # reads no pickle, which is code
        elif len(shape) == 1 and path.lower().endswith(".csv"):
            array = read_table(content, shape[0])
        elif pictures:
            array = read_picture(content, *shape)
        else:
            raise ValueError("it is no .npy array")
        one = {shape, shape[:-1] if len(shape) == 3 and shape[2] == 1 else shape}  # a single channel may be left out
        if array.size == 0 or (array.shape not in one and array.shape[1:] not in one):
            raise ValueError(f"its shape is {[*array.shape]}")
        if wanted == np.uint8 != array.dtype:
            raise ValueError(f"it holds {array.dtype}; numpy.rint(255 * array).astype('uint8') makes pixels of 0 to 1")
        with np.errstate(all="ignore"):
            result = array.astype(wanted) if array.dtype.kind in "biuf" else None
        if result is None or (wanted.kind != "f" and not np.array_equal(result, array)):
            raise ValueError(f"it holds {array.dtype}")
        result = result.reshape(-1, *shape)
        if bad := np.argwhere(~np.isfinite(result.reshape(len(result), -1)).all(1)).ravel().tolist():
            raise ValueError(f"example {bad[0]}, counted from 0, is not finite in {dtype}")
    except Exception as error:  # Pillow, csv and NumPy's header have several for damaged bytes
        raise UserError(f"{path} is nothing for this model ({reason(error)}): {advice}") from None
    return result


def read_table(content: bytes, columns: int) -> np.ndarray:
    """Return the rows `[n, columns]` of a table in UTF-8 with commas, the first line of which may name the columns."""
    rows = [row for row in csv.reader(io.StringIO(content.decode("utf-8-sig")), strict=True) if row]
    numbers = [[to_number(each) for each in row] for row in rows]
    named = bool(numbers) and all(each is None for each in numbers[0])
    for number, row in enumerate(numbers[named:], 1 + named):
        if len(row) != columns:
            raise ValueError(f"row {number} has {len(row)} columns, and the model takes {columns}, without a label")
        if None in row:
            raise ValueError(f"row {number} has {rows[number - 1][row.index(None)]!r}, which is no number")
    table = np.array(numbers[named:], float).reshape(-1, columns)
    return table.astype(np.int64) if (np.abs(table) < 2**53).all() and (table == np.rint(table)).all() else table


def to_number(text: str) -> float | None:
    """Return a field of a table as a number, or None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def read_picture(content: bytes, height: int, width: int, channels: int) -> np.ndarray:
    """Return a PNG or JPEG image as `[1, height, width, channels]` uint8.

    Colours become their luma, 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601). What is transparent becomes black, the
    background of the data sets.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ValueError('Pillow is not installed: pip install "pmapdp[images]"') from None
    with (
        warnings.catch_warnings(action="ignore"),  # of very large images, which are refused here
        Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image,
    ):
        if image.size != (width, height):
            raise ValueError(f"it is {image.width} x {image.height} pixels, and the model takes {width} x {height}")
        if image.mode.startswith("I"):
            raise ValueError("it has 16 bits a pixel: write it with 8")  # Pillow cuts them off at 255
        black = Image.new("RGBA", image.size, "black")
        shown = Image.alpha_composite(black, image.convert("RGBA")).convert("L" if channels == 1 else "RGB")
        return np.asarray(shown).reshape(1, height, width, channels)


def read_lines(path: str) -> list[str]:
    """Return the lines of a UTF-8 file, or of standard input if the path is `-`, without empty ones."""
    content = sys.stdin.buffer.read() if path == "-" else read_file(path, advice="name a file with one text a line")
    try:
        lines = content.decode("utf-8-sig").split("\n")  # str.splitlines also splits at characters inside of a text
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text in UTF-8: convert it first, for example with iconv") from None
    if texts := [line.removesuffix("\r") for line in lines if line.strip()]:
        return texts
    raise UserError(f"{path} holds no text: write one text a line")


def in_digits(answer: Any) -> str:
    """Write a number, or lists of them, with six digits that count."""
    if isinstance(answer, list):
        return f"[{', '.join(map(in_digits, answer))}]"
    return f"{answer:.6g}" if isinstance(answer, float) else str(answer)


def main(arguments: list[str]) -> None:
    """Run the command. All is read before the first line is printed, so that a mistake leaves nothing half done."""
    options = cli.parse(Options, arguments, __doc__)
    exported = load_exported(options.model)
    known: list[dict[str, Any]]
    if exported.view:
        texts = [*options.input, *(read_lines(options.lines) if options.lines else [])]
        known = [{"text": text} for text in texts]
        names = [textwrap.shorten(text, 60, placeholder="...") for text in texts]
        inputs = exported.view(texts) if texts else None
    elif options.lines:
        raise UserError(f"--lines {options.lines} is for text models, and {options.model} takes no texts: name files")
    else:
        match exported.metadata["input"]:
            case {"dtype": str(dtype), "shape": [_, *shape]} if hasattr(jnp, dtype):
                examples = [(path, read_examples(path, tuple(shape), dtype)) for path in options.input]
            case other:
                raise UserError(
                    f"{options.model} takes {other}, and this command reads pictures, arrays, tables and texts: call "
                    "it from Python with pmapdp.export.load_exported"
                )
        known = [{"file": path, "index": index} for path, each in examples for index in range(len(each))]
        names = [f"{path}[{index}]" if len(each) > 1 else path for path, each in examples for index in range(len(each))]
        inputs = np.concatenate([each for _, each in examples]) if examples else None
    if inputs is None:
        raise UserError(f"INPUT is missing: name a file, or a text in quotes, after {options.model}")
    outputs, names = exported.outputs(inputs), [in_one_line(name) for name in names]
    if not exported.classifies:
        for number, (about, name) in enumerate(zip(known, names, strict=True)):
            answers = {key: each[number].tolist() for key, each in outputs.items()}
            alone = list(answers) == ["outputs"]
            if options.json:
                print(json.dumps(about | ({"output": answers["outputs"]} if alone else {"outputs": answers})))
            else:
                written = [in_digits(each) if alone else f"{key} {in_digits(each)}" for key, each in answers.items()]
                print("  ".join([name, *written]))
        return
    labels = exported.metadata["labels"]
    columns = max(map(len, names)), max(map(len, labels))
    chosen = zip(known, names, outputs["logits"].argmax(-1), outputs["probabilities"].tolist(), strict=True)
    for about, name, number, row in chosen:
        label, probability, shown = labels[number], row[number], in_one_line(labels[number])
        if options.json:
            answer = {"class": label, "probability": probability, "probabilities": dict(zip(labels, row, strict=True))}
            print(json.dumps(about | answer))
        elif exported.view:  # texts are long and differ in length: they come last
            print(f"{shown:<{columns[1]}}  {probability:.4f}  {name}")
        else:
            print(f"{name:<{columns[0]}}  {shown:<{columns[1]}}  {probability:.4f}")


if __name__ == "__main__":
    sys.exit(cli.run(main))
