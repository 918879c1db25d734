"""`pmapdp.predict`: the class of one image or text.

The page's ten lines do the rest, without pmapdp.
"""

import io
import json
import sys
from pathlib import Path

import entry
import jax.numpy as jnp
import numpy as np
import optax
import points
import pytest
from archives import pack, unpack
from flax import nnx
from PIL import Image
from trained import train_briefly

from pmapdp import export
from pmapdp.config import Config
from pmapdp.custom.images import ImageFolder
from pmapdp.data.dataset import Split
from pmapdp.errors import UserError
from pmapdp.evaluate import evaluate_exported
from pmapdp.export import export_model, export_run, load_exported
from pmapdp.loss import MetricSums
from pmapdp.predict import read_input
from pmapdp.registry import load_data
from pmapdp.state import Task, create_state
from pmapdp.train import train


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The file of a short run, and the digits."""
    job, state = train_briefly(steps=40, model="mlp")
    path = tmp_path_factory.mktemp("digits") / "model.zip"
    export_model(
        job.task,
        state,
        path,
        examples=job.batches["test"].split,
        metadata={"labels": "0123456789"},
    )
    return path, job.batches["test"].split


@pytest.fixture(scope="module")
def sentiment(tmp_path_factory):
    """The file of a short run on the synthetic reviews, and the results of its last
    epoch.
    """
    folder = tmp_path_factory.mktemp("texts")
    config = Config(
        model="text_mlp",
        dataset="reviews",
        strategy="single",
        global_batch_size=64,
        epochs=2,
        optimizer="sgd",
        learning_rate=0.64,
        workdir=str(folder / "run"),
        progress=False,
        compile_cache=False,
    )
    epochs = train(config).epochs
    export_run(config.workdir, folder / "sentiment.zip")
    return folder / "sentiment.zip", epochs[-1]


def answer(*arguments):
    done = entry.run_command("predict", *arguments)
    assert done.status == 0, done.err
    (line,) = done.out.splitlines()
    return line.rsplit("  ", 1)


def noise(*shape, high=256):
    return np.random.default_rng(0).integers(0, high, shape).astype(np.uint8)


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_images(digits, folder):
    """Grey, and the same in colours."""
    path, (images, labels, *_) = digits
    right = 0
    for index in range(12):
        pixels = images[index]
        if index % 2:
            pixels = np.repeat(pixels, 3, axis=-1)
        Image.fromarray(pixels.squeeze()).save("digit [1].png")
        label, probability = answer(path, "digit [1].png")
        expected = load_exported(path).outputs(images[index : index + 1])
        assert label == str(expected["logits"].argmax())
        assert float(probability) == pytest.approx(
            expected["probabilities"].max(), abs=1e-3
        )
        right += int(label) == labels[index]
    assert right >= 8


def test_pictures_become_grey_or_coloured_on_black(folder):
    """Also if they are white on a transparent ground, whose hidden colour is white too.

    Training on a folder does the same.
    """
    colours = noise(28, 28, 3)
    alpha = noise(28, 28)
    drawing = Image.new("RGBA", (28, 28), "white")
    drawing.putalpha(Image.fromarray(alpha))
    Path("class").mkdir()
    pictures = [
        (Image.fromarray(colours), colours),
        (drawing, np.stack([alpha] * 3, -1)),
    ]
    for n, (picture, wanted) in enumerate(pictures):
        picture.save(f"class/{n}.png")
        for mode, channels, values in (
            ("L", 1, wanted @ [0.299, 0.587, 0.114]),
            ("RGB", 3, wanted),
        ):
            metadata = {
                "input": {"dtype": "uint8", "shape": ["batch", 28, 28, channels]}
            }
            model = export.Exported(metadata, None, {}, None)
            found = read_input(model, f"class/{n}.png")[0]
            np.testing.assert_allclose(found.squeeze(), values, atol=2)
            np.testing.assert_array_equal(ImageFolder(".", mode=mode)[n][0], found)


DEEP = np.random.default_rng(0).integers(0, 65536, (28, 28), np.uint16)
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 28 28\n"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("wide.png", png(noise(28, 32)),
         "and not {'dtype': 'uint8', 'shape': ['batch', 28, 32, 1]}"),
        ("deep.png", png(DEEP),
         "(its mode is I;16: write it with 8 bits a colour): name a PNG"),
        ("eps.png", EPS, "(cannot identify image"),
        ("missing.png", None, "missing.png cannot be read (No such file or directory)"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit(digits, folder, name, content, why):
    if content is not None:
        Path(name).write_bytes(content)
    done = entry.run_command("predict", digits[0], name)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert why in done.err


def test_without_pillow(digits, folder, monkeypatch):
    Path("digit.png").write_bytes(png(noise(28, 28)))
    monkeypatch.setitem(sys.modules, "PIL", None)
    done = entry.run_command("predict", digits[0], "digit.png")
    assert "pip install pillow" in done.err


def test_texts_give_the_figures_of_training(sentiment):
    file, expected = sentiment
    found = evaluate_exported(load_exported(file), load_data("reviews").test)
    # Half would be chance.
    assert found["accuracy"] == expected["test"]["accuracy"] > 0.7
    assert found["examples"] == 1000
    assert found["loss"] == pytest.approx(expected["test"]["loss"], abs=1e-6)
    good = "The music was wonderful. I found the cast superb!"
    assert answer(file, good)[0] == "positive"
    assert answer(file, "The plot was dull. The ending was terrible.")[0] == "negative"


def test_flags_of_before_say_what_to_do(digits):
    for flag in ("--json", "--lines"):
        done = entry.run_command("predict", digits[0], "digit.png", flag)
        assert done.status == 2
        assert f"{flag} is gone" in done.err
        assert "docs/export.md" in done.err


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
    custom = {"loss": type(model).loss} if hasattr(model, "loss") else {}
    task = Task(model, optax.identity(), classifies=not custom, **custom)
    labels = np.zeros(len(inputs), np.float32 if custom else np.int32)
    export_model(
        task,
        create_state(task),
        "model.zip",
        examples=Split(inputs, labels),
        metadata=metadata,
    )


ROWS = np.array([[1, 2, 3, 6], [-1, -2, -3, -2]], np.float32)


def test_a_model_without_a_row_for_each_example_is_refused(folder, monkeypatch):
    monkeypatch.setattr(
        Answers, "predict", lambda model, x: model(x).mean(), raising=False
    )
    with pytest.raises(
        UserError, match=r"the model answers \[\], not one row for each example: return"
    ):
        exported(Answers(rngs=nnx.Rngs(0)), ROWS)


def test_a_model_of_numbers_is_refused(folder):
    exported(Answers(rngs=nnx.Rngs(0)), ROWS)
    done = entry.run_command("predict", "model.zip", "rows.csv")
    assert done.status == 2
    assert "model.zip gives no class: docs/export.md in pmapdp's repo" in done.err
    exported(points.Net(rngs=nnx.Rngs(0)), points.DATA.test.inputs)
    done = entry.run_command("predict", "model.zip", "rows.npy")
    assert done.status == 2
    assert "'shape': ['batch', 6]}, and this command reads images and texts" in done.err


def test_labels_that_would_steer_a_terminal(digits, folder):
    files = unpack(digits[0])
    metadata = json.loads(files["metadata.json"])
    metadata["labels"] = [f"\x1b[3{n}m" for n in range(10)]
    files["metadata.json"] = json.dumps(metadata).encode()
    Path("model.zip").write_bytes(pack(files))
    Path("digit.png").write_bytes(png(noise(28, 28)))
    assert answer("model.zip", "digit.png")[0].startswith("\\x1b[3")
