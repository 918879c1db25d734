"""Images for a model to look at, from PNG or JPEG files and .npy arrays; never resized, inverted or centred."""

from pathlib import Path
from typing import Any

import numpy as np

from pmapdp.errors import UserError

NPY_START = b"\x93NUMPY"
FORMATS = ("PNG", "JPEG")


def read_images(path: str | Path, height: int, width: int) -> np.ndarray:
    """The grey images in a file, `[n, height, width, 1]` uint8, as they are: 0 is black.

    Args:
        path: a PNG or JPEG image (n = 1), in grey or colour, or a .npy array as `check_array` takes.
        height: of the images, in pixels.
        width: of the images, in pixels.

    Raises:
        UserError: there is no such file, it is no image, or of another size or type.
    """
    try:
        with open(path, "rb") as file:
            is_array = file.read(len(NPY_START)) == NPY_START
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): name a PNG image or a .npy array") from None
    if not is_array:
        return read_picture(path, height, width)
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} is no array that can be read ({reason}): write it with numpy.save, as uint8") from None
    return check_array(path, array, height, width)


def check_array(path: str | Path, array: np.ndarray, height: int, width: int) -> np.ndarray:
    """`[H, W]`, `[H, W, 1]`, `[n, H, W]` or `[n, H, W, 1]` uint8 as `[n, H, W, 1]`.

    Raises:
        UserError: another shape or type, or no image at all.
    """
    if array.dtype != np.uint8:
        raise UserError(
            f"{path} holds {array.dtype}: the model takes uint8 pixels from 0 to 255; for values from 0 to 1 write "
            "numpy.rint(255 * array).astype('uint8')"
        )
    one = ((height, width), (height, width, 1))
    if array.size == 0 or (array.shape not in one and array.shape[1:] not in one):
        H, W = height, width
        raise UserError(
            f"{path} has shape {list(array.shape)}: the model takes [{H}, {W}], [{H}, {W}, 1], [n, {H}, {W}] or "
            f"[n, {H}, {W}, 1] with n of at least 1"
        )
    return array.reshape(-1, height, width, 1)


def read_picture(path: str | Path, height: int, width: int) -> np.ndarray:
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
        with Image.open(path, formats=FORMATS) as image:
            if image.size != (width, height):
                raise UserError(
                    f"{path} is {image.size[0]} x {image.size[1]} pixels: the model takes images of "
                    f"{width} x {height}; cut it out and resize it first"
                )
            pixels = grey(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "it is cut short or damaged" if is_picture(path) else "it is neither"
        raise UserError(f"{path} cannot be read as a PNG or JPEG image or a .npy array ({reason})") from error
    return pixels[None, ..., None]


def is_picture(path: str | Path) -> bool:
    """Whether a file starts as PNG or JPEG files do."""
    with open(path, "rb") as file:
        start = file.read(8)
    return start.startswith((b"\x89PNG", b"\xff\xd8\xff"))


def grey(image: Any) -> np.ndarray:
    """A Pillow image as `[H, W]` uint8."""
    if image.mode.startswith("I"):  # 16 bits a pixel; Pillow would cut them off at 255 instead of scaling
        return np.rint(np.asarray(image) * (255 / 65535)).astype(np.uint8)
    if image.has_transparency_data:
        from PIL import Image

        black = Image.new("RGBA", image.size, "black")
        image = Image.alpha_composite(black, image.convert("RGBA"))
    return np.asarray(image.convert("L"))
