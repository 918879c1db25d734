"""Images in folders, a subfolder for each class: `python -m pmapdp.train --dataset photos/`.

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
FORMATS = (
    "JPEG",
    "PNG",
    "BMP",
    "GIF",
    "TIFF",
    "WEBP",
    "PPM",
)  # no other: for EPS Pillow starts Ghostscript


class ImageFolder:
    """A map-style data set of `[H, W, C]` uint8 images and the names of their classes.

    Args:
        folder: holds a subfolder for each class, and these hold images, also in folders
            of their own.
        size: (H, W) to which each image is scaled, its longer side cut off evenly; None
            if all have one size.
        mode: Pillow's name of the colours: "RGB" for C = 3, "L" (grey) for 1, "RGBA"
            for 4.
    """

    thread_safe = True  # each call opens its own file

    def __init__(
        self, folder: str | Path, size: tuple[int, int] | None = None, mode: str = "RGB"
    ):
        self.folder, self.size, self.mode = Path(folder), size, mode
        self.classes = tuple(subfolders(self.folder))
        found = (
            path.relative_to(folder)
            for name in self.classes
            for path in self.folder.joinpath(name).rglob("*")
        )
        # Jupyter leaves folders .ipynb_checkpoints, and macOS files ._1.png.
        visible = (
            path for path in found if not any(part[0] == "." for part in path.parts)
        )
        self.files = sorted(path for path in visible if path.suffix.lower() in ENDINGS)
        if not self.files:
            names = ", ".join(self.classes[:9]) or "none"
            advice = f"give it one for each class, with files {' '.join(ENDINGS)}"
            raise UserError(
                f"{folder} has no images in its subfolders ({names}): {advice}"
            )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, str]:
        path = self.folder / self.files[index]
        with open_file(path, advice="replace it, or take it out of the folder") as file:
            return read_image(file, self.mode, self.size), self.files[index].parts[0]


def read_image(
    file: BinaryIO, mode: str, size: tuple[int, int] | None = None
) -> np.ndarray:
    """Read an image of 8 bits a colour as `[H, W, C]` uint8, scaled to (H, W) if you give a `size`.

    Grey is the luma (ITU-R BT.601). Transparent pixels become black, unless the `mode`
    has transparency. Of a damaged image, or one of another kind, Pillow raises one of
    its errors.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise UserError(
            "images need Pillow: run pip install pillow, or give arrays"
        ) from None
    with Image.open(file, formats=FORMATS) as opened:
        if opened.mode[0] in "IF":
            raise ValueError(
                f"its mode is {opened.mode}: write it with 8 bits a colour"
            )
        image: Any = opened
        if mode != "RGBA" and opened.has_transparency_data:
            image = Image.alpha_composite(
                Image.new("RGBA", opened.size, "black"), opened.convert("RGBA")
            )
        image = image.convert(mode)
    pixels = np.asarray(image if size is None else ImageOps.fit(image, size[::-1]))
    return pixels.reshape(*pixels.shape[:2], -1)


def subfolders(folder: Path) -> list[str]:
    """Return the names of the visible folders in a folder, sorted."""
    with explain_errors(
        f"{folder} cannot be read", "name a folder with one for each class"
    ):
        names = sorted(
            path.name
            for path in folder.iterdir()
            if path.is_dir() and path.name[0] != "."
        )
    return names


def load_folder(folder: Path) -> DataSet:
    """Read the data set in a folder of images."""
    if "train" not in subfolders(folder) or not subfolders(folder / "train"):
        return make_data_set(DataSet(ImageFolder(folder)))
    return make_data_set(
        {
            name: ImageFolder(folder / name)
            for name in PARTS
            if name in subfolders(folder)
        }
    )
