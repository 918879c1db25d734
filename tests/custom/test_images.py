"""Images in folders, as arrays and on the command line."""

import shlex

import entry
import numpy as np
import pytest
import small_job
from PIL import Image

from pmapdp.custom.images import ImageFolder, load_folder
from pmapdp.errors import UserError

COLOURS = {"red": (200, 10, 10), "blue": (10, 10, 200)}


def write(folder, size=(6, 5), ending="png"):
    """Eight images of each of two classes, and a file that is no image."""
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "notes.txt").write_text("no image")
        for index in range(8):
            shade = tuple(value + index for value in colour)
            image = Image.new("RGB", size, shade)
            image.save(folder / name / f"{index}.{ending}")


def test_a_folder_for_each_class(tmp_path):
    """In alphabetical order, at any depth, without hidden files and folders."""
    write(tmp_path)
    for below in (".cache", "red/.ipynb_checkpoints", "red/more/.cache", "red/more"):
        (tmp_path / below).mkdir(parents=True, exist_ok=True)
        Image.new("L", (6, 5), 9).save(tmp_path / below / "grey.JPG")
    (tmp_path / "red" / "._0.png").write_bytes(b"of macOS")
    found = ImageFolder(tmp_path)
    assert (found.classes, len(found)) == (("blue", "red"), 17)
    image, label = found[3]
    assert (image.shape, image.dtype, label) == ((5, 6, 3), np.uint8, "blue")
    np.testing.assert_array_equal(image[0, 0], [13, 13, 203])
    assert found[16][0].max() == 9
    data = load_folder(tmp_path)
    assert (data.train.num_examples, data.test, data.classes) == (
        17,
        None,
        ("blue", "red"),
    )
    assert data.train.select(np.array([3, 16])).labels.tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_colours_and_sizes(tmp_path, kind):
    (tmp_path / "white").mkdir()
    file = tmp_path / "white" / f"image.{'tif' if kind == 'CMYK' else 'png'}"
    Image.new("L", (6, 5), 255).convert(kind).save(file)
    for mode, channels in (("L", 1), ("RGB", 3), ("RGBA", 4)):
        image, _ = ImageFolder(tmp_path, (3, 2), mode)[0]
        assert (image.shape, image.dtype, image.min()) == (
            (3, 2, channels),
            np.uint8,
            255,
        )


def test_parts_in_folders(tmp_path):
    """The training set has all classes, and the test set may lack one."""
    for part in ("train", "test", "validation"):
        write(tmp_path / part)
    for path in (tmp_path / "test" / "blue").iterdir():
        path.unlink()
    data = load_folder(tmp_path)
    assert [part.num_examples for part in data.parts.values()] == [16, 8, 16]
    assert set(data.test.select(np.arange(8)).labels) == {1}
    (tmp_path / "test" / "red").rename(tmp_path / "test" / "green")
    with pytest.raises(UserError, match="the test labels have a class that is none of"):
        load_folder(tmp_path).test.select(np.arange(8))


def test_what_is_refused(tmp_path):
    write(tmp_path / "photos")
    (tmp_path / "empty" / "class").mkdir(parents=True)
    cut, wide = (tmp_path / "photos" / "red" / name for name in ("3.png", "wide.png"))
    cut.write_bytes(cut.read_bytes()[:50])
    Image.fromarray(np.full((5, 6), 9, np.uint16)).save(wide)
    for read, sentence in (
        (
            lambda: ImageFolder(tmp_path / "photos")[11],
            r"3.png cannot be read \(.*\): replace it, or take it out of",
        ),
        (
            lambda: ImageFolder(tmp_path / "photos")[16],
            r"wide.png cannot be read \(its mode is I;16: write it with",
        ),
        (
            lambda: ImageFolder(tmp_path / "none"),
            "none cannot be read .No such file or directory",
        ),
        (
            lambda: ImageFolder(tmp_path / "empty"),
            r"has no images in its subfolders \(class\)",
        ),
    ):
        with pytest.raises(UserError, match=sentence):
            read()


@pytest.mark.slow
def test_on_the_command_line(tmp_path):
    for part in ("train", "test"):
        write(tmp_path / part, size=(8, 8), ending="jpg")
    model = f"{small_job.NET}:OfPictures"
    flags = "--global-batch-size 6 --epochs 1 --devices 2 --no-compile-cache"
    done = entry.run_command(
        "train", "--model", model, "--dataset", f"{tmp_path}/", *shlex.split(flags)
    )
    assert done.status == 0, done.err
    assert "16 to train, 16 to test" in done.out
