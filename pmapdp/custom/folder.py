"""Images in folders, a subfolder for each class: `python -m pmapdp.train --dataset photos/`.

As torchvision's `ImageFolder` has it: `photos/cat/1.jpg`, `photos/dog/2.png`; the names of the subfolders are the
classes, in the order of the alphabet, and images become RGB. Where there is `photos/train/cat/1.jpg`, `photos/test/`
and `photos/validation/` are the other parts; without them nothing is measured after an epoch but the training.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from pmapdp.custom.data_sets import as_data_set
from pmapdp.data.dataset import DataSet
from pmapdp.errors import UserError, reason
from pmapdp.files import open_file

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # no other: for EPS Pillow starts Ghostscript


class ImageFolder:
    """A map-style data set: `[H, W, 3]` uint8 RGB, and the number of its class.

    Args:
        folder: holds a subfolder for each class; folders in that count as well.
        size: (H, W) to which each image is scaled, its longer side cut off evenly; None where all have one size.
        classes: the names of the subfolders in the order of their numbers; None for all there are, by the alphabet.
    """

    def __init__(self, folder: str | Path, size: tuple[int, int] | None = None, classes: tuple[str, ...] | None = None):
        self.folder, self.size, self.files = Path(folder), size, list[tuple[str, int]]()
        found = subfolders(self.folder)
        self.classes = tuple(found) if classes is None else classes
        if not found or not set(found) <= set(self.classes):
            raise UserError(
                f"{folder} has the subfolders {', '.join(found[:9]) or 'none'}: give it one for each class"
                + ("" if classes is None else f", of {', '.join(classes)}")
            )
        for name in found:
            for below, folders, names in os.walk(self.folder / name):
                folders[:] = visible(folders)
                images = [each for each in visible(names) if each.lower().endswith(ENDINGS)]
                self.files += [(os.path.join(below, image), self.classes.index(name)) for image in images]
        if not self.files:
            raise UserError(f"{folder} holds no images in its subfolders: give files that end in {' '.join(ENDINGS)}")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        path, label = self.files[index]
        return read_image(path, self.size), label


def read_image(path: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """The image in a file as `[H, W, 3]` uint8 RGB; `size` as for `ImageFolder`.

    Raises:
        UserError: it cannot be read, or has more than 8 bits a colour.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise UserError(f'{path} needs Pillow to be read: run pip install "pmapdp[data]", or give arrays') from None
    advice = "replace it, or take it out of the folder"
    try:
        with open_file(path, advice=advice) as file, Image.open(file, formats=FORMATS) as image:
            if image.mode[0] in "IF":
                raise ValueError(f"its mode is {image.mode}, and images of 8 bits a colour are read")
            rgb = image.convert("RGB")
    except UserError:
        raise
    except Exception as error:  # Pillow has no error of its own for damaged bytes
        raise UserError(f"{path} cannot be read ({reason(error)}): {advice}") from None
    return np.asarray(rgb if size is None else ImageOps.fit(rgb, (size[1], size[0])))


def visible(names: Iterable[str]) -> list[str]:
    """The names sorted, without those of hidden files: Jupyter's `.ipynb_checkpoints` and macOS's `._1.png`."""
    return sorted(name for name in names if not name.startswith("."))


def subfolders(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted; hidden ones are left out."""
    try:
        return visible(each.name for each in os.scandir(folder) if each.is_dir())
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({reason(error)}): name a folder with one for each class") from None


def data_from_folder(folder: Path) -> DataSet:
    """The data set in a folder; a `UserError` says what is missing."""
    if "train" not in (found := subfolders(folder)) or not subfolders(folder / "train"):
        return as_data_set(DataSet(ImageFolder(folder)))
    train = ImageFolder(folder / "train")
    others = {"test", "validation"} & set(found)
    return as_data_set({"train": train, **{name: ImageFolder(folder / name, classes=train.classes) for name in others}})
