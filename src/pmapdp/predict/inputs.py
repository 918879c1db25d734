"""What a model is asked about: images from PNG or JPEG files and .npy arrays, as they are, and texts, one a line."""

import io
import sys
import warnings
from pathlib import Path

import numpy as np

from pmapdp.errors import UserError, reason
from pmapdp.files.reading import read_file

NPY_START = b"\x93NUMPY"
PNG_END = b"IEND\xaeB`\x82"


def read_images(path: str | Path, height: int, width: int) -> np.ndarray:
    """The grey images in a file, `[n, height, width, 1]` uint8, as they are: 0 is black.

    The file is a PNG or JPEG image (n = 1), in grey or colour, or a .npy array `[H, W]`, `[H, W, 1]`, `[n, H, W]` or
    `[n, H, W, 1]` of uint8; anything else raises `UserError`.
    """
    content = read_file(path, advice="name a PNG image or a .npy array")
    if not content.startswith(NPY_START):
        return read_picture(path, content, height, width)
    try:
        array = np.load(io.BytesIO(content))  # which reads no pickle, for it is code
    except Exception as error:  # NumPy parses the header as Python, with whatever error that brings
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
                return np.rint(np.asarray(image) * (255 / 65535)).astype(np.uint8)[None, ..., None]
            black = Image.new("RGBA", image.size, "black")
            return np.asarray(Image.alpha_composite(black, image.convert("RGBA")).convert("L"))[None, ..., None]
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
