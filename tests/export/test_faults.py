"""Files that are not as we write them, though their checksums fit: one sentence, status 2, little memory, no hang."""

import io
import json
import os
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
import zlib

import numpy as np
import pytest
from launch import environment
from PIL import Image
from trained import train_briefly

from pmapdp import predict
from pmapdp.errors import UserError, run_command
from pmapdp.export.inputs import read_array, read_images, read_lines
from pmapdp.export.read import read_zip
from pmapdp.export.write import export_model, npy_bytes, zip_bytes
from pmapdp.registry import load_data, viewed


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The files of a model of images, and of one of another architecture."""
    folder = tmp_path_factory.mktemp("faults")
    for name in ("mlp", "convnet"):
        job, state = train_briefly(model=name, steps=0)
        export_model(job.task, state, folder / f"{name}.zip", metadata={"labels": "0123456789"})
    return read_zip(folder / "mlp.zip"), read_zip(folder / "convnet.zip")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with an image to ask about."""
    monkeypatch.chdir(tmp_path)
    np.save("digit.npy", np.zeros((28, 28), np.uint8))
    return tmp_path


def refused(capsys, *arguments: str) -> str:
    """The sentence with which the command refuses, after a look at the memory that it took."""
    tracemalloc.start()
    with warnings.catch_warnings(action="error"):
        status = run_command(predict.main, list(arguments))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    output = capsys.readouterr()
    assert status == 2, output.err
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert peak < 200e6
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
    "is cut short": npy_bytes(np.zeros((28, 28), np.uint8))[:-1],
    "is longer than it says": npy_bytes(np.zeros((28, 28), np.uint8)) + b"x",
    "is of version 9": b"\x93NUMPY\x09\x00" + bytes(100),
    "is its first bytes": b"\x93NUMPY",
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(models, place, capsys, name):
    """The same as an image and as parameters."""
    (place / "model.zip").write_bytes(zip_bytes(models[0]))
    (place / "bad.npy").write_bytes(ARRAYS[name])
    assert "bad.npy is no array that can be read (" in refused(capsys, "model.zip", "digit.npy", "bad.npy")
    array = next(each for each in models[0] if each.startswith("arrays/"))
    (place / "model.zip").write_bytes(zip_bytes(models[0] | {array: ARRAYS[name]}))
    assert "model.zip is not as it was written (" in refused(capsys, "model.zip", "digit.npy")
    assert sorted(os.listdir(place)) == ["bad.npy", "digit.npy", "model.zip"]


def test_right_arrays():
    for array in (np.zeros((2, 0)), np.float32(3), np.asfortranarray(np.arange(6.0).reshape(2, 3))):
        np.testing.assert_array_equal(read_array(npy_bytes(np.asarray(array))), array)


METADATA = {
    "not of ours": [b"", b"null", b"[]", b'"x"', b"{}", b"\xff", b"[" * 100_000, b'{"format": "another"}'],
    "fields": ["dtype", "labels", "arrays", "input"],
    "values": [None, 3, "x", [], [3], {}, {"dtype": 3, "shape": 3}, True, float("1e300")],
}


@pytest.mark.parametrize("content", METADATA["not of ours"], ids=lambda content: repr(content[:20]))
def test_metadata_of_something_else(models, place, capsys, content):
    (place / "model.zip").write_bytes(zip_bytes(models[0] | {"metadata.json": content}))
    assert "model.zip is a zip, but was not made with" in refused(capsys, "model.zip", "digit.npy")


@pytest.mark.parametrize("field", METADATA["fields"])
def test_metadata_of_another_form(models, place, capsys, field):
    right = json.loads(models[0]["metadata.json"])
    for value in ("missing", *METADATA["values"]):
        changed = {name: each for name, each in right.items() if value != "missing" or name != field}
        changed |= {} if value == "missing" else {field: value}
        files = models[0] | {"metadata.json": json.dumps(changed).encode()}
        (place / "model.zip").write_bytes(zip_bytes(files))
        assert "export the model again" in refused(capsys, "model.zip", "digit.npy")


def test_parts_that_do_not_belong_together(models, place, capsys):
    mlp, convnet = models
    array = next(name for name in mlp if name.startswith("arrays/") and "kernel" in name)
    value = read_array(mlp[array])
    nine = json.loads(mlp["metadata.json"]) | {"labels": list("012345678")}
    for changes in (
        {"model.jax": convnet["model.jax"]},
        {array: npy_bytes(value.T)},
        {array: npy_bytes(value.astype(np.float64))},
        {"metadata.json": json.dumps(nine).encode()},
    ):
        (place / "model.zip").write_bytes(zip_bytes(mlp | changes))
        assert "of different models: export the model again" in refused(capsys, "model.zip", "digit.npy")
    for missing in (array, "model.jax"):
        (place / "model.zip").write_bytes(zip_bytes({name: mlp[name] for name in mlp if name != missing}))
        refused(capsys, "model.zip", "digit.npy")


def test_answers_that_are_no_numbers(models, place, capsys):
    """A model whose training diverged says so, instead of a class with the probability nan."""
    array = next(name for name in models[0] if name.startswith("arrays/"))
    bad = npy_bytes(np.full_like(read_array(models[0][array]), np.nan))
    (place / "model.zip").write_bytes(zip_bytes(models[0] | {array: bad}))
    assert "answers with nan" in refused(capsys, "model.zip", "digit.npy")


def test_a_diverged_model_is_not_exported(tmp_path):
    job, state = train_briefly(model="convnet", steps=0)
    kernel = np.array(state.params["conv1"]["kernel"])
    kernel[0] = np.inf
    state.params["conv1"]["kernel"] = kernel
    with pytest.raises(UserError, match="infinite or nan"):
        export_model(job.task, state, tmp_path / "model.zip", metadata={"labels": "0123456789"})
    assert os.listdir(tmp_path) == []


def test_a_few_bytes_that_unpack_to_gigabytes(place, capsys):
    with zipfile.ZipFile("bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("SHA256SUMS", "w") as member:
        for _ in range(300):
            member.write(bytes(2**20))
    assert "bomb.zip is damaged" in refused(capsys, "bomb.zip", "digit.npy")


@pytest.mark.parametrize("kind", ["tfidf", pytest.param("tokens", marks=pytest.mark.slow)])
def test_vocabularies(place, capsys, kind):
    job, state = train_briefly(model={"tfidf": "text_mlp", "tokens": "transformer"}[kind], steps=0, dataset="reviews")
    view = viewed(load_data("reviews"), job.task.model)[1]
    export_model(job.task, state, "model.zip", metadata={"labels": ["negative", "positive"]}, view=view)
    right = read_zip("model.zip")
    changes = [
        *({"text/vocabulary.json": text} for text in (b"null", b"{}", b"[3]", b"[null]", b"", b"[" * 100_000)),
        {"text/vocabulary.json": json.dumps(list(map(str, range(20_000)))).encode()},
        {"metadata.json": right["metadata.json"].replace(f'"view": "{kind}"'.encode(), b'"view": "other"')},
    ]
    if kind == "tfidf":
        changes += [{"text/idf.npy": npy_bytes(np.zeros(3, np.float32))}, {"text/idf.npy": b""}]
        changes += [{"text/vocabulary.json": json.dumps(["same"] * len(view.vocabulary)).encode()}]
    for each in changes:
        (place / "model.zip").write_bytes(zip_bytes(right | each))
        assert "export the model again" in refused(capsys, "model.zip", "a text")
    missing = {name: each for name, each in right.items() if name != "text/vocabulary.json"}
    (place / "model.zip").write_bytes(zip_bytes(missing))
    refused(capsys, "model.zip", "a text")


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_pictures_cut_short(place):
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28)).astype(np.uint8)
    jpeg = io.BytesIO()
    Image.fromarray(pixels).save(jpeg, "JPEG")
    for content in (png(Image.fromarray(pixels)), jpeg.getvalue()):
        for missing in (1, 2, 4, 8, 12, 13, 20, len(content) // 2):
            (place / "cut").write_bytes(content[:-missing])
            with pytest.raises(UserError, match="it is cut short or damaged"):
                read_images("cut", 28, 28)


def test_a_png_with_any_bit_flipped(place):
    """It is refused, or the picture is the same: a bit of the end carries nothing."""
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28)).astype(np.uint8)
    content = png(Image.fromarray(pixels))
    found = 0
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << position % 8
        (place / "flipped.png").write_bytes(changed)
        try:
            np.testing.assert_array_equal(read_images("flipped.png", 28, 28)[0, ..., 0], pixels)
        except UserError:
            found += 1
    assert found > 0.95 * len(content)


def test_a_large_png(place, capsys, models):
    """No warning of Pillow's beside our sentence, and no memory for its pixels."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # noqa: E731
    size = struct.pack(">IIBBBBB", 10_000, 10_000, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(10_000 * 10_001))
    (place / "large.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )
    (place / "model.zip").write_bytes(zip_bytes(models[0]))
    assert "large.png is 10000 x 10000 pixels" in refused(capsys, "model.zip", "large.png")


def test_named_pipes(place, capsys, models):
    os.mkfifo("pipe")
    (place / "model.zip").write_bytes(zip_bytes(models[0]))
    assert "pipe cannot be read (it is a named pipe)" in refused(capsys, "model.zip", "pipe")
    assert "pipe cannot be read (it is a named pipe)" in refused(capsys, "pipe", "digit.npy")
    with pytest.raises(UserError, match=r"named pipe.*or - for standard input"):
        read_lines("pipe")


def test_lines_end_at_line_breaks_only(place):
    (place / "texts").write_bytes("one\vword\f\u0085\u2028 here\r\n\n two\rwords".encode())
    assert read_lines("texts") == ["one\vword\f\u0085\u2028 here", " two\rwords"]


def test_a_closed_standard_input():
    code = "import sys; from pmapdp.export.inputs import read_lines; from pmapdp.errors import run_command;"
    code += "sys.exit(run_command(lambda arguments: read_lines('-')))"
    done = subprocess.run(
        ["bash", "-c", f'"$0" -c "{code}" <&-', sys.executable], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "error: - holds no text: write one text a line\n")


def test_programs_that_are_none(models, place, capsys):
    """With checksums that fit. (A program altered with skill can end JAX itself: read what you trust.)"""
    for program in (b"", b"x", bytes(1000), np.random.default_rng(0).bytes(1000)):
        (place / "model.zip").write_bytes(zip_bytes(models[0] | {"model.jax": program}))
        assert "use jax" in refused(capsys, "model.zip", "digit.npy")


def test_a_program_with_any_bit_flipped(models, place, capsys):
    """The checksums are looked at before JAX sees the program."""
    whole = zip_bytes(models[0])
    start = whole.index(models[0]["model.jax"])
    for position in np.random.default_rng(0).integers(start, start + len(models[0]["model.jax"]), 50):
        changed = bytearray(whole)
        changed[position] ^= 1 << position % 8
        (place / "model.zip").write_bytes(changed)
        assert "model.zip is damaged" in refused(capsys, "model.zip", "digit.npy")


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 11)", "os.abort()"])
def test_a_program_that_ends_the_parser_of_jax(models, place, end):
    """With checksums that fit. Some bytes do that in C++, others in each version; here the parser is told to."""
    (place / "model.zip").write_bytes(zip_bytes(models[0]))
    code = f"import os, sys, jax.export; jax.export.deserialize = lambda program: {end}; from pmapdp import predict;"
    code += "from pmapdp.errors import run_command; sys.exit(run_command(predict.main, ['model.zip', 'digit.npy']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment(), timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: model.zip was exported with jax")
    assert "it crashes" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_program_that_cannot_be_run(models, place, capsys):
    """It can be parsed, and does not say what it should."""
    program = models[0]["model.jax"].replace(b"main", b"mein")
    (place / "model.zip").write_bytes(zip_bytes(models[0] | {"model.jax": program}))
    assert "export it again" in refused(capsys, "model.zip", "digit.npy")
