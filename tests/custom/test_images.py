"""Images in folders, as arrays and on the command line."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from pmapdp import cli
from pmapdp.custom.images import ImageFolder, load_folder, read_image
from pmapdp.errors import UserError
from pmapdp.evaluate import main as evaluate
from pmapdp.train import main as train_command

COLOURS = {"red": (200, 10, 10), "blue": (10, 10, 200)}


def write(folder, size=(6, 5), number=8, ending="png"):
    """Images `[5, 6]` of two classes, and a file that is no image."""
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "notes.txt").write_text("no image")
        for index in range(number):
            Image.new("RGB", size, tuple(each + index for each in colour)).save(folder / name / f"{index}.{ending}")


def test_a_folder_for_each_class(tmp_path):
    """In alphabetical order; hidden files and folders are left out at any depth, folders in folders are not."""
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
    assert (data.train.examples, data.test, data.classes) == (17, None, ("blue", "red"))
    assert data.train.take(np.array([3, 16])).labels.tolist() == [0, 1]


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 4)])
@pytest.mark.parametrize("kind", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_colours_and_sizes(tmp_path, mode, channels, kind):
    file = tmp_path / f"image.{'tif' if kind == 'CMYK' else 'png'}"
    Image.new("L", (6, 5), 255).convert(kind).save(file)
    image = read_image(file, (3, 2), mode)
    assert (image.shape, image.dtype) == ((3, 2, channels), np.uint8)
    assert image.min() == 255


def test_parts_in_folders(tmp_path):
    """The classes are those of the training set, also if the test set lacks one."""
    for part in ("train", "test", "validation"):
        write(tmp_path / part)
    for path in (tmp_path / "test" / "blue").iterdir():
        path.unlink()
    data = load_folder(tmp_path)
    assert [part.examples for part in data.parts.values()] == [16, 8, 16]
    assert set(data.test.take(np.arange(8)).labels) == {1}
    (tmp_path / "test" / "red").rename(tmp_path / "test" / "green")
    with pytest.raises(UserError, match="the test labels have 'green', which is none of the 2 classes"):
        load_folder(tmp_path).test.take(np.arange(8))


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


def test_a_picture_starts_no_program(tmp_path, monkeypatch):
    """Pillow would hand an EPS file to Ghostscript, whatever its name ends in."""
    gs = tmp_path / "bin" / "gs"
    gs.parent.mkdir()
    gs.write_text(f'#!/bin/sh\n[ "$1" = --version ] || echo started > "{tmp_path}/started"\n')
    gs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gs.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow looks for it once
    (tmp_path / "x.png").write_bytes(EPS)
    with pytest.raises(UserError, match=r"x\.png cannot be read"):
        read_image(tmp_path / "x.png")
    assert not (tmp_path / "started").exists()


def cut(file):
    file.write_bytes(file.read_bytes()[:50])


def make_pipe(file):
    """It would hang without a writer."""
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (cut, ".*"),
        (
            lambda file: Image.fromarray(np.full((5, 6), 9, np.uint16)).save(file),
            "its mode is I;16, and .*",
        ),
        (make_pipe, "it is a folder, a named pipe or a device"),
    ],
)
def test_files_that_are_refused(tmp_path, spoil, why):
    write(tmp_path)
    spoil(tmp_path / "red" / "3.png")
    with pytest.raises(UserError, match=rf"3.png cannot be read \({why}\): replace it, or take it out of the folder"):
        list(ImageFolder(tmp_path))


def test_folders_that_are_refused(tmp_path):
    write(tmp_path / "photos")
    (tmp_path / "empty" / "class").mkdir(parents=True)
    for folder, sentence in (
        ("none", "none cannot be read .No such file or directory"),
        ("photos/red", r"has no images in its subfolders \(none\): give it one for each class"),
        ("empty", r"has no images in its subfolders \(class\)"),
    ):
        with pytest.raises(UserError, match=sentence):
            ImageFolder(tmp_path / folder)


NET = """
from flax import nnx

class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, images):
        return self.out(images.mean((1, 2)) / 255)
"""
MAKE = """
import jax
from pmapdp.data.dataset import DataSet
from pmapdp.custom.images import ImageFolder

def flip(image, key):
    return jax.numpy.where(jax.random.bernoulli(key), image[:, ::-1], image)

def make():
    return DataSet(*(ImageFolder(f"photos/{part}", size=(4, 4)) for part in ("train", "test")), augment=flip)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["photos/", "my_data.py:make"])
def test_on_the_command_line(tmp_path, monkeypatch, capsys, dataset):
    """A folder, and a function that returns one with augmentation; evaluation gives the figures of training again."""
    monkeypatch.chdir(tmp_path)
    for part in ("train", "test"):
        write(tmp_path / "photos" / part, ending="jpg")
    Path("net.py").write_text(NET)
    Path("my_data.py").write_text(MAKE)
    flags = ["--model", "net.py:Net", "--dataset", dataset, "--global-batch-size", "6", "--learning-rate", "0.1"]
    assert cli.run(train_command, [*flags, "--epochs", "2", "--devices", "2", "--workdir", "run"]) == 0
    shown = capsys.readouterr().out
    assert "16 to train, 16 to test, content" in shown
    assert cli.run(evaluate, ["run", "--json", "--strategy", "single"]) == 0
    tested = json.loads(capsys.readouterr().out)
    assert f"{tested['test']['accuracy']:.4f}" == re.search(r"last (\S+)", shown)[1]


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        ("no_photos/", "no_photos cannot be read (No such file or directory"),
        ("my_data.py:none", "my_data.py has no 'none': use one of flip, make"),
        ("none.py:make", "none.py of Python: name one"),
        ("broken.py:make", "broken.py fails at line 3 (ZeroDivisionError: division by zero): fix that line"),
        ("number.py:make", "data=5 is no data set: give pmapdp.data.dataset.DataSet"),
        ("none.npz", "none.npz cannot be read (No such file or directory"),
    ],
)
def test_wrong_data_on_the_command_line(dataset, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my_data.py").write_text(MAKE)
    Path("broken.py").write_text("\ndef make():\n    return 1 / 0\n")
    Path("number.py").write_text("make = lambda: 5\n")
    assert cli.run(train_command, ["--dataset", dataset]) == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]
