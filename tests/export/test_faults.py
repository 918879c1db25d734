"""Files that are not as we write them: one sentence, status 2, little memory, no hang."""

import io
import json
import os
import resource
import struct
import warnings
import zipfile

import numpy as np
import pytest
from archives import npy, pack, unpack
from trained import train_briefly

from pmapdp import cli
from pmapdp.errors import UserError
from pmapdp.evaluate.__main__ import main as evaluate
from pmapdp.export.read import load_exported
from pmapdp.export.write import export_model
from pmapdp.predict import main as predict


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The files (name to content) of an exported model of images."""
    path = tmp_path_factory.mktemp("faults") / "model.zip"
    job, state = train_briefly(model="mlp", steps=0)
    export_model(job.task, state, path, examples=job.data.test, metadata={"labels": "0123456789"})
    return unpack(path)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with an image to ask about."""
    monkeypatch.chdir(tmp_path)
    np.save("digit.npy", np.zeros((28, 28), np.uint8))
    return tmp_path


def refused(capsys, *arguments: str) -> str:
    """The sentence with which the command refuses, after a look at the memory that it took."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with warnings.catch_warnings(action="error"):
        status = cli.run(predict, list(arguments))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    output = capsys.readouterr()
    assert status == 2, output.err
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert grown < 200_000  # kB
    return output.err


def header(text: str) -> bytes:
    """A .npy file with this header and nothing behind it."""
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{}]), allow_pickle=True)
    return file.getvalue()


CLAIMS = "{'descr': '|u1', 'fortran_order': False, 'shape': (%s, 28, 28)}"
ARRAYS = {
    "claims 784 TB": header(CLAIMS % 10**12),
    "claims more than 64 bits count": header(CLAIMS % 10**40),
    "claims a negative size": header(CLAIMS % -1),
    "claims nothing that is a size": header(CLAIMS % "True"),
    "is brackets only": header("[" * 9_000),
    "is a program": header("__import__('os').mkdir('hacked')"),
    "is pickled": pickled(),
    "is cut short": npy(np.zeros((28, 28), np.uint8))[:-1],
    "is of version 9": b"\x93NUMPY\x09\x00" + bytes(100),
    "is its first bytes": b"\x93NUMPY",
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(model, place, capsys, name):
    (place / "model.zip").write_bytes(pack(model))
    (place / "bad.npy").write_bytes(ARRAYS[name])
    assert "bad.npy is no array that can be read (" in refused(capsys, "model.zip", "digit.npy", "bad.npy")
    assert sorted(os.listdir(place)) == ["bad.npy", "digit.npy", "model.zip"]


KERNEL = "arrays/hidden1/kernel.npy"
FORGED = {
    "an array is missing": ({KERNEL: None}, "There is no item named"),
    "an array is cut short": ({KERNEL: npy(np.zeros((784, 512), np.float32))[:-1]}, "EOF: reading array data"),
    "an array is pickled": ({KERNEL: pickled()}, "Object arrays cannot be loaded"),
    "an array claims 4 TB": ({KERNEL: header(CLAIMS % (5 * 10**9))}, "is damaged, or is no exported model"),
    "an array has another shape": ({KERNEL: npy(np.zeros((784, 4), np.float32))}, "does not take inputs"),
    "an array has another type": ({KERNEL: npy(np.zeros((784, 512), np.int8))}, "does not take inputs"),
    "the metadata has another form": ({"metadata.json": b"[]"}, "metadata.json has another form"),
    "the metadata is no JSON": ({"metadata.json": b"[" * 10_000}, "maximum recursion depth"),
    "the program is missing": ({"model.jax": None}, "There is no item named 'model.jax'"),
    "the program is none": ({"model.jax": b"\x10" * 1000}, "cannot read"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged(model, place, capsys, name):
    """Checksums that fit, and content that does not."""
    changes, sentence = FORGED[name]
    files = {name: content for name, content in (model | changes).items() if content is not None}
    (place / "model.zip").write_bytes(pack(files))
    assert sentence in refused(capsys, "model.zip", "digit.npy")


@pytest.mark.parametrize(
    "labels",
    [list(range(10)), [None] * 10, [[]] * 10, [{}] * 10, None, "0123456789", {}, 7, [*"012345678", 9]],
    ids=repr,
)
def test_labels_that_are_no_texts(model, place, capsys, labels):
    metadata = json.loads(model["metadata.json"]) | {"labels": labels}
    (place / "model.zip").write_bytes(pack(model | {"metadata.json": json.dumps(metadata).encode()}))
    assert "model.zip is damaged, or is no exported model (" in refused(capsys, "model.zip", "digit.npy")


@pytest.mark.parametrize("value", [None, 7, "x", [], {}, [1], {"a": 1}, True, [None]], ids=repr)
@pytest.mark.parametrize("name", ["format", "jax", "dtype", "view", "input", "arrays", "labels"])
def test_metadata_of_every_other_form(model, place, capsys, name, value):
    """What the reader needs is refused in a sentence; the rest may be as it likes."""
    metadata = json.loads(model["metadata.json"]) | {name: value}
    (place / "model.zip").write_bytes(pack(model | {"metadata.json": json.dumps(metadata).encode()}))
    status = cli.run(predict, ["model.zip", "digit.npy"])
    assert (status, capsys.readouterr().err.count("\n")) in ((2, 1), (0, 0))
    if name not in ("jax", "dtype", "view"):
        assert status == 2


def test_too_few_labels(model, place, capsys):
    metadata = json.loads(model["metadata.json"]) | {"labels": list("012345678")}
    (place / "model.zip").write_bytes(pack(model | {"metadata.json": json.dumps(metadata).encode()}))
    assert "names 9 labels for 10 classes" in refused(capsys, "model.zip", "digit.npy")


def test_metadata_that_does_not_say_what_to_evaluate_on(model, place, capsys):
    """An export by one's own call of `export_model` has them as it pleases."""
    (place / "model.zip").write_bytes(pack(model))
    assert cli.run(evaluate, ["model.zip"]) == 2
    assert "error: model.zip does not name its data set and its step: name a file of" in capsys.readouterr().err


def test_inputs_that_are_no_arrays_are_one_sentence(model, place):
    """Of every kind, from Python."""
    (place / "model.zip").write_bytes(pack(model))
    exported = load_exported("model.zip")
    for inputs in (None, 0, "x", b"x", [], [[1], [1, 2]], {}, {"a": 1}, {"a": {}}, (), object(), np.zeros((2, 3)), len):
        with pytest.raises(UserError, match=r"^the model does not take inputs .*: give it what it was trained on"):
            exported.outputs(inputs)


def test_answers_that_are_no_numbers(model, place, capsys):
    """A model whose training diverged says so, instead of a class with the probability nan."""
    array = next(name for name in model if name.startswith("arrays/"))
    bad = npy(np.full_like(np.load(io.BytesIO(model[array])), np.nan))
    (place / "model.zip").write_bytes(pack(model | {array: bad}))
    assert "answers with nan" in refused(capsys, "model.zip", "digit.npy")


@pytest.mark.parametrize(
    ("layer", "rows", "number", "said"),
    [("conv1", 0, np.inf, "infinite or nan"), ("hidden", slice(None), 3e38, "answers with nan")],
)
def test_a_diverged_model_is_not_exported(tmp_path, layer, rows, number, said):
    job, state = train_briefly(model="convnet", steps=0)
    kernel = np.array(state.params[layer]["kernel"])
    kernel[rows] = number
    state.params[layer]["kernel"] = kernel
    with pytest.raises(UserError, match=said):
        export_model(job.task, state, tmp_path / "model.zip", examples=job.data.test, metadata={"labels": ""})
    assert os.listdir(tmp_path) == []


def test_a_few_bytes_that_unpack_to_gigabytes(place, capsys):
    """By compression, and by a table that names the same bytes 3,000 times."""
    with zipfile.ZipFile("packed.zip", "w", zipfile.ZIP_DEFLATED) as packed, packed.open("metadata.json", "w") as file:
        for _ in range(500):
            file.write(bytes(2**20))
    with zipfile.ZipFile("often.zip", "w") as archive:
        archive.writestr("metadata.json", bytes(2**20))
        archive.filelist *= 3000
    for name in ("packed.zip", "often.zip"):
        assert "(it is compressed, or not as long as it says)" in refused(capsys, name, "digit.npy")


def test_named_pipes(place, capsys, model):
    os.mkfifo("pipe")
    (place / "model.zip").write_bytes(pack(model))
    assert "pipe cannot be read (it is a folder, a named pipe or a device)" in refused(capsys, "model.zip", "pipe")
    assert "pipe cannot be read (it is a folder, a named pipe or a device)" in refused(capsys, "pipe", "digit.npy")


def test_a_program_with_any_bit_flipped(model, place, capsys):
    """The checksums are looked at before JAX sees the program."""
    whole = pack(model)
    start = whole.index(model["model.jax"])
    for position in np.random.default_rng(0).integers(start, start + len(model["model.jax"]), 50):
        changed = bytearray(whole)
        changed[position] ^= 1 << position % 8
        (place / "model.zip").write_bytes(changed)
        assert "model.zip is damaged, or is no exported model" in refused(capsys, "model.zip", "digit.npy")
