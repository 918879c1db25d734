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
from PIL import Image
from trained import train_briefly

from pmapdp import cli
from pmapdp.data.dataset import Split
from pmapdp.errors import UserError
from pmapdp.export.write import export_model
from pmapdp.loss import MetricSums
from pmapdp.predict.__main__ import main as predict
from pmapdp.predict.inputs import read_examples
from pmapdp.state import Task, create_state

SIZES = [(28, 28), (28, 28, 1), (3, 28, 28), (3, 28, 28, 1), (28, 28, 28), (1, 28, 28, 1)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A job, its state and the file that its model was exported to."""
    job, state = train_briefly(steps=40, model="mlp")
    path = tmp_path_factory.mktemp("predict") / "model.zip"
    export_model(job.task, state, path, examples=job.data.test, metadata={"labels": "0123456789"})
    return job, state, path


@pytest.fixture
def folder(tmp_path, monkeypatch, trained):
    """A folder to work in, with model.zip."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.zip").write_bytes(trained[2].read_bytes())
    return tmp_path


def noise(*shape, high=256):
    return np.random.default_rng(0).integers(0, high, shape).astype(np.uint8)


def luma(colours):
    return colours.astype(float) @ [0.299, 0.587, 0.114]


def test_images_and_arrays(trained, folder, capsys):
    """Files of every kind in one call; the classes are those of the model, most of them right."""
    job, _, _ = trained
    images, labels = job.data.test.inputs[:12], job.data.test.labels[:12]
    Image.fromarray(images[0, ..., 0]).save("grey.png")
    Image.fromarray(np.repeat(images[1], 3, axis=-1)).save("colour.png")
    np.save("ten.npy", images[2:])
    assert cli.run(predict, ["model.zip", "grey.png", "colour.png", "ten.npy"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _, _ in lines] == ["grey.png", "colour.png", *(f"ten.npy[{index}]" for index in range(10))]
    assert all(0.1 <= float(probability) <= 1 for _, _, probability in lines)
    assert sum(int(label) == right for (_, label, _), right in zip(lines, labels, strict=True)) >= 8

    assert cli.run(predict, ["model.zip", "--json", "grey.png", "colour.png", "ten.npy"]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result["class"] for result in results] == [label for _, label, _ in lines]
    assert [result["index"] for result in results] == [0, 0, *range(10)]
    for result in results:
        assert list(result["probabilities"]) == list("0123456789")
        assert sum(result["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert result["probability"] == max(result["probabilities"].values())


@pytest.mark.parametrize("shape", SIZES)
def test_shapes_of_arrays(tmp_path, shape):
    np.save(tmp_path / "array.npy", noise(*shape))
    read = read_examples(tmp_path / "array.npy", (28, 28, 1))
    np.testing.assert_array_equal(read, noise(*shape).reshape(-1, 28, 28, 1))
    assert read.dtype == np.uint8


@pytest.mark.filterwarnings("error")
def test_headers_of_other_versions(tmp_path):
    """NumPy warns of those that Python 2 wrote; what is read is the same."""
    today, third = npy(noise(28, 28)), io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        np.lib.format.write_array(third, noise(28, 28), version=(3, 0))
    for content in (third.getvalue(), today.replace(b"(28, 28), }  ", b"(28L, 28L), }")):
        assert content != today
        (tmp_path / "array.npy").write_bytes(content)
        read = read_examples(tmp_path / "array.npy", (28, 28, 1))
        np.testing.assert_array_equal(read[0, ..., 0], noise(28, 28))


def test_colours_become_luma(tmp_path):
    colours = noise(28, 28, 3)
    Image.fromarray(colours).save(tmp_path / "colour.png")
    read = read_examples(tmp_path / "colour.png", (28, 28, 1))[0, ..., 0]
    np.testing.assert_allclose(read, luma(colours), atol=1)


def test_palettes_become_luma(tmp_path):
    colours, pixels = noise(8, 3), noise(28, 28, high=8)
    image = Image.fromarray(pixels, mode="P")
    image.putpalette(colours.tobytes())
    image.save(tmp_path / "palette.png")
    read = read_examples(tmp_path / "palette.png", (28, 28, 1))[0, ..., 0]
    np.testing.assert_allclose(read, luma(colours[pixels]), atol=1)


def test_transparent_becomes_black(tmp_path):
    """A white drawing on a transparent ground, whose hidden colour is white too."""
    opacity = noise(28, 28)
    image = Image.new("RGBA", (28, 28), "white")
    image.putalpha(Image.fromarray(opacity))
    image.save(tmp_path / "drawing.png")
    np.testing.assert_allclose(read_examples(tmp_path / "drawing.png", (28, 28, 1))[0, ..., 0], opacity, atol=1)


def test_sixteen_bits_are_scaled(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 65536, (28, 28), np.uint16)
    Image.fromarray(pixels).save(tmp_path / "deep.png")
    np.testing.assert_allclose(read_examples(tmp_path / "deep.png", (28, 28, 1))[0, ..., 0], pixels / 257, atol=0.51)


def test_black_and_white(tmp_path):
    bits = noise(28, 28) > 127
    Image.fromarray(bits).save(tmp_path / "bits.png")
    np.testing.assert_array_equal(read_examples(tmp_path / "bits.png", (28, 28, 1))[0, ..., 0], np.where(bits, 255, 0))


def test_jpeg(tmp_path):
    Image.new("RGB", (28, 28), (200, 200, 200)).save(tmp_path / "even.jpg")
    np.testing.assert_allclose(read_examples(tmp_path / "even.jpg", (28, 28, 1)), 200, atol=2)


def png(width, height):
    file = io.BytesIO()
    Image.fromarray(noise(height, width)).save(file, "PNG")
    return file.getvalue()


BAD_FILES = {
    "wide.png": (png(32, 28), "wide.png is 32 x 28 pixels: the model takes images of 28 x 28"),
    "cut.png": (
        png(28, 28)[:400],
        "cut.png is no PNG or JPEG image and no .npy array, or is cut short or damaged: name",
    ),
    "notes.txt": (b"hello", "notes.txt is no PNG or JPEG image and no .npy array, or is cut short or damaged: name"),
    "empty.png": (b"", "empty.png is no PNG or JPEG image and no .npy array, or is cut short or damaged: name"),
    "float.npy": (npy(np.zeros((28, 28))), "float.npy holds float64: the model takes uint8 pixels from 0 to 255"),
    "large.npy": (npy(noise(2, 32, 32)), "large.npy has shape [2, 32, 32]: the model takes [28, 28], [28, 28, 1], ["),
    "colour.npy": (npy(noise(28, 28, 3)), "colour.npy has shape [28, 28, 3]: the model takes"),
    "none.npy": (npy(noise(0, 28, 28)), "none.npy has shape [0, 28, 28]: the model takes"),
    "scalar.npy": (npy(np.uint8(3)), "scalar.npy has shape []: the model takes"),
    "cut.npy": (npy(noise(28, 28))[:500], "cut.npy is no array that can be read ("),
    "pickle.npy": (npy(np.array([{}])), "pickle.npy is no array that can be read (Object arrays cannot be loaded when"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(folder, capsys, name):
    """One sentence, status 2, and nothing printed about the good file before."""
    content, sentence = BAD_FILES[name]
    (folder / name).write_bytes(content)
    (folder / "good.png").write_bytes(png(28, 28))
    assert cli.run(predict, ["model.zip", "good.png", name]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"error: {sentence}")
    assert output.err.count("\n") == 1
    assert output.out == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: MODEL: try python -m pmapdp.predict model.zip digit.png"),
        (["model.zip"], "INPUT is missing: try python -m pmapdp.predict model.zip digit.png"),
        (["model.zip", "--lines", "texts.txt"], "--lines texts.txt is for text models, and model.zip takes no texts"),
        (["model.zip", "missing.png"], "missing.png cannot be read (No such file or directory)"),
        (["model.zip", "."], ". cannot be read (it is a folder"),
        (["missing.zip", "digit.png"], "missing.zip cannot be read (No such file or directory)"),
        (["digit.png", "model.zip"], "digit.png is damaged, or is no exported model (File is not a zip file): name a"),
        (["cut.zip", "digit.png"], "cut.zip is damaged, or is no exported model (File is not a zip file): name a"),
        (
            ["text.zip", "digit.png"],
            "text.zip takes {'dtype': 'string', 'shape': ['batch']}, and this comm",
        ),
        (["model.zip", "digit.png", "--jsn"], "unknown argument '--jsn': did you mean '--json'?"),
        (["model.zip", "digit.png", "-j"], "unknown argument '-j'"),
    ],
)
def test_mistakes(folder, capsys, arguments, sentence):
    (folder / "digit.png").write_bytes(png(28, 28))
    (folder / "cut.zip").write_bytes((folder / "model.zip").read_bytes()[:1000])
    files = unpack("model.zip")
    metadata = json.loads(files["metadata.json"]) | {"input": {"dtype": "string", "shape": ["batch"]}}
    (folder / "text.zip").write_bytes(pack(files | {"metadata.json": json.dumps(metadata).encode()}))
    assert cli.run(predict, arguments) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"error: {sentence}")
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_without_pillow(tmp_path, monkeypatch):
    (tmp_path / "digit.png").write_bytes(png(28, 28))
    np.save(tmp_path / "digit.npy", noise(28, 28))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r'needs Pillow to be read: run pip install "pmapdp\[images\]"'):
        read_examples(tmp_path / "digit.png", (28, 28, 1))
    assert read_examples(tmp_path / "digit.npy", (28, 28, 1)).shape == (1, 28, 28, 1)


def test_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        predict(["--help"])
    assert stopped.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "MODEL [INPUT...]" in said
    assert "use only files of people whom you trust" in said


class Answers(nnx.Module):
    """Of rows `[b, 4]`: the mean of each, its sign as a probability, and the row itself."""

    def __init__(self, *, rngs):
        self.scale = nnx.Param(jnp.ones(()))

    def __call__(self, x):
        return x.mean(1) * self.scale

    def loss(self, batch, context):
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


class Colours(nnx.Module):
    """Of pictures `[b, 2, 3, 3]`: the class is the strongest colour."""

    def __init__(self, *, rngs):
        self.scale = nnx.Param(jnp.ones(()))

    def __call__(self, x):
        return x.mean((1, 2)) * self.scale


def exported(model, inputs, **metadata):
    """The model of this class, untrained, in model.zip."""
    built = model(rngs=nnx.Rngs(0))
    own = {"loss": model.loss} if hasattr(model, "loss") else {}
    task = Task(built, **own)
    labels = np.zeros(len(inputs), np.float32 if own else np.int32)
    state = create_state(task)
    export_model(
        task, state, "model.zip", examples=Split(inputs, labels), metadata={"labels": (), "step": 0} | metadata
    )


ROWS = np.array([[1, 2, 3, 6], [-1, -2, -3, -2]], np.float64)


def answers(capsys, *arguments):
    assert cli.run(predict, ["model.zip", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out.splitlines()


def test_a_regression_on_a_table(tmp_path, monkeypatch, capsys):
    """Rows of a table with and without names, and of an array of another precision."""
    monkeypatch.chdir(tmp_path)
    exported(Answers, ROWS.astype(np.float32))
    Path("named.csv").write_text("a,b,c,d\n1,2,3,6\n-1,-2,-3,-2\n")
    Path("plain.csv").write_text("1,2,3,6\n")
    np.save("rows.npy", ROWS)
    np.save("row.npy", ROWS[0].astype(np.int64))
    wanted = ["named.csv[0]  3", "named.csv[1]  -2", "plain.csv  3", "rows.npy[0]  3", "rows.npy[1]  -2", "row.npy  3"]
    assert answers(capsys, "named.csv", "plain.csv", "rows.npy", "row.npy") == wanted
    assert json.loads(answers(capsys, "plain.csv", "--json")[0]) == {"file": "plain.csv", "index": 0, "output": 3.0}


def test_several_outputs_and_a_sigmoid(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("0,0,0,0\n")
    exported(Several, ROWS.astype(np.float32))
    assert answers(capsys, "rows.csv") == ["rows.csv  probability 0.5  row [0, 0, 0, 0]"]
    outputs = {"probability": 0.5, "row": [0.0] * 4}
    assert json.loads(answers(capsys, "rows.csv", "--json")[0]) == {"file": "rows.csv", "index": 0, "outputs": outputs}
    exported(Pair, ROWS.astype(np.float32))
    Path("rows.csv").write_text("1,2,3,6\n")
    assert answers(capsys, "rows.csv") == ["rows.csv  output 0 3  output 1 -3"]


def test_pictures_in_colour(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exported(Colours, np.zeros((1, 2, 3, 3), np.uint8), labels=("red", "green", "blue"))
    for name, colour in (("red", (200, 10, 10)), ("green", (10, 200, 10)), ("blue", (10, 10, 200))):
        Image.new("RGB", (3, 2), colour).save(f"{name}.png")
    Image.new("RGBA", (3, 2), (10, 200, 10, 128)).save("half.png")
    found = [line.split()[:2] for line in answers(capsys, "red.png", "green.png", "blue.png", "half.png")]
    assert found == [["red.png", "red"], ["green.png", "green"], ["blue.png", "blue"], ["half.png", "green"]]
    Image.new("L", (3, 2), 77).save("grey.png")
    np.testing.assert_array_equal(read_examples("grey.png", (2, 3, 3)), np.full((1, 2, 3, 3), 77))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("few.csv", b"1,2,3\n", "few.csv has 3 columns in row 1: the model takes 4, without a label"),
        (
            "words.csv",
            b"a,b,c,d\n1,2,x,4\n",
            "words.csv is no table of numbers (could not convert string to",
        ),
        ("names.csv", b"a,b,c,d\n", "names.csv holds no row: write one for each example, of 4 numbers"),
        ("latin.csv", b"\xff,1,2,3\n", "latin.csv is no table of numbers ("),
        ("row.png", png(4, 1), "row.png is no file for this model, which takes float32 of shape [4]: name a table of"),
        (
            "text.npy",
            npy(np.array([list("abcd")])),
            "text.npy holds <U1, which does not fit the float32 that",
        ),
        (
            "wide.npy",
            npy(np.zeros((2, 5))),
            "wide.npy has shape [2, 5]: the model takes [4], [n, 4], with n",
        ),
        ("nan.csv", b"1,2,3,nan\n", "the model answers with nan"),
    ],
)
def test_a_wrong_table_is_one_sentence(tmp_path, monkeypatch, capsys, name, content, sentence):
    monkeypatch.chdir(tmp_path)
    exported(Answers, ROWS.astype(np.float32))
    Path(name).write_bytes(content)
    assert cli.run(predict, ["model.zip", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_an_answer_that_is_not_one_for_each_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Mean(Answers):
        def predict(self, x):
            return self(x).mean()

    with pytest.raises(UserError, match=r"the model answers \[\], not one row for each example: return"):
        exported(Mean, ROWS.astype(np.float32))
