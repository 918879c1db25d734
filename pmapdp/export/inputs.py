"""What a model is asked about: images from PNG or JPEG files and .npy arrays, as they are, and texts, one a line."""

import io
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from pmapdp.errors import UserError, reason
from pmapdp.files import read_file

NPY_START, PNG_START, JPEG_START = b"\x93NUMPY", b"\x89PNG", b"\xff\xd8\xff"
PNG_END, JPEG_END = b"IEND\xaeB`\x82", b"\xff\xd9"


def read_images(path: str | Path, height: int, width: int) -> np.ndarray:
    """The grey images in a file, `[n, height, width, 1]` uint8, as they are: 0 is black.

    The file is a PNG or JPEG image (n = 1), in grey or colour, or a .npy array `[H, W]`, `[H, W, 1]`, `[n, H, W]` or
    `[n, H, W, 1]` of uint8; anything else raises `UserError`.
    """
    content = read_file(path, advice="name a PNG image or a .npy array")
    if not content.startswith(NPY_START):
        return read_picture(path, content, height, width)
    try:
        array = read_array(content)
    except ValueError as error:
        why = reason(error)
        raise UserError(f"{path} is no array that can be read ({why}): write it with numpy.save, as uint8") from None
    if array.dtype != np.uint8:
        raise UserError(
            f"{path} holds {array.dtype}: the model takes uint8 pixels from 0 to 255; for values from 0 to 1 write "
            "numpy.rint(255 * array).astype('uint8')"
        )
    H, W = height, width
    one = ((H, W), (H, W, 1))
    if array.size == 0 or (array.shape not in one and array.shape[1:] not in one):
        raise UserError(
            f"{path} has shape {list(array.shape)}: the model takes [{H}, {W}], [{H}, {W}, 1], [n, {H}, {W}] or "
            f"[n, {H}, {W}, 1] with n of at least 1"
        )
    return array.reshape(-1, H, W, 1)


def read_array(content: bytes) -> np.ndarray:
    """The array in a .npy file that holds it whole, nothing else, and no pickle.

    Raises:
        ValueError: it is something else. What the header says is compared with the size before memory is taken.
    """
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[
            version
        ]
        shape, _, dtype = read_header(file)
    except Exception as error:  # NumPy evaluates the header as Python, with whatever error that brings
        raise ValueError(f"its header is damaged, {type(error).__name__}") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    expected, found = math.prod(shape) * dtype.itemsize, len(content) - file.tell()
    if min(shape, default=0) < 0 or expected != found:
        raise ValueError(f"its header says {expected:,} bytes, and it has {found:,}")
    return np.load(io.BytesIO(content), allow_pickle=False)


def read_picture(path: str | Path, content: bytes, height: int, width: int) -> np.ndarray:
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
    starts = content.startswith((PNG_START, JPEG_START))
    try:
        with warnings.catch_warnings(action="ignore"):  # of very large images, which are refused below
            with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
                size = image.size
                image.verify()  # a PNG's checksums; leaves the image unusable
            if size != (width, height):
                raise UserError(
                    f"{path} is {size[0]} x {size[1]} pixels: the model takes images of {width} x {height}; cut it out "
                    "and resize it first"
                )
            if (PNG_END if content.startswith(PNG_START) else JPEG_END) not in content:
                raise ValueError("its end is missing")
            with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
                return grey(image)[None, ..., None]
    except UserError:
        raise
    except Exception:  # Pillow has no error of its own for damaged bytes
        why = "it is cut short or damaged" if starts else "it is neither"
        raise UserError(f"{path} cannot be read as a PNG or JPEG image or a .npy array ({why})") from None


def grey(image: Any) -> np.ndarray:
    """A Pillow image as `[H, W]` uint8."""
    if image.mode.startswith("I"):  # 16 bits a pixel; Pillow would cut them off at 255 instead of scaling
        return np.rint(np.asarray(image) * (255 / 65535)).astype(np.uint8)
    if image.has_transparency_data:
        from PIL import Image

        black = Image.new("RGBA", image.size, "black")
        image = Image.alpha_composite(black, image.convert("RGBA"))
    return np.asarray(image.convert("L"))


def read_lines(path: str) -> list[str]:
    """The lines of a UTF-8 file, or of standard input where the path is `-`; empty ones are left out.

    Raises:
        UserError: it cannot be read, is not UTF-8, or has no text in it.
    """
    name, content = path, b""
    if path != "-":
        content = read_file(path, advice="name a file with one text a line, or - for standard input")
    elif sys.stdin:  # Python starts without one where it is closed
        name, content = "standard input", sys.stdin.buffer.read()
    try:
        lines = content.decode("utf-8-sig").split("\n")  # str.splitlines also splits at signs inside of texts
    except UnicodeDecodeError:
        raise UserError(f"{name} is no text in UTF-8: convert it first, for example with iconv") from None
    if texts := [line.removesuffix("\r") for line in lines if line.strip()]:
        return texts
    raise UserError(f"{name} holds no text: write one text a line")
