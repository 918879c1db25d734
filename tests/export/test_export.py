"""`pmapdp.export`: a model in one file gives the figures of its run, and any other file is refused."""

import dataclasses
import inspect
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import zipfile

import jax
import numpy as np
import optax
import pytest
from archives import npy, pack, unpack
from hypothesis import given, settings
from hypothesis import strategies as st
from trained import train_briefly

from pmapdp import cli, export
from pmapdp.config import Config
from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError
from pmapdp.evaluate import evaluate_exported
from pmapdp.export import EXAMPLES_PER_CALL, export_model, load_exported
from pmapdp.predict import main as predict
from pmapdp.registry import MODELS, featurize, load_data
from pmapdp.state import Task, build, create_state
from pmapdp.train import evaluate, train

METADATA = {"labels": "0123456789", "dataset": "digits"}
IMAGES = np.random.default_rng(0).integers(0, 256, (EXAMPLES_PER_CALL + 1, 28, 28, 1), np.uint8)
LABELS = (np.arange(len(IMAGES)) % 10).astype(np.int32)


def train_and_export(model, folder):
    """A job, its state and the file that its model was exported to."""
    job, state = train_briefly(model=model)
    export_model(job.task, state, folder / "model.zip", examples=Split(IMAGES, LABELS), metadata=METADATA)
    return job, state, folder / "model.zip"


@pytest.fixture(scope="module")
def convnet(tmp_path_factory):
    return train_and_export("convnet", tmp_path_factory.mktemp("convnet"))


@pytest.fixture(scope="module", params=["convnet", pytest.param("cnn", marks=pytest.mark.slow), "mlp"])
def trained(request, tmp_path_factory):
    """As `convnet`, for each model."""
    if request.param == "convnet":
        return request.getfixturevalue("convnet")
    return train_and_export(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_same_figures_as_the_state(trained):
    job, state, path = trained
    ours = evaluate(job, job.strategy.place_state(state), "test")
    found = evaluate_exported(load_exported(path), load_data("digits").test)
    assert (found["examples"], found["accuracy"]) == (360, ours["accuracy"])
    assert found["loss"] == pytest.approx(ours["loss"], abs=1e-6)


@pytest.mark.parametrize("n", [7, EXAMPLES_PER_CALL + 1])
def test_any_batch_size(trained, n):
    job, state, path = trained
    model = job.task.model_with(state.params, state.model_state)
    probabilities = load_exported(path).outputs(IMAGES[:n])["probabilities"]
    np.testing.assert_allclose(probabilities, jax.nn.softmax(model(IMAGES[:n])), atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("bfloat16", 2e-2)])  # 8 bits of mantissa
def test_other_precisions(folder, dtype, tolerance):
    """float64 stays float64 also if JAX isn't set to it. bfloat16 has parameters and an answer in float32."""
    with jax.enable_x64(dtype == "float64"):
        task = Task(build(MODELS["cnn"], dtype=dtype), optax.identity(), dtype=dtype)
        state = create_state(task)
        expected = np.asarray(task.model_with(state.params, state.model_state)(IMAGES[:3]), np.float64)
    export_model(task, state, "model.zip", examples=Split(IMAGES[:3], LABELS[:3]), metadata=METADATA)
    exported = load_exported("model.zip")
    logits = exported.outputs(IMAGES[:3])["logits"]
    wide = np.float64 if dtype == "float64" else np.float32
    assert {logits.dtype, *(array.dtype for array in exported.arrays.values())} == {np.dtype(wide)}
    np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerance)


def test_what_is_in_the_file(convnet, folder):
    job, state, path = convnet
    files = unpack(path)
    metadata = json.loads(files["metadata.json"])
    assert metadata["input"] == {"dtype": "uint8", "shape": ["batch", 28, 28, 1]}
    assert (metadata["labels"], metadata["jax"], metadata["parameters"]) == (
        list("0123456789"),
        jax.__version__,
        49_210,
    )
    assert load_exported(path).model.platforms == ("cpu", "cuda", "tpu") == tuple(metadata["platforms"])
    arrays = [f"arrays/{name}.npy" for name in metadata["arrays"]]
    assert sorted(files) == sorted(["metadata.json", "model.jax", "loss.jax", *arrays])
    assert len(files["model.jax"]) < 20_000, "the parameters belong into the arrays, not into the program"
    assert os.path.dirname(export.__file__).encode() not in path.read_bytes(), "folders are nobody's business"
    export_model(job.task, state, "again.zip", examples=Split(IMAGES[1:], LABELS[1:]), metadata=METADATA)
    assert (folder / "again.zip").read_bytes() == path.read_bytes()


def documented_code() -> str:
    """The example in the comment on the format."""
    lines = [line.removeprefix("#     ") for line in inspect.getsource(export).splitlines()]
    return "\n".join(lines[lines.index("import json") : [line[:9] for line in lines].index("classes =") + 1])


@pytest.mark.slow
def test_readable_with_jax_and_numpy_alone(convnet):
    """The code in the comment, word for word, if our package and the model's library can't be imported."""
    _, _, path = convnet
    np.save(path.parent / "images.npy", IMAGES[:5])
    script = "\n".join(
        [
            "import sys",
            "sys.modules.update(dict.fromkeys(('pmapdp', 'flax', 'orbax', 'optax')))  # importing them now fails",
            "import numpy as np",
            "images = np.load('images.npy')",
            documented_code(),
            "np.savez('outputs.npz', **outputs)",
            "print(' '.join(classes))",
        ]
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=path.parent, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    ours = load_exported(path).outputs(IMAGES[:5])
    with np.load(path.parent / "outputs.npz") as theirs:
        for name, expected in ours.items():
            np.testing.assert_allclose(theirs[name], expected, atol=1e-6)
    assert run.stdout.split() == ["0123456789"[number] for number in ours["logits"].argmax(-1)]


# The command


@pytest.mark.parametrize(
    ("part", "removed", "said"),
    [
        ("test", None, "\ntest loss"),
        ("validation", None, "\nvalidation loss"),
        (None, None, "\nno metrics: the run has no test or validation data"),
        ("test", "8", "\nno metrics: test was measured after update 4, not after this one"),
    ],
)
def test_the_command_says_what_was_measured_and_when(folder, capsys, monkeypatch, part, removed, said):
    data = DataSet(Split(IMAGES[:40], LABELS[:40]), **({part: Split(IMAGES[40:50], LABELS[40:50])} if part else {}))
    settings = {"strategy": "single", "epochs": 2, "model": "mlp", "global_batch_size": 10, "checkpoint_every": 3}
    train(Config(**settings, workdir="run", progress=False, compile_cache=False), data=data)
    if removed:  # then the newest is of update 6, in the middle of an epoch
        shutil.rmtree(f"run/checkpoints/{removed}")
    metadata = export.export_run("run", "model.zip", data=data)
    assert metadata["dataset"] == "arrays"
    monkeypatch.setattr(export, "export_run", lambda *_, **__: metadata)  # a command can't be given Python values
    capsys.readouterr()
    assert cli.run(export.main, ["run", "model.zip"]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["runs/first"],
            "the following arguments are required: FILE: try python -m pmapdp.export runs/first model.zip",
        ),
        (["a", "b", "--forse"], "unknown argument '--forse'"),
        (["nowhere", "model.zip"], "nowhere holds no run"),
    ],
)
def test_mistakes(arguments, sentence, capsys, folder):
    assert cli.run(export.main, arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("layer", "rows", "number", "said"),
    [("conv1", 0, np.inf, "infinite or nan"), ("hidden", slice(None), 3e38, "answers with nan")],
)
def test_a_diverged_model_is_not_exported(convnet, folder, layer, rows, number, said):
    job, state, _ = convnet
    kernel = np.array(state.params[layer]["kernel"])
    kernel[rows] = number
    state = dataclasses.replace(state, params=state.params | {layer: state.params[layer] | {"kernel": kernel}})
    with pytest.raises(UserError, match=said):
        export_model(job.task, state, "model.zip", examples=Split(IMAGES, LABELS), metadata=METADATA)
    assert os.listdir() == []


# Files that are not as we wrote them


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The content of an exported file, the files in it, and the model."""
    path = tmp_path_factory.mktemp("whole") / "model.zip"
    task = Task(build(MODELS["mlp"]), optax.identity())
    export_model(task, create_state(task), path, examples=Split(IMAGES, LABELS), metadata=METADATA)
    return path.read_bytes(), unpack(path), load_exported(path)


def refused(content: bytes) -> str:
    """The sentence about a file with this content, which takes little memory."""
    with open("bad.zip", "wb") as file:
        file.write(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError) as caught:
        load_exported("bad.zip").outputs(IMAGES[:1])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB
    return str(caught.value)


@given(position=st.floats(0, 1, exclude_max=True), bit=st.none() | st.integers(0, 7), in_table=st.booleans())
@settings(deadline=None, max_examples=100)
def test_any_cut_and_any_flipped_bit(whole, tmp_path_factory, position, bit, in_table):
    """Either it is found, or it carried nothing, for example a date."""
    content, _, original = whole
    length = 3000 if in_table else len(content)  # the table of a zip is at its end
    place = len(content) - length + int(position * length)
    altered = bytearray(content[:place] if bit is None else content)
    if bit is not None:
        altered[place] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / "altered.zip"
    path.write_bytes(altered)
    try:
        again = load_exported(path)
    except UserError:
        return
    assert bit is not None
    assert again.metadata == original.metadata
    assert again.model.mlir_module_serialized == original.model.mlir_module_serialized
    for name, array in original.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)


def with_metadata(files, **changes):
    return {"metadata.json": json.dumps(json.loads(files["metadata.json"]) | changes).encode()}


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{}]), allow_pickle=True)
    return file.getvalue()


def claims(shape: str) -> bytes:
    """A .npy file with the header of an array of floats, and nothing behind it."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


KERNEL = "arrays/hidden1/kernel.npy"
FORGED = {
    "an array is missing": (lambda files: {KERNEL: None}, "There is no item named"),
    "an array is cut short": (lambda files: {KERNEL: npy(np.zeros((784, 512), np.float32))[:-1]}, "EOF: reading"),
    "an array is pickled": (lambda files: {KERNEL: pickled()}, "Object arrays cannot be loaded"),
    "an array claims 4 TB": (lambda files: {KERNEL: claims(f"({10**12},)")}, "is damaged, or is no exported model"),
    "a header is a program": (lambda files: {KERNEL: claims("__import__('os').mkdir('hacked')")}, "is damaged"),
    "the metadata is a list": (lambda files: {"metadata.json": b"[]"}, "is damaged, or is no exported model"),
    "the metadata is no JSON": (lambda files: {"metadata.json": b"[" * 10_000}, "maximum recursion depth"),
    "the program is missing": (lambda files: {"model.jax": None}, "There is no item named 'model.jax'"),
    "the program is none": (lambda files: {"model.jax": b"\x10" * 1000}, "cannot read"),
    "the loss is missing": (lambda files: {"loss.jax": None}, "There is no item named 'loss.jax'"),
    "a newer format": (lambda files: with_metadata(files, format="pmapdp model 9"), "'pmapdp model 9', not"),
    "an older format": (lambda files: with_metadata(files, format="pmapdp model 1"), "'pmapdp model 1', not"),
    "labels are numbers": (lambda files: with_metadata(files, labels=list(range(10))), "not texts that all differ"),
    "labels are equal": (lambda files: with_metadata(files, labels=["a"] * 10), "not texts that all differ"),
    "labels are missing": (lambda files: with_metadata(files, labels=None), "is damaged, or is no exported model"),
    "too few labels": (lambda files: with_metadata(files, labels=list("012345678")), "9 labels for 10 classes"),
    "NaN": (lambda files: {KERNEL: npy(np.full((784, 512), np.nan, np.float32))}, "answers with nan"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_forged(whole, folder, name):
    """Checksums that fit, and content that does not."""
    change, sentence = FORGED[name]
    files = {name: content for name, content in (whole[1] | change(whole[1])).items() if content is not None}
    assert sentence in refused(pack(files))
    assert os.listdir() == ["bad.zip"]


def test_a_few_bytes_that_unpack_to_gigabytes(folder):
    """By compression, and by a table that names the same bytes 3,000 times."""
    with zipfile.ZipFile("packed.zip", "w", zipfile.ZIP_DEFLATED) as packed, packed.open("metadata.json", "w") as file:
        for _ in range(500):
            file.write(bytes(2**20))
    with zipfile.ZipFile("often.zip", "w") as archive:
        archive.writestr("metadata.json", bytes(2**20))
        archive.filelist *= 3000
    for name in ("packed.zip", "often.zip"):
        assert "(it is compressed, or not as long as it says)" in refused((folder / name).read_bytes())


@pytest.mark.parametrize("inputs", [np.zeros((2, 3)), IMAGES[:2].astype(np.float32), {"a": IMAGES[:1]}])
def test_other_inputs_are_one_sentence(whole, inputs):
    with pytest.raises(UserError, match=r"^the model takes .*'shape': \['batch', 28, 28, 1\]}, and not .*: give"):
        whole[2].outputs(inputs)


# Texts

TEXTS = ["The music was wonderful. I found the cast superb!", "The plot was dull. The ending was terrible."]


@pytest.fixture(scope="module")
def sentiment(tmp_path_factory):
    """The file of a short run on the synthetic reviews, and the results of its last epoch."""
    folder = tmp_path_factory.mktemp("texts")
    settings = {"model": "text_mlp", "dataset": "reviews", "strategy": "jit", "devices": 8, "global_batch_size": 64}
    settings |= {"epochs": 3, "optimizer": "sgd", "learning_rate": 0.64, "workdir": str(folder / "run")}
    epochs = train(Config(**settings, progress=False, compile_cache=False)).epochs
    assert cli.run(export.main, [str(folder / "run"), str(folder / "sentiment.zip")]) == 0
    return str(folder / "sentiment.zip"), epochs[-1]


def test_strings_give_the_accuracy_of_training(sentiment):
    file, expected = sentiment
    exported, test = load_exported(file), load_data("reviews").test
    classes = exported.outputs(exported.view(test.texts))["logits"].argmax(-1)
    assert (classes == test.labels).mean() == expected["test"]["accuracy"] > 0.7  # half would be chance
    found = evaluate_exported(exported, test)
    assert (found["accuracy"], found["examples"]) == (expected["test"]["accuracy"], 1000)
    assert found["loss"] == pytest.approx(expected["test"]["loss"], abs=1e-6)


@pytest.mark.slow
def test_a_transformer_gives_the_same_logits_through_strings(folder):
    task = Task(build(MODELS["transformer"]), optax.identity())
    state, data = create_state(task), load_data("reviews")
    arrays, view = featurize(data, MODELS["transformer"])
    metadata = {"labels": ["negative", "positive"]}
    export_model(task, state, "model.zip", examples=arrays.test, metadata=metadata, view=view)
    exported = load_exported("model.zip")
    found = exported.outputs(exported.view(data.test.texts[:20]))["logits"]
    wanted = jax.jit(task.model_with(state.params, state.model_state).__call__)(arrays.test.inputs[:20])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert list(json.loads(unpack("model.zip")["view.json"])) == ["vocabulary"]


@pytest.mark.parametrize(
    "view", [[], {"vocabulary": 5}, {"vocabulary": ["a"], "idf": [1, 2]}, {"words": ["a"]}], ids=str
)
def test_vocabularies_of_another_form(sentiment, folder, view):
    files = unpack(sentiment[0]) | {"view.json": json.dumps(view).encode()}
    assert "bad.zip is damaged, or is no exported model (" in refused(pack(files))


def lines_of(capsys, *arguments):
    assert cli.run(predict, list(arguments)) == 0
    return capsys.readouterr().out.splitlines()


def test_texts_on_the_command_line(sentiment, capsys):
    first, second = (line.split(maxsplit=2) for line in lines_of(capsys, sentiment[0], *TEXTS))
    assert [first[0], second[0]] == ["positive", "negative"]
    assert [first[2], second[2]] == TEXTS
    results = [json.loads(line) for line in lines_of(capsys, sentiment[0], "--json", *TEXTS)]
    assert [result["text"] for result in results] == TEXTS
    for result in results:
        assert list(result["probabilities"]) == ["negative", "positive"]
        assert result["probability"] == max(result["probabilities"].values())


@pytest.mark.slow
def test_lines_of_a_file_and_of_standard_input(sentiment, capsys, folder):
    content = "\r\n\r\n".join([*TEXTS, "A wonderful film. " * 20, "\u00e7a\u2028 alors"]).encode("utf-8-sig")
    (folder / "texts.txt").write_bytes(content)
    lines = lines_of(capsys, sentiment[0], "--lines", "texts.txt")
    assert [line.split()[0] for line in lines[:3]] == ["positive", "negative", "positive"]
    assert lines[2].endswith("film. A...")
    command = [sys.executable, "-m", "pmapdp.predict", sentiment[0], "--lines", "-"]
    done = subprocess.run(command, input=content, capture_output=True, timeout=300, check=True)
    assert done.stdout.decode().splitlines() == lines


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "INPUT is missing: name a file, or a text in quotes, after"),
        (["--lines", "missing.txt"], "missing.txt cannot be read (No such file or directory): name a file with one"),
        (["--lines", "latin.txt"], "latin.txt is no text in UTF-8"),
        (["--lines", "empty.txt"], "empty.txt holds no text: write one text a line"),
    ],
)
def test_mistakes_with_texts(sentiment, capsys, folder, arguments, sentence):
    (folder / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (folder / "empty.txt").write_text("\n \n")
    assert cli.run(predict, [sentiment[0], *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")
