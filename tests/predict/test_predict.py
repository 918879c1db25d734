"""`pmapdp.predict`: the classes and numbers of a model for pictures, arrays, tables and texts, or one sentence."""

import io
import json
import re
import sys
from pathlib import Path

import entry
import jax.numpy as jnp
import numpy as np
import points
import pytest
from archives import npy
from flax import nnx
from PIL import Image
from trained import train_briefly

from pmapdp.config import Config
from pmapdp.custom.images import ImageFolder
from pmapdp.data.dataset import Split
from pmapdp.errors import UserError
from pmapdp.evaluate import evaluate_exported
from pmapdp.export import export_model, export_run, load_exported
from pmapdp.loss import MetricSums
from pmapdp.predict import read_examples
from pmapdp.registry import load_data
from pmapdp.state import Task, create_state
from pmapdp.train import train

DIGIT = (28, 28, 1)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The file of a short run, and the digits."""
    job, state = train_briefly(steps=40, model="mlp")
    path = tmp_path_factory.mktemp("digits") / "model.zip"
    export_model(
        job.task, state, path, examples=job.data.test, metadata={"labels": "0123456789"}
    )
    return path, job.data.test


@pytest.fixture(scope="module")
def sentiment(tmp_path_factory):
    """The file of a short run on the synthetic reviews, and the results of its last epoch."""
    folder = tmp_path_factory.mktemp("texts")
    settings = {
        "model": "text_mlp",
        "dataset": "reviews",
        "strategy": "single",
        "global_batch_size": 64,
    }
    settings |= {
        "epochs": 2,
        "optimizer": "sgd",
        "learning_rate": 0.64,
        "workdir": str(folder / "run"),
    }
    epochs = train(Config(**settings, progress=False, compile_cache=False)).epochs
    export_run(settings["workdir"], folder / "sentiment.zip")
    return folder / "sentiment.zip", epochs[-1]


def answers(*arguments):
    done = entry.run_command("predict", *arguments)
    assert done.status == 0, done.err
    return done.out.splitlines()


def noise(*shape, high=256):
    return np.random.default_rng(0).integers(0, high, shape).astype(np.uint8)


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_images_and_arrays_in_one_call(digits, folder):
    path, (images, labels, *_) = digits
    Image.fromarray(images[0, ..., 0]).save("grey.png")
    Image.fromarray(np.repeat(images[1], 3, axis=-1)).save("a\x1b[31mb.png")
    np.save("ten.npy", images[2:12])
    files = ["grey.png", "a\x1b[31mb.png", "ten.npy"]
    names, classes, shares = zip(
        *(line.split() for line in answers(path, *files)), strict=True
    )
    assert names == (
        "grey.png",
        "a\\x1b[31mb.png",
        *(f"ten.npy[{i}]" for i in range(10)),
    )
    assert (
        sum(
            int(found) == right
            for found, right in zip(classes, labels[:12], strict=True)
        )
        >= 8
    )
    results = [json.loads(line) for line in answers(path, "--json", *files)]
    for each, label, share, index in zip(
        results, classes, shares, [0, 0, *range(10)], strict=True
    ):
        assert (each["class"], each["index"], f"{each['probability']:.4f}") == (
            label,
            index,
            share,
        )
        assert list(each["probabilities"]) == [*"0123456789"]
        assert sum(each["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert each["probability"] == max(each["probabilities"].values())


def test_pictures_become_grey_or_coloured_on_black(folder):
    """Also if they are white on a transparent ground, whose hidden colour is white too; as in training on a folder."""
    colours, alpha = noise(28, 28, 3), noise(28, 28)
    drawing = Image.new("RGBA", (28, 28), "white")
    drawing.putalpha(Image.fromarray(alpha))
    Path("class").mkdir()
    for n, (picture, wanted) in enumerate(
        [(Image.fromarray(colours), colours), (drawing, np.stack([alpha] * 3, -1))]
    ):
        picture.save(f"class/{n}.png")
        for mode, shape, values in (
            ("L", DIGIT, wanted @ [0.299, 0.587, 0.114]),
            ("RGB", (28, 28, 3), wanted),
        ):
            found = read_examples(f"class/{n}.png", shape, "uint8")[0]
            np.testing.assert_allclose(found.squeeze(), values, atol=2)
            np.testing.assert_array_equal(ImageFolder(".", mode=mode)[n][0], found)


@pytest.mark.parametrize("shape", [(28, 28), DIGIT, (28, 28, 28), (1, *DIGIT)])
def test_shapes_of_arrays(folder, shape):
    np.save("array.npy", noise(*shape))
    read = read_examples("array.npy", DIGIT, "uint8")
    np.testing.assert_array_equal(read, noise(*shape).reshape(-1, *DIGIT), strict=True)


ADVICE = {
    DIGIT: "name a PNG or JPEG image or a .npy array of shape [28, 28, 1] and type uint8, as the model takes it",
    (
        4,
    ): "name a table in UTF-8, .csv, or a .npy array of shape [4] and type float32, as the model takes it",
}
DEEP = np.random.default_rng(0).integers(0, 65536, (28, 28), np.uint16)


@pytest.mark.parametrize(
    ("shape", "name", "content", "why"),
    [
        (DIGIT, "wide.png", png(noise(28, 32)), "its shape is [28, 32, 1]"),
        (
            DIGIT,
            "deep.png",
            png(DEEP),
            "its mode is I;16: write it with 8 bits a colour",
        ),
        (
            DIGIT,
            "eps.png",
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n",
            "cannot identify image",
        ),
        (
            DIGIT,
            "float.npy",
            npy(np.zeros((28, 28))),
            "it holds float64; numpy.rint(255 * array)",
        ),
        (
            DIGIT,
            "pickle.npy",
            npy(np.array([{}])),
            "Object arrays cannot be loaded when",
        ),
        (
            (4,),
            "few.csv",
            b"1,2,3\n",
            "row 1 has 3 columns, and the model takes 4, without a label",
        ),
        ((4,), "words.csv", b"a,b,c,d\n1,2,x,4\n", "row 2 has 'x', which is no number"),
        ((4,), "half.csv", b"a,b,3,d\n1,2,3,4\n", "row 1 has 'a', which is no number"),
        (
            (4,),
            "latin.csv",
            b"\xff,1,2,3\n",
            "'utf-8' codec can't decode byte 0xff in position 0",
        ),
        ((4,), "quote.csv", b'1,2,3,"4\n', "unexpected end of data"),
        (
            (4,),
            "huge.csv",
            b"1,2,3,4\n1,2,3,1e39\n",
            "example 1, counted from 0, is not finite in float32",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_one_sentence(folder, shape, name, content, why):
    Path(name).write_bytes(content)
    said = rf"^{name} is nothing for this model \({re.escape(why)}.*{re.escape(ADVICE[shape])}$"
    with pytest.raises(UserError, match=said):
        read_examples(name, shape, "uint8" if shape == DIGIT else "float32")


def test_without_pillow(folder, monkeypatch):
    Path("digit.png").write_bytes(png(noise(28, 28)))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match="pip install pillow"):
        read_examples("digit.png", DIGIT, "uint8")


# Texts

TEXTS = [
    "The music was wonderful. I found the cast superb!",
    "The plot was dull. The ending was terrible.",
]


def test_texts_give_the_figures_of_training_and_answers_for_each_line(
    sentiment, folder
):
    file, expected = sentiment
    found = evaluate_exported(load_exported(file), load_data("reviews").test)
    assert (
        found["accuracy"] == expected["test"]["accuracy"] > 0.7
    )  # half would be chance
    assert (found["loss"], found["examples"]) == (
        pytest.approx(expected["test"]["loss"], abs=1e-6),
        1000,
    )
    first, second = (line.split(maxsplit=2) for line in answers(file, *TEXTS))
    assert [first[0], first[2], second[0], second[2]] == [
        "positive",
        TEXTS[0],
        "negative",
        TEXTS[1],
    ]
    result = json.loads(*answers(file, "--json", TEXTS[1]))
    assert (result["text"], result["class"]) == (TEXTS[1], "negative")
    assert list(result["probabilities"]) == ["negative", "positive"]
    content = "\r\n\r\n".join(
        [*TEXTS, "A wonderful film. " * 20, "\u00e7a\u2028 alors"]
    )
    (folder / "texts.txt").write_text(content, encoding="utf-8-sig", newline="")
    lines = answers(file, "--lines", "texts.txt")
    assert [line.split()[0] for line in lines[:3]] == [
        "positive",
        "negative",
        "positive",
    ]
    assert len(lines) == 4
    assert lines[2].endswith("film. A...")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["MODEL"], "INPUT is missing: name a file, or a text in quotes, after"),
        (
            ["MODEL", "--lines", "texts.txt"],
            "--lines texts.txt is for text models, and",
        ),
        (
            ["MODEL", "digit.png", "missing.png"],
            "missing.png cannot be read (No such file or directory)",
        ),
        (
            ["TEXTS", "--lines", "latin.txt"],
            "latin.txt cannot be read ('utf-8' codec can't decode byte",
        ),
        (
            ["TEXTS", "--lines", "empty.txt"],
            "empty.txt cannot be read (it holds no text): name a file in UTF-8",
        ),
    ],
)
def test_mistakes(digits, sentiment, folder, arguments, sentence):
    (folder / "digit.png").write_bytes(png(noise(28, 28)))
    (folder / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (folder / "empty.txt").write_text("\n \n")
    files = {"MODEL": digits[0], "TEXTS": sentiment[0]}
    done = entry.run_command("predict", *(files.get(each, each) for each in arguments))
    assert (done.status, done.out, done.err.count("\n")) == (
        2,
        "",
        1,
    )  # nothing about the good files before
    assert done.err.startswith(f"error: {sentence.replace('MODEL', str(digits[0]))}")


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


def exported(model, inputs, **metadata):
    """A model, untrained, in model.zip."""
    own = {"loss": type(model).loss} if hasattr(model, "loss") else {}
    task, labels = (
        Task(model, **own),
        np.zeros(len(inputs), np.float32 if own else np.int32),
    )
    export_model(
        task,
        create_state(task),
        "model.zip",
        examples=Split(inputs, labels),
        metadata=metadata,
    )


PAIRS = ((3, -0.428571), (-2, 0.285714), (3, -0.428571), (3, -0.428571))
ROWS = np.array([[1, 2, 3, 6], [-1, -2, -3, -2]], np.float32)


@pytest.mark.parametrize(
    ("predict", "lines"),
    [
        (None, ["3", "-2", "3", "3"]),
        (
            lambda model, x: (model(x), -model(x) / 7),
            [f"output 0 {y}  output 1 {z}" for y, z in PAIRS],
        ),
        (
            lambda model, x: {"double": 2 * model(x)},
            ["double 6", "double -4", "double 6", "double 6"],
        ),
    ],
)
def test_a_regression_on_a_table(folder, monkeypatch, predict, lines):
    """Rows of a table with and without names, and of an array of another precision."""
    if predict:
        monkeypatch.setattr(Answers, "predict", predict, raising=False)
    exported(Answers(rngs=nnx.Rngs(0)), ROWS)
    Path("named.csv").write_text("\ufeffa,b,c,d\n1,2,3,6\n-1,-2,-3,-2\n")
    Path("plain.csv").write_text("1,2,3,6\n")
    np.save("row.npy", ROWS[0].astype(np.int64))
    names = ["named.csv[0]", "named.csv[1]", "plain.csv", "row.npy"]
    wanted = [f"{name}  {line}" for name, line in zip(names, lines, strict=True)]
    assert answers("model.zip", "named.csv", "plain.csv", "row.npy") == wanted
    if predict is None:
        result = {"file": "plain.csv", "index": 0, "output": 3}
        assert json.loads(*answers("model.zip", "plain.csv", "--json")) == result


def test_a_model_without_a_row_for_each_example_is_refused(folder, monkeypatch):
    monkeypatch.setattr(
        Answers, "predict", lambda model, x: model(x).mean(), raising=False
    )
    with pytest.raises(
        UserError, match=r"the model answers \[\], not one row for each example: return"
    ):
        exported(Answers(rngs=nnx.Rngs(0)), ROWS)


def test_labels_that_would_steer_a_terminal(folder):
    rows = points.DATA.test.inputs
    exported(
        points.Net(rngs=nnx.Rngs(0)), rows, labels=[f"\x1b[3{n}m" for n in range(3)]
    )
    np.save("rows.npy", rows)
    assert all(
        line.split()[1].startswith("\\x1b[3")
        for line in answers("model.zip", "rows.npy")
    )
