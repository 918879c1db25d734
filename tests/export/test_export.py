"""`pmapdp.export`: a model in one file gives the figures of its run, and any other file is refused."""

import dataclasses
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import entry
import jax
import numpy as np
import optax
import points
import pytest
from archives import npy, pack, unpack
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from trained import train_briefly

from pmapdp import export
from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError
from pmapdp.evaluate import evaluate_exported, evaluate_run
from pmapdp.export import EXAMPLES_PER_CALL, export_model, export_run, load_exported
from pmapdp.registry import load_data
from pmapdp.state import Task, build, create_state
from pmapdp.train import Custom, evaluate

METADATA = {"labels": "0123456789", "dataset": "digits"}
IMAGES = np.random.default_rng(0).integers(0, 256, (EXAMPLES_PER_CALL + 1, 28, 28, 1), np.uint8)
LABELS = (np.arange(len(IMAGES)) % 10).astype(np.int32)
EXAMPLES = Split(IMAGES, LABELS)
PAGE = Path(__file__).parents[2] / "docs" / "export.md"


class Normed(nnx.Module):
    """`[b, 28, 28, 1]` to ten logits, with running statistics."""

    def __init__(self, *, rngs):
        self.hidden, self.norm = nnx.Linear(784, 16, rngs=rngs), nnx.BatchNorm(16, rngs=rngs)
        self.logits = nnx.Linear(16, 10, rngs=rngs)

    def __call__(self, images):
        return self.logits(nnx.relu(self.norm(self.hidden(images.reshape(images.shape[0], -1) / 255))))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A job, its state, the file that its model was exported to, and what is read from it."""
    job, state = train_briefly(custom=Custom(model=Normed))
    path = tmp_path_factory.mktemp("trained") / "model.zip"
    export_model(job.task, state, path, examples=EXAMPLES, metadata=METADATA)
    return job, state, path, load_exported(path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_figures_of_the_state_and_any_batch_size(trained):
    job, state, _, exported = trained
    ours = evaluate(job, job.strategy.place_state(state), "test")
    found = evaluate_exported(exported, load_data("digits").test)
    assert (found["examples"], found["accuracy"]) == (360, ours["accuracy"])
    assert found["loss"] == pytest.approx(ours["loss"], abs=1e-6)
    wanted = jax.nn.softmax(job.task.model_with(state.params, state.model_state)(IMAGES))
    for n in (7, EXAMPLES_PER_CALL + 1):
        np.testing.assert_allclose(exported.outputs(IMAGES[:n])["probabilities"], wanted[:n], atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("bfloat16", 2e-2)])  # 8 bits of mantissa
def test_other_precisions(folder, dtype, tolerance):
    """float64 stays float64 also if JAX isn't set to it. bfloat16 has parameters and an answer in float32."""
    with jax.enable_x64(dtype == "float64"):
        task = Task(build(points.Net, dtype=dtype), optax.identity(), dtype=dtype)
        expected, state = np.asarray(task.model(points.DATA.test.inputs), np.float64), create_state(task)
    export_model(task, state, "model.zip", examples=points.DATA.test, metadata={})
    exported = load_exported("model.zip")
    logits = exported.outputs(points.DATA.test.inputs)["logits"]
    wide = np.float64 if dtype == "float64" else np.float32
    assert {logits.dtype, *(array.dtype for array in exported.arrays.values())} == {np.dtype(wide)}
    np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerance)


def test_the_file_is_as_the_page_says(trained, folder):
    job, state, path, _ = trained
    files = unpack(path)
    metadata = json.loads(files["metadata.json"])
    assert metadata["input"] == {"dtype": "uint8", "shape": ["batch", 28, 28, 1]}
    assert (metadata["labels"], metadata["jax"]) == ([*"0123456789"], jax.__version__)
    arrays = [f"arrays/{name}.npy" for name in metadata["arrays"]]
    assert sorted(files) == sorted(["metadata.json", "model.jax", "loss.jax", *arrays])
    named = re.findall(r"^\| `([\w.*/]+)`", PAGE.read_text(), re.MULTILINE)
    assert named == ["metadata.json", "model.jax", "loss.jax", "arrays/*.npy", "view.json"]
    assert len(files["model.jax"]) < 20_000, "the parameters belong into the arrays, not into the program"
    assert os.path.dirname(export.__file__).encode() not in path.read_bytes(), "folders are nobody's business"
    export_model(job.task, state, "again.zip", examples=Split(IMAGES[1:], LABELS[1:]), metadata=METADATA)
    assert (folder / "again.zip").read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_readable_with_jax_and_numpy_alone(trained):
    """The code of the page, word for word, if our package and the model's library can't be imported."""
    _, _, path, exported = trained
    np.save(path.parent / "images.npy", IMAGES[:5])
    start = "import sys; sys.modules.update(dict.fromkeys(('pmapdp', 'flax', 'orbax', 'optax')))  # none is imported\n"
    start += "import numpy as np; images = np.load('images.npy')\n"
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    end = "np.savez('outputs.npz', **outputs); print(' '.join(classes))"
    command = [sys.executable, "-c", start + code + end]
    run = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    ours = exported.outputs(IMAGES[:5])
    with np.load(path.parent / "outputs.npz") as theirs:
        for name, expected in ours.items():
            np.testing.assert_allclose(theirs[name], expected, atol=1e-6)
    assert run.stdout.split() == ["0123456789"[number] for number in ours["logits"].argmax(-1)]


# The command


def test_the_command_says_what_was_measured_and_when(folder, monkeypatch):
    """The newest checkpoint is taken away, so the one before is of update 6, in the middle of an epoch."""
    data = DataSet(points.DATA.train, validation=points.DATA.test)
    settings = {"strategy": "single", "devices": 1, "epochs": 2, "global_batch_size": 25, "checkpoint_every": 3}
    points.run(own={"data": data}, **settings, workdir="run")
    for read, arguments in ((export_run, ("run", "x.zip")), (evaluate_run, ("run",))):
        call = f"import {read.__name__}; {read.__name__}({', '.join(map(repr, arguments))}, data=...)"
        with pytest.raises(UserError, match=re.escape(call)):
            read(*arguments, model=points.Net)
    last = export_run("run", "model.zip", model=points.Net, data=data)
    shutil.rmtree("run/checkpoints/8")
    before = export_run("run", "model.zip", model=points.Net, data=data)
    unmeasured = last | {"metrics": {}, "measured": {}}
    for metadata, sentence in (
        (last, "\nvalidation loss"),
        (before, "\nno metrics: validation was measured after update 4\n"),
        (unmeasured, "\nno metrics: the run has no test or validation data"),
    ):
        assert metadata["dataset"] == "arrays"
        # A command can't be given Python values.
        monkeypatch.setattr(export, "export_run", lambda *_, metadata=metadata, **__: metadata)
        assert sentence in entry.run_command("export", "run", "model.zip").out


def test_a_diverged_model_is_not_exported(trained, folder):
    job, state, *_ = trained
    layer = next(iter(state.params))
    kernel = np.full_like(state.params[layer]["kernel"], 3e38)
    state = dataclasses.replace(state, params=state.params | {layer: state.params[layer] | {"kernel": kernel}})
    with pytest.raises(UserError, match="answers with nan"):
        export_model(job.task, state, "model.zip", examples=EXAMPLES, metadata=METADATA)
    assert os.listdir() == []


# Files that are not as we wrote them


def refused(content: bytes) -> str:
    """The sentence about a file with this content, which takes little memory."""
    Path("bad.zip").write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError) as caught:
        load_exported("bad.zip").outputs(IMAGES[:1])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB
    return str(caught.value)


@given(position=st.floats(0, 1, exclude_max=True), bit=st.none() | st.integers(0, 7), in_table=st.booleans())
@settings(deadline=None, max_examples=40)
def test_any_cut_and_any_flipped_bit(trained, tmp_path_factory, position, bit, in_table):
    """Either it is found, or it carried nothing, for example a date."""
    content, original = trained[2].read_bytes(), trained[3]
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


def claims(shape: str) -> bytes:
    """A .npy file with the header of an array of floats, and nothing behind it."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


KERNEL = "arrays/hidden/kernel.npy"
FORGED = {
    "an array is missing": ({KERNEL: None}, "There is no item named"),
    "an array is cut short": ({KERNEL: npy(np.zeros((784, 16), np.float32))[:-1]}, "EOF: reading"),
    "an array is pickled": ({KERNEL: npy(np.array([{}]))}, "Object arrays cannot be loaded"),
    "an array claims 4 TB": ({KERNEL: claims(f"({10**12},)")}, "is damaged, or is no exported model"),
    "a header is a program": ({KERNEL: claims("__import__('os').mkdir('hacked')")}, "is damaged"),
    "the metadata is no JSON": ({"metadata.json": b"[" * 10_000}, "maximum recursion depth"),
    "the program is none": ({"model.jax": b"\x10" * 1000}, "cannot read"),
    "the loss is missing": ({"loss.jax": None}, "There is no item named 'loss.jax'"),
    "an older format": ({"metadata.json": b'{"format": "pmapdp model 1"}'}, "'pmapdp model 1', not"),
    "NaN": ({KERNEL: npy(np.full((784, 16), np.nan, np.float32))}, "answers with nan"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_forged(trained, folder, name):
    """Checksums that fit, and content that does not."""
    changes, sentence = FORGED[name]
    files = unpack(trained[2]) | changes
    assert sentence in refused(pack({name: content for name, content in files.items() if content is not None}))
    assert os.listdir() == ["bad.zip"]


def test_a_few_bytes_that_unpack_to_gigabytes(folder):
    """By compression, and by a table that names the same bytes 3,000 times."""
    packed = zipfile.ZipFile("packed.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with packed, packed.open("metadata.json", "w") as file:
        for _ in range(310):
            file.write(bytes(2**20))
    with zipfile.ZipFile("often.zip", "w") as archive:
        archive.writestr("metadata.json", bytes(2**20))
        archive.filelist *= 3000
    for name in ("packed.zip", "often.zip"):
        assert "(it is compressed, or not as long as it says)" in refused((folder / name).read_bytes())


@pytest.mark.parametrize("inputs", [np.zeros((2, 3)), IMAGES[:2].astype(np.float32), {"a": IMAGES[:1]}])
def test_other_inputs_are_one_sentence(trained, inputs):
    with pytest.raises(UserError, match=r"^the model takes .*'shape': \['batch', 28, 28, 1\]}, and not .*: give"):
        trained[3].outputs(inputs)
