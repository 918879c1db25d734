"""What a model is asked about: pictures, arrays and tables from files, as they are, and texts, one a line."""

import csv
import io
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from pmapdp.errors import UserError, reason
from pmapdp.files import read_file

NPY_START = b"\x93NUMPY"
PNG_END = b"IEND\xaeB`\x82"


def read_examples(path: str | Path, shape: tuple[int, ...], dtype: Any = np.uint8) -> np.ndarray:
    """The n examples in a file, as they are: `[n, *shape]` of `dtype`.

    The file is a .npy array of one example or of n; for a model of uint8 images `[H, W, 1]` or `[H, W, 3]` a PNG or
    JPEG image, in which 0 is black; for a model of rows `[D]` a table of numbers, .csv. A `UserError` says that it is
    none of these, or of another shape or type.
    """
    pictures, tables = np.dtype(dtype) == np.uint8 and len(shape) == 3 and shape[2] in (1, 3), len(shape) == 1
    taken = ["a PNG or JPEG image"] * pictures + ["a table of numbers, .csv"] * tables + ["a .npy array"]
    content = read_file(path, advice=f"name {' or '.join(taken)}")
    if content.startswith(NPY_START):
        return read_array(path, content, shape, dtype)
    if tables and str(path).lower().endswith(".csv"):
        return read_table(path, content, shape[0], dtype)
    if pictures:
        return read_picture(path, content, *shape)
    raise UserError(
        f"{path} is no file for this model, which takes {np.dtype(dtype).name} of shape {[*shape]}: name "
        f"{' or '.join(taken)}"
    )


def read_array(path: str | Path, content: bytes, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """The examples in the `content` of a .npy file; the axis of a single channel may be left out."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of headers that Python 2 wrote
            array = np.load(io.BytesIO(content))  # which reads no pickle, for it is code
    except Exception as error:  # NumPy parses the header as Python, with whatever error that brings
        why = reason(error)
        raise UserError(f"{path} is no array that can be read ({why}): write it with numpy.save") from None
    one = [shape[:-1]] * (len(shape) == 3 and shape[2] == 1) + [shape]
    if array.size == 0 or (array.shape not in one and array.shape[1:] not in one):
        shapes = ", ".join(str([*each]) for each in (*one, *(("n", *each) for each in one)))
        raise UserError(
            f"{path} has shape {list(array.shape)}: the model takes {shapes.replace(chr(39), '')}, with n of at least 1"
        )
    return as_type(path, array, dtype).reshape(-1, *shape)


def as_type(path: str | Path, array: np.ndarray, dtype: Any) -> np.ndarray:
    """An array in the type that the model takes: real numbers in its precision, and whole numbers where they fit."""
    wanted = np.dtype(dtype)
    if wanted == np.uint8 and array.dtype != wanted:
        raise UserError(
            f"{path} holds {array.dtype}: the model takes uint8 pixels from 0 to 255; for values from 0 to 1 write "
            "numpy.rint(255 * array).astype('uint8')"
        )
    kinds = "biuf" if wanted.kind == "f" else "biu"
    with np.errstate(all="ignore"):
        result = array.astype(wanted) if array.dtype.kind in kinds else array
    if array.dtype.kind not in kinds or (wanted.kind != "f" and not np.array_equal(result, array)):
        raise UserError(
            f"{path} holds {array.dtype}, which does not fit the {wanted.name} that the model takes: convert it first"
        )
    return result


def read_table(path: str | Path, content: bytes, columns: int, dtype: Any) -> np.ndarray:
    """The rows of a table of numbers, in which the first may name the columns."""
    try:
        rows = [row for row in csv.reader(io.StringIO(content.decode("utf-8-sig"))) if row]
        names = bool(rows) and not any(is_number(each) for each in rows[0])
        numbers = [[float(each) for each in row] for row in rows[names:]]
    except ValueError as error:
        raise UserError(f"{path} is no table of numbers ({reason(error)}): separate them by commas") from None
    for number, row in enumerate(numbers, 1 + names):
        if len(row) != columns:
            raise UserError(
                f"{path} has {len(row)} columns in row {number}: the model takes {columns}, without a label"
            )
    if not numbers:
        raise UserError(f"{path} holds no row: write one for each example, of {columns} numbers")
    table = np.array(numbers)
    whole = np.dtype(dtype).kind in "iu" and (table == np.rint(table)).all()
    return as_type(path, table.astype(np.int64) if whole else table, dtype)


def is_number(text: str) -> bool:
    """Whether a field of a table is one."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_picture(path: str | Path, content: bytes, height: int, width: int, channels: int) -> np.ndarray:
    """A PNG or JPEG image as `[1, height, width, 1]` uint8.

    Colours become their luma, 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601). What is transparent becomes black, the
    background of the data sets.

    Raises:
        UserError: it is no such image, of another size, or Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise UserError(
            f'{path} needs Pillow to be read: run pip install "pmapdp[images]", or give a .npy array of uint8 pixels'
        ) from None
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # of very large images, which are refused here
            Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image,
        ):
            if image.size != (width, height):
                raise UserError(
                    f"{path} is {image.width} x {image.height} pixels: the model takes images of {width} x {height}; "
                    "cut it out and resize it first"
                )
            if image.format == "PNG" and PNG_END not in content:
                raise ValueError("its end is missing")
            if image.mode.startswith("I"):  # 16 bits a pixel, which Pillow cuts off at 255 instead of scaling
                grey = np.rint(np.asarray(image) * (255 / 65535)).astype(np.uint8)
                return np.repeat(grey[None, ..., None], channels, axis=-1)
            black = Image.new("RGBA", image.size, "black")
            shown = Image.alpha_composite(black, image.convert("RGBA")).convert("L" if channels == 1 else "RGB")
            return np.asarray(shown).reshape(1, height, width, channels)
    except UserError:
        raise
    except Exception:  # Pillow has no error of its own for damaged bytes
        raise UserError(
            f"{path} is no PNG or JPEG image and no .npy array, or is cut short or damaged: name another file"
        ) from None


def read_lines(path: str) -> list[str]:
    """The lines of a UTF-8 file, or of standard input where the path is `-`; empty ones are left out.

    Raises:
        UserError: it cannot be read, is not UTF-8, or has no text in it.
    """
    if path != "-":
        content = read_file(path, advice="name a file with one text a line, or - for standard input")
    else:
        content = sys.stdin.buffer.read() if sys.stdin else b""  # Python starts without one where it is closed
    try:
        lines = content.decode("utf-8-sig").split("\n")  # str.splitlines also splits at characters inside of a text
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text in UTF-8: convert it first, for example with iconv") from None
    if texts := [line.removesuffix("\r") for line in lines if line.strip()]:
        return texts
    raise UserError(f"{path} holds no text: write one text a line")
