"""Images in folders, and a function in a file of one's own, on the command line."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from pmapdp import cli
from pmapdp.custom.folder import ImageFolder, data_from_folder, read_image
from pmapdp.errors import UserError
from pmapdp.evaluate.__main__ import main as evaluate
from pmapdp.train import main as train_command

NET = """
import jax.numpy as jnp
from flax import nnx

class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, images):
        return self.out(images.mean((1, 2)) / 255)
"""
MADE = """
import jax
from pmapdp.data.dataset import DataSet
from pmapdp.custom.folder import ImageFolder

def flip(image, key):
    return jax.numpy.where(jax.random.bernoulli(key), image[:, ::-1], image)

def make():
    return DataSet(*(ImageFolder(f"photos/{part}", size=(4, 4)) for part in ("train", "test")), augment=flip)
"""
COLOURS = {"red": (200, 10, 10), "blue": (10, 10, 200)}


def write(folder, size=(6, 5), number=8, ending="png"):
    """Images `[5, 6]` of two classes, and a file that is no image."""
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "notes.txt").write_text("no image")
        for index in range(number):
            Image.new("RGB", size, tuple(each + index for each in colour)).save(folder / name / f"{index}.{ending}")


def test_a_folder_for_each_class(tmp_path):
    """In the order of the alphabet; what is hidden or no image is left out, and folders in folders are not."""
    write(tmp_path)
    for hidden in (".cache", "red/.ipynb_checkpoints", "red/more/.cache"):
        (tmp_path / hidden).mkdir(parents=True)
        Image.new("L", (6, 5), 9).save(tmp_path / hidden / "0-checkpoint.png")
    (tmp_path / "red" / "._0.png").write_bytes(b"of macOS")
    Image.new("L", (6, 5), 9).save(tmp_path / "red" / "more" / "grey.JPG")
    found = ImageFolder(tmp_path)
    assert (found.classes, len(found)) == (("blue", "red"), 17)
    image, label = found[3]
    assert (image.shape, image.dtype, label) == ((5, 6, 3), np.uint8, 0)
    np.testing.assert_array_equal(image[0, 0], [13, 13, 203])
    assert found[16][0].max() == 9
    assert ImageFolder(tmp_path, size=(3, 2))[0][0].shape == (3, 2, 3)
    data = data_from_folder(tmp_path)
    assert (data.train.examples, data.test, data.classes) == (17, None, ("blue", "red"))


def test_parts_in_folders(tmp_path):
    """The classes are those of the training set, also where the test set lacks one."""
    for part in ("train", "test", "validation"):
        write(tmp_path / part)
    for path in (tmp_path / "test" / "blue").iterdir():
        path.unlink()
    data = data_from_folder(tmp_path)
    assert [part.examples for part in data.parts.values()] == [16, 8, 16]
    assert set(data.test.take(np.arange(8)).labels) == {1}
    (tmp_path / "test" / "green").mkdir()
    with pytest.raises(UserError, match=r"subfolders blue, green, red: give it one for each class, of blue, red"):
        data_from_folder(tmp_path)


def test_what_is_no_image_of_ours(tmp_path):
    write(tmp_path)
    file = tmp_path / "red" / "3.png"
    content = file.read_bytes()
    file.write_bytes(content[:50])
    with pytest.raises(UserError, match=r"3.png cannot be read \(.*\): replace it, or take it out of the folder"):
        read_image(str(file))
    Image.fromarray(np.full((5, 6), 9, np.uint16)).save(file)
    with pytest.raises(UserError, match=r"its mode is I;16, and images of 8 bits"):
        read_image(str(file))
    for folder, sentence in ((tmp_path / "none", "No such file"), (tmp_path / "red", "has the subfolders none")):
        with pytest.raises(UserError, match=sentence):
            ImageFolder(folder)
    (tmp_path / "empty" / "class").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no images in its subfolders"):
        ImageFolder(tmp_path / "empty")


def test_a_picture_starts_no_program(tmp_path, monkeypatch):
    """Pillow would hand an EPS file to Ghostscript, whatever its name ends in."""
    gs = tmp_path / "bin" / "gs"
    gs.parent.mkdir()
    gs.write_text(f'#!/bin/sh\n[ "$1" = --version ] || echo started > "{tmp_path}/started"\n')
    gs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gs.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow looks for it once
    picture = tmp_path / "x.png"
    picture.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n")
    with pytest.raises(UserError, match=r"x\.png cannot be read"):
        read_image(str(picture))
    assert not (tmp_path / "started").exists()


def test_regular_files_only(tmp_path):
    """A named pipe without a writer would hang."""
    os.mkfifo(tmp_path / "x.png")
    with pytest.raises(UserError, match=r"x\.png cannot be read \(it is a folder, a named pipe or a device\)"):
        read_image(str(tmp_path / "x.png"))


@pytest.mark.slow
def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    """A folder, and a function that returns one with augmentation; evaluation gives the figures of training again."""
    monkeypatch.chdir(tmp_path)
    for part in ("train", "test"):
        write(tmp_path / "photos" / part, ending="jpg")
    Path("net.py").write_text(NET)
    Path("my_data.py").write_text(MADE)
    for dataset in ("photos/", "my_data.py:make"):
        workdir = f"run {dataset[:5]}"
        flags = ["--model", "net.py:Net", "--dataset", dataset, "--global-batch-size", "6", "--learning-rate", "0.1"]
        assert cli.run(train_command, [*flags, "--epochs", "2", "--devices", "2", "--workdir", workdir]) == 0
        shown = capsys.readouterr().out
        assert "16 to train, 16 to test, content" in shown
        assert cli.run(evaluate, [workdir, "--json", "--strategy", "single"]) == 0
        tested = json.loads(capsys.readouterr().out)
        assert f"{tested['test_accuracy']:.4f}" == re.search(r"last (\S+)", shown)[1]


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        ("no_photos/", "no_photos cannot be read (No such file or directory"),
        ("my_data.py:none", "my_data.py has no 'none': use one of flip, make"),
        ("none.py:make", "there is no file none.py of Python"),
        ("broken.py:make", "broken.py fails at line 3 (ZeroDivisionError: division by zero): fix that line"),
        ("number.py:make", "data=5 is no data set: give pmapdp.data.dataset.DataSet"),
    ],
)
def test_wrong_data_on_the_command_line(dataset, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my_data.py").write_text(MADE)
    Path("broken.py").write_text("\ndef make():\n    return 1 / 0\n")
    Path("number.py").write_text("make = lambda: 5\n")
    assert cli.run(train_command, ["--dataset", dataset]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line
