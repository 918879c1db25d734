"""Read images in folders, with a subfolder for each class: `--dataset photos/`.

As for torchvision's `ImageFolder`, `photos/cat/1.jpg` is an example, and the
subfolders' names are the classes, in alphabetical order. If there is
`photos/train/cat/1.jpg`, `photos/test/` and `photos/validation/` are the other parts.
"""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pmapdp.custom.data import PARTS, make_data_set
from pmapdp.data.dataset import DataSet
from pmapdp.errors import UserError, explain_errors
from pmapdp.files import open_file

ENDINGS = (
    ".jpg",
    ".jpeg",
    ".png",
    ".bmp",
    ".gif",
    ".tif",
    ".tiff",
    ".webp",
    ".ppm",
    ".pgm",
)
# Pillow reads no other format here, because for EPS it would start Ghostscript.
FORMATS = (
    "JPEG",
    "PNG",
    "BMP",
    "GIF",
    "TIFF",
    "WEBP",
    "PPM",
)


class ImageFolder:
    """A map-style data set of `[H, W, C]` uint8 images and the names of their classes.

    Args:
        folder: A folder with a subfolder for each class. Images may be in folders
            inside of these, too.
        size: (H, W) to which each image is scaled. If its shape differs, it's cut
            evenly on both sides. None: the images have one size already.
        mode: Pillow's name of the colours: "RGB" for C = 3, "L" (grey) for 1, "RGBA"
            for 4.

    Example:
        photos = DataSet(train=ImageFolder("photos", size=(64, 64)))
    """

    thread_safe = True  # each call opens its own file

    def __init__(
        self, folder: str | Path, size: tuple[int, int] | None = None, mode: str = "RGB"
    ):
        self.folder = Path(folder)
        self.size = size
        self.mode = mode
        self.classes = tuple(list_subfolders(self.folder))
        self.files = []
        for name in self.classes:
            for path in (self.folder / name).rglob("*"):
                file = path.relative_to(self.folder)
                # Jupyter leaves folders .ipynb_checkpoints, and macOS files ._1.png.
                is_hidden = any(part.startswith(".") for part in file.parts)
                if file.suffix.lower() in ENDINGS and not is_hidden:
                    self.files.append(file)
        self.files.sort()
        if not self.files:
            names = ", ".join(self.classes[:9]) or "none"
            raise UserError(
                f"{folder} has no images in its subfolders ({names}): give it one for "
                f"each class, with files {' '.join(ENDINGS)}"
            )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, str]:
        path = self.files[index]
        advice = "replace it, or take it out of the folder"
        with open_file(self.folder / path, advice=advice) as file:
            return read_image(file, self.mode, self.size), path.parts[0]


def read_image(
    file: BinaryIO, mode: str, size: tuple[int, int] | None = None
) -> np.ndarray:
    """Read an image of 8 bits a colour as `[H, W, C]` uint8.

    Grey is the luma (ITU-R BT.601). Transparent pixels become black, unless the mode
    has transparency.

    Args:
        file: Opened for reading. If it's damaged, Pillow raises one of its errors.
        mode: Pillow's name of the colours.
        size: (H, W) to which the image is scaled.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise UserError(
            "images need Pillow: run pip install pillow, or give arrays"
        ) from None
    with Image.open(file, formats=FORMATS) as opened:
        # Pillow would cut 16 and 32 bits off at 255.
        if opened.mode[0] in "IF":
            raise ValueError(
                f"its mode is {opened.mode}: write it with 8 bits a colour"
            )
        image: Any = opened
        if mode != "RGBA" and opened.has_transparency_data:
            black = Image.new("RGBA", opened.size, "black")
            image = Image.alpha_composite(black, opened.convert("RGBA"))
        image = image.convert(mode)
    if size is not None:
        image = ImageOps.fit(image, size[::-1])  # Pillow's sizes are (W, H)
    pixels = np.asarray(image)
    return pixels.reshape(*pixels.shape[:2], -1)


def list_subfolders(folder: Path) -> list[str]:
    """Return the names of the visible folders in a folder, sorted."""
    with explain_errors(
        f"{folder} cannot be read", "name a folder with one for each class"
    ):
        names = [path.name for path in folder.iterdir() if path.is_dir()]
    return sorted(name for name in names if not name.startswith("."))


def load_folder(folder: Path) -> DataSet:
    """Read the data set in a folder of images."""
    names = list_subfolders(folder)
    # A class may be called "train", too. Then it has images, and no subfolders.
    if "train" not in names or not list_subfolders(folder / "train"):
        return make_data_set({"train": ImageFolder(folder)})
    parts = {name: ImageFolder(folder / name) for name in PARTS if name in names}
    return make_data_set(parts)
