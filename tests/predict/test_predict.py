"""`pmapdp.predict`: the classes and numbers of a model for pictures, arrays, tables and texts, or one sentence."""

import io
import json
import sys
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from archives import npy, pack, unpack
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from trained import train_briefly

from pmapdp import cli
from pmapdp.data.dataset import Split
from pmapdp.errors import UserError
from pmapdp.export import export_model
from pmapdp.loss import MetricSums
from pmapdp.predict import main as predict
from pmapdp.predict import read_examples
from pmapdp.state import Task, create_state

DIGIT = (28, 28, 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A job, its state and the file that its model was exported to."""
    job, state = train_briefly(steps=40, model="mlp")
    path = tmp_path_factory.mktemp("predict") / "model.zip"
    export_model(job.task, state, path, examples=job.data.test, metadata={"labels": "0123456789"})
    return job, state, path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def noise(*shape, high=256):
    return np.random.default_rng(0).integers(0, high, shape).astype(np.uint8)


def png(width, height):
    file = io.BytesIO()
    Image.fromarray(noise(height, width)).save(file, "PNG")
    return file.getvalue()


def answers(capsys, *arguments):
    assert cli.run(predict, ["model.zip", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out.splitlines()


def refused(capsys, *arguments):
    assert cli.run(predict, list(arguments)) == 2
    output = capsys.readouterr()
    assert output.out == ""  # nothing about the good files before
    (line,) = output.err.splitlines()
    return line


def test_images_and_arrays(trained, folder, capsys):
    """Files of every kind in one call; the classes are those of the model, most of them right."""
    job, _, path = trained
    (folder / "model.zip").write_bytes(path.read_bytes())
    images, labels = job.data.test.inputs[:12], job.data.test.labels[:12]
    Image.fromarray(images[0, ..., 0]).save("grey.png")
    Image.fromarray(np.repeat(images[1], 3, axis=-1)).save("a\x1b[31mb.png")
    np.save("ten.npy", images[2:])
    files = ["grey.png", "a\x1b[31mb.png", "ten.npy"]
    lines = [line.split() for line in answers(capsys, *files)]
    names = ["grey.png", "a\\x1b[31mb.png", *(f"ten.npy[{index}]" for index in range(10))]
    assert [name for name, _, _ in lines] == names
    assert all(0.1 <= float(probability) <= 1 for _, _, probability in lines)
    assert sum(int(label) == right for (_, label, _), right in zip(lines, labels, strict=True)) >= 8

    results = [json.loads(line) for line in answers(capsys, "--json", *files)]
    assert [result["class"] for result in results] == [label for _, label, _ in lines]
    assert [result["index"] for result in results] == [0, 0, *range(10)]
    for result in results:
        assert list(result["probabilities"]) == list("0123456789")
        assert sum(result["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert result["probability"] == max(result["probabilities"].values())


# Reading


@pytest.mark.parametrize("shape", [(28, 28), DIGIT, (3, 28, 28), (3, *DIGIT), (28, 28, 28), (1, *DIGIT)])
def test_shapes_of_arrays(folder, shape):
    np.save("array.npy", noise(*shape))
    read = read_examples("array.npy", DIGIT, "uint8")
    np.testing.assert_array_equal(read, noise(*shape).reshape(-1, *DIGIT))
    assert read.dtype == np.uint8


@pytest.mark.filterwarnings("error")
def test_headers_of_other_versions(folder):
    """NumPy warns of those that Python 2 wrote; what is read is the same."""
    today, third = npy(noise(28, 28)), io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        np.lib.format.write_array(third, noise(28, 28), version=(3, 0))
    for content in (third.getvalue(), today.replace(b"(28, 28), }  ", b"(28L, 28L), }")):
        assert content != today
        Path("array.npy").write_bytes(content)
        np.testing.assert_array_equal(read_examples("array.npy", DIGIT, "uint8")[0, ..., 0], noise(28, 28))


def luma(colours):
    return colours.astype(float) @ [0.299, 0.587, 0.114]


def drawing(opacity):
    """White on a transparent ground, whose hidden colour is white too."""
    image = Image.new("RGBA", (28, 28), "white")
    image.putalpha(Image.fromarray(opacity))
    return image


def palette(colours, pixels):
    image = Image.fromarray(pixels, mode="P")
    image.putpalette(colours.tobytes())
    return image


EIGHT = noise(28, 28, high=8)
PICTURES = {
    "colours.png": (lambda: Image.fromarray(noise(28, 28, 3)), lambda: luma(noise(28, 28, 3))),
    "palette.png": (lambda: palette(noise(8, 3), EIGHT), lambda: luma(noise(8, 3))[EIGHT]),
    "drawing.png": (lambda: drawing(noise(28, 28)), lambda: noise(28, 28)),
    "bits.png": (lambda: Image.fromarray(noise(28, 28) > 127), lambda: np.where(noise(28, 28) > 127, 255, 0)),
    "even.jpg": (lambda: Image.new("RGB", (28, 28), (200, 200, 200)), lambda: np.full((28, 28), 200)),
}  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_become_grey_on_black(folder, name):
    picture, wanted = PICTURES[name]
    picture().save(name)
    np.testing.assert_allclose(read_examples(name, DIGIT, "uint8")[0, ..., 0], wanted(), atol=2)


@given(cut=st.integers(0, len(png(28, 28)) - 1))
@settings(deadline=None, max_examples=50)
def test_a_cut_picture_is_refused_or_whole(tmp_path_factory, cut):
    path = tmp_path_factory.getbasetemp() / "cut.png"
    path.write_bytes(png(28, 28)[:cut])
    try:
        read = read_examples(str(path), DIGIT, "uint8")
    except UserError:
        return
    np.testing.assert_array_equal(read[0, ..., 0], noise(28, 28))


DEEP = io.BytesIO()
Image.fromarray(np.random.default_rng(0).integers(0, 65536, (28, 28), np.uint16)).save(DEEP, "PNG")
BAD_FILES = {
    "wide.png": (png(32, 28), "it is 32 x 28 pixels, and the model takes 28 x 28"),
    "deep.png": (DEEP.getvalue(), "it has 16 bits a pixel: write it with 8"),
    "notes.txt": (b"hello", "cannot identify image"),
    "eps.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n", "cannot identify image"),
    "empty.png": (b"", "cannot identify image"),
    "float.npy": (npy(np.zeros((28, 28))), "it holds float64; numpy.rint(255 * array)"),
    "large.npy": (npy(noise(2, 32, 32)), "its shape is [2, 32, 32]"),
    "colour.npy": (npy(noise(28, 28, 3)), "its shape is [28, 28, 3]"),
    "none.npy": (npy(noise(0, 28, 28)), "its shape is [0, 28, 28]"),
    "scalar.npy": (npy(np.uint8(3)), "its shape is []"),
    "cut.npy": (npy(noise(28, 28))[:500], "expected 784 bytes"),
    "pickle.npy": (npy(np.array([{}])), "Object arrays cannot be loaded when"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(folder, name):
    content, why = BAD_FILES[name]
    Path(name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_examples(name, DIGIT, "uint8")
    assert str(caught.value).startswith(f"{name} is nothing for this model (")
    assert why in str(caught.value)
    assert "name a PNG or JPEG image or a .npy array of shape [28, 28, 1] and type uint8" in str(caught.value)


def test_without_pillow(folder, monkeypatch):
    Path("digit.png").write_bytes(png(28, 28))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r'pip install "pmapdp\[images\]"'):
        read_examples("digit.png", DIGIT, "uint8")


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("few.csv", b"1,2,3\n", "row 1 has 3 columns, and the model takes 4, without a label"),
        ("words.csv", b"a,b,c,d\n1,2,x,4\n", "row 2 has 'x', which is no number"),
        ("half.csv", b"a,b,3,d\n1,2,3,4\n", "row 1 has 'a', which is no number"),
        ("names.csv", b"a,b,c,d\n", "its shape is [0, 4]"),
        ("latin.csv", b"\xff,1,2,3\n", "codec can't decode"),
        ("utf16.csv", "1,2,3,4\n".encode("utf-16"), "codec can't decode"),
        ("quote.csv", b'1,2,3,"4\n', "unexpected end of data"),
        ("return.csv", b"1,2\r3,4\n", ""),
        ("nan.csv", b"1,2,3,4\n1,2,3,nan\n", "example 1, counted from 0, is not finite in float32"),
        ("huge.csv", b"1,2,3,1e39\n", "example 0, counted from 0, is not finite in float32"),
        ("row.png", png(4, 1), "it is no .npy array"),
        ("text.npy", npy(np.array([list("abcd")])), "it holds <U1"),
        ("wide.npy", npy(np.zeros((2, 5))), "its shape is [2, 5]"),
        ("inf.npy", npy(np.array([[0, 0, 0, 0], [0, np.inf, 0, 0]])), "example 1, counted from 0, is not finite"),
    ],
)
def test_a_wrong_table_is_one_sentence(folder, name, content, why):
    Path(name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_examples(name, (4,), "float32")
    assert why in str(caught.value)
    assert str(caught.value).endswith(
        "name a table, .csv, or a .npy array of shape [4] and type float32, as the model takes it"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: MODEL: try python -m pmapdp.predict model.zip digit.png"),
        (["model.zip"], "INPUT is missing: name a file, or a text in quotes, after model.zip"),
        (["model.zip", "--lines", "texts.txt"], "--lines texts.txt is for text models, and model.zip takes no texts"),
        (["model.zip", "digit.png", "missing.png"], "missing.png cannot be read (No such file or directory)"),
        (["model.zip", "."], ". cannot be read (it is a folder"),
        (["missing.zip", "digit.png"], "missing.zip cannot be read (No such file or directory)"),
        (["digit.png", "model.zip"], "digit.png is damaged, or is no exported model (File is not a zip file): name a"),
        (["text.zip", "digit.png"], "text.zip takes {'dtype': 'string', 'shape': ['batch']}, and this comm"),
    ],
)
def test_mistakes(trained, folder, capsys, arguments, sentence):
    (folder / "model.zip").write_bytes(trained[2].read_bytes())
    (folder / "digit.png").write_bytes(png(28, 28))
    files = unpack("model.zip")
    metadata = json.loads(files["metadata.json"]) | {"input": {"dtype": "string", "shape": ["batch"]}}
    (folder / "text.zip").write_bytes(pack(files | {"metadata.json": json.dumps(metadata).encode()}))
    assert refused(capsys, *arguments).startswith(f"error: {sentence}")


# Your models


class Answers(nnx.Module):
    """Of rows `[b, 4]`: the mean of each."""

    def __init__(self, *, rngs):
        self.scale = nnx.Param(jnp.ones(()))

    def __call__(self, x):
        return x.mean(1) * self.scale

    def loss(self, batch):
        errors = jnp.square(self(batch.inputs) - batch.labels)
        return MetricSums((batch.weights * errors).sum(), None, batch.weights.sum())


class Several(Answers):
    """Says what it is asked for, and not its logit."""

    def predict(self, x):
        return {"probability": jax.nn.sigmoid(self(x)), "row": x}


class Pair(Answers):
    """Gives two outputs without names."""

    def predict(self, x):
        return self(x), -self(x)


class Mean(Answers):
    """Gives no row for each example."""

    def predict(self, x):
        return self(x).mean()


class Colours(Answers):
    """Of pictures `[b, 2, 3, 3]`: the class is the strongest colour."""

    loss = None

    def __call__(self, x):
        return x.mean((1, 2)) * self.scale


def exported(model, inputs, **metadata):
    """The model of this class, untrained, in model.zip."""
    built = model(rngs=nnx.Rngs(0))
    own = {"loss": model.loss} if model.loss else {}
    labels = np.zeros(len(inputs), np.float32 if own else np.int32)
    task, metadata = Task(built, **own), {"labels": (), "step": 0} | metadata
    export_model(task, create_state(task), "model.zip", examples=Split(inputs, labels), metadata=metadata)


ROWS = np.array([[1, 2, 3, 6], [-1, -2, -3, -2]], np.float64)


def test_a_regression_on_a_table(folder, capsys):
    """Rows of a table with and without names, and of an array of another precision."""
    exported(Answers, ROWS.astype(np.float32))
    Path("named.csv").write_text("\ufeffa,b,c,d\n1,2,3,6\n-1,-2,-3,-2\n")
    Path("plain.csv").write_text("1,2,3,6\n")
    np.save("rows.npy", ROWS)
    np.save("row.npy", ROWS[0].astype(np.int64))
    wanted = ["named.csv[0]  3", "named.csv[1]  -2", "plain.csv  3", "rows.npy[0]  3", "rows.npy[1]  -2", "row.npy  3"]
    assert answers(capsys, "named.csv", "plain.csv", "rows.npy", "row.npy") == wanted
    assert json.loads(answers(capsys, "plain.csv", "--json")[0]) == {"file": "plain.csv", "index": 0, "output": 3.0}


def test_several_outputs_and_a_sigmoid(folder, capsys):
    Path("rows.csv").write_text("0,0,0,0\n")
    exported(Several, ROWS.astype(np.float32))
    assert answers(capsys, "rows.csv") == ["rows.csv  probability 0.5  row [0, 0, 0, 0]"]
    outputs = {"probability": 0.5, "row": [0.0] * 4}
    assert json.loads(answers(capsys, "rows.csv", "--json")[0]) == {"file": "rows.csv", "index": 0, "outputs": outputs}
    exported(Pair, ROWS.astype(np.float32))
    Path("rows.csv").write_text("1,2,3,6\n")
    assert answers(capsys, "rows.csv") == ["rows.csv  output 0 3  output 1 -3"]


def test_pictures_in_colour_and_labels_that_would_steer_a_terminal(folder, capsys):
    exported(Colours, np.zeros((1, 2, 3, 3), np.uint8), labels=("red", "\x1b[32mgreen", "blue"))
    for name, colour in (("red", (200, 10, 10)), ("green", (10, 200, 10)), ("blue", (10, 10, 200))):
        Image.new("RGB", (3, 2), colour).save(f"{name}.png")
    Image.new("RGBA", (3, 2), (10, 200, 10, 128)).save("half.png")
    found = [line.split()[1] for line in answers(capsys, "red.png", "green.png", "blue.png", "half.png")]
    assert found == ["red", "\\x1b[32mgreen", "blue", "\\x1b[32mgreen"]


def test_an_answer_that_is_not_one_for_each_example(folder):
    with pytest.raises(UserError, match=r"the model answers \[\], not one row for each example: return"):
        exported(Mean, ROWS.astype(np.float32))
