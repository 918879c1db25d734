"""`pmapdp.export`: a model in one file gives the figures of its run, and any other file
is refused.
"""

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
import small_job
from archives import npy, pack, unpack
from jax._src.export.serialization_generated import Exported
from trained import train_briefly

from pmapdp import export
from pmapdp.data.dataset import DataSet
from pmapdp.data.tokens import Tokens
from pmapdp.errors import UserError
from pmapdp.evaluate import evaluate_exported, evaluate_run
from pmapdp.export import export_model, export_run, load_exported
from pmapdp.job import CustomParts
from pmapdp.run.saved_run import load_weights
from pmapdp.state import Task, build, create_state
from pmapdp.train import evaluate

METADATA = {"labels": "abc", "dataset": "arrays"}
EXAMPLES = points.points(257, 0)
INPUTS = EXAMPLES.inputs
PAGE = Path(__file__).parents[2] / "docs" / "export.md"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A job of a model with running statistics, its state, the file of the model, and
    what is read from it.
    """
    job, state = train_briefly(
        custom=CustomParts(model=small_job.Net, data=points.DATA)
    )
    path = tmp_path_factory.mktemp("trained") / "model.zip"
    export_model(job.task, state, path, examples=EXAMPLES, metadata=METADATA)
    return job, state, path, load_exported(path)


def test_the_figures_of_the_state_and_any_batch_size(trained):
    job, state, _, exported = trained
    ours = evaluate(job, job.strategy.place_state(state), "test")
    found = evaluate_exported(exported, points.DATA.test)
    assert (found["examples"], found["accuracy"]) == (40, ours["accuracy"])
    assert found["loss"] == pytest.approx(ours["loss"], abs=1e-6)
    wanted = jax.nn.softmax(
        job.task.merge_arrays(state.params, state.model_state)(INPUTS)
    )
    for n in (7, 257):
        np.testing.assert_allclose(
            exported.outputs(INPUTS[:n])["probabilities"], wanted[:n], atol=1e-5
        )


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-12), ("bfloat16", 2e-2)]
)  # 8 bits of mantissa
def test_other_precisions(folder, dtype, tolerance):
    """float64 stays float64 also if JAX isn't set to it. bfloat16 has parameters and an
    answer in float32.
    """
    with jax.enable_x64(dtype == "float64"):
        task = Task(build(points.Net, dtype=dtype), optax.identity(), dtype=dtype)
        expected = np.asarray(task.model(points.DATA.test.inputs), np.float64)
        state = create_state(task)
    export_model(task, state, "model.zip", examples=points.DATA.test, metadata={})
    exported = load_exported("model.zip")
    logits = exported.outputs(points.DATA.test.inputs)["logits"]
    wide = np.float64 if dtype == "float64" else np.float32
    assert {logits.dtype, *(array.dtype for array in exported.arrays.values())} == {
        np.dtype(wide)
    }
    np.testing.assert_allclose(logits, expected, rtol=0, atol=tolerance)


def test_the_file_is_as_the_page_says(trained, folder):
    job, state, path, _ = trained
    files = unpack(path)
    metadata = json.loads(files["metadata.json"])
    assert metadata["input"] == {"dtype": "float32", "shape": ["batch", 6]}
    assert (metadata["labels"], metadata["jax"]) == ([*"abc"], jax.__version__)
    arrays = [f"arrays/{name}.npy" for name in metadata["arrays"]]
    assert sorted(files) == sorted(["metadata.json", "model.jax", "loss.jax", *arrays])
    named = re.findall(r"^\| `([\w.*/]+)`", PAGE.read_text(), re.MULTILINE)
    assert named == [
        "metadata.json",
        "model.jax",
        "loss.jax",
        "arrays/*.npy",
        "view.json",
    ]
    assert os.path.dirname(export.__file__).encode() not in path.read_bytes(), (
        "folders are nobody's business"
    )
    export_model(
        job.task,
        state,
        "again.zip",
        examples=EXAMPLES.select(np.arange(1, 9)),
        metadata=METADATA,
    )
    assert (folder / "again.zip").read_bytes() == path.read_bytes()


def test_readable_with_jax_and_numpy_alone(trained):
    """The code of the page, with this model's inputs as images, if our package and the
    model's library can't be imported.
    """
    _, _, path, exported = trained
    np.save(path.parent / "images.npy", INPUTS[:5])
    start = "import sys\n"
    start += "absent = ('pmapdp', 'flax', 'orbax', 'optax')  # none is imported\n"
    start += "sys.modules.update(dict.fromkeys(absent))\n"
    (code,) = re.findall(r"```python\n(import json.*?)```", PAGE.read_text(), re.DOTALL)
    images = "np.zeros((3, 28, 28, 1), np.uint8)"
    assert code.count(images) == 1
    code = code.replace(images, "np.load('images.npy')")
    end = "np.savez('outputs.npz', **outputs); print(' '.join(classes))"
    command = [sys.executable, "-c", start + code + end]
    run = subprocess.run(
        command, cwd=path.parent, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    ours = exported.outputs(INPUTS[:5])
    with np.load(path.parent / "outputs.npz") as theirs:
        for name, expected in ours.items():
            np.testing.assert_allclose(theirs[name], expected, atol=1e-6)
    assert run.stdout.split() == ["abc"[number] for number in ours["logits"].argmax(-1)]


def test_a_text_becomes_numbers_as_the_page_says(folder):
    """Also a text that is too long, or has 128 words exactly."""
    texts = ["A wonderful film<br />don't miss it!", "What a bore? " * 50]
    tokens = Tokens.fit(texts)
    view = json.dumps(dataclasses.asdict(tokens)).encode()
    Path("texts.zip").write_bytes(pack({"view.json": view}))
    (code,) = re.findall(r"```python\n(import re\n.*?)```", PAGE.read_text(), re.DOTALL)
    names = {"json": json, "np": np}
    exec(code, names)
    texts += ["", "film " * 127 + "unheard-of", "film " * 126 + "unheard-of"]
    numbers = np.stack([names["tokenize"](text) for text in texts])
    np.testing.assert_array_equal(numbers, tokens(texts))
    assert names["inputs"].shape == (2, 128)


# The command


def test_the_command_says_what_was_measured_and_when(folder, monkeypatch):
    """The newest checkpoint is taken away, so the one before is of update 6, in the
    middle of an epoch.
    """
    data = DataSet(points.DATA.train, validation=points.DATA.test)
    settings = {
        "strategy": "single",
        "devices": 1,
        "epochs": 2,
        "global_batch_size": 25,
        "checkpoint_every": 3,
    }
    points.run(custom={"data": data}, **settings, workdir="run")
    for read, arguments in ((export_run, ("run", "x.zip")), (evaluate_run, ("run",))):
        values = ", ".join(map(repr, arguments))
        call = f"import {read.__name__}; {read.__name__}({values}, data=...)"
        with pytest.raises(UserError, match=re.escape(call)):
            read(*arguments, model=points.Net)
    last = export_run("run", "model.zip", model=points.Net, data=data)
    shutil.rmtree("run/checkpoints/8")
    before = export_run("run", "model.zip", model=points.Net, data=data)
    sentence = "\nno metrics: the run was not evaluated after this update\n"
    for metadata, words in (
        (last, r"\nvalidation loss [\d.]+ accuracy [\d.]+\n$"),
        (before, sentence),
    ):
        assert metadata["dataset"] == "arrays"
        # A command can't be given Python values.
        monkeypatch.setattr(
            export, "export_run", lambda *_, metadata=metadata, **__: metadata
        )
        assert re.search(words, entry.run_command("export", "run", "model.zip").out)


def test_a_diverged_model_is_not_exported(trained, folder):
    job, state, *_ = trained
    layer = next(iter(state.params))
    kernel = np.full_like(state.params[layer]["kernel"], 3e38)
    state = dataclasses.replace(
        state, params=state.params | {layer: state.params[layer] | {"kernel": kernel}}
    )
    with pytest.raises(UserError, match="answers with nan"):
        export_model(job.task, state, "model.zip", examples=EXAMPLES, metadata=METADATA)
    assert os.listdir() == []


# Files that are not as we wrote them: tests/test_properties.py cuts them anywhere, and
# alters any byte


def refused(content: bytes, *, read) -> str:
    """The message about a file with this content, which takes little memory."""
    Path("bad.zip").write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError) as caught:
        read("bad.zip")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kB
    return str(caught.value)


def ask(path: str) -> None:
    load_exported(path).outputs(INPUTS[:1])


def claims(shape: str) -> bytes:
    """A .npy file with the header of an array of floats, and nothing behind it."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


KERNEL = "arrays/hidden/kernel.npy"
NAN = npy(np.full((6, 8), np.nan, np.float32))
# What `--init-from` refuses too, which doesn't look at the program.
FORGED = {
    "an array is missing": ({KERNEL: None}, f"no '{KERNEL}'"),
    "an array is cut short": ({KERNEL: npy(np.zeros((6, 8), np.float32))[:-1]},
                              "EOF: reading"),
    "an array is pickled": ({KERNEL: npy(np.array([{}]))},
                            "Object arrays cannot be loaded"),
    "an array of texts": ({KERNEL: npy(np.array(["a"]))}, "hidden/kernel holds <U1"),
    "an array claims 4 TB": ({KERNEL: claims(f"({10**12},)")}, "bad.zip is damaged"),
    "a header is a program": ({KERNEL: claims("__import__('os').mkdir('hacked')")},
                              "bad.zip is damaged"),
    "the metadata is no JSON": ({"metadata.json": b"[" * 10_000},
                                "maximum recursion depth"),
    "the metadata is a list": ({"metadata.json": b"[]"}, "bad.zip is damaged"),
    "the metadata is missing": ({"metadata.json": None}, "no 'metadata.json'"),
    "an older format": ({"metadata.json": b'{"format": "pmapdp model 1"}'},
                        "'pmapdp model 1', not"),
    "the step is a text": ({"step": "ten"}, "step is 'ten'"),
    "the names of the arrays are a number": ({"arrays": 4}, "arrays is 4"),
}  # fmt: skip
FORGED_PROGRAMS = {
    "the program is none": ({"model.jax": b"\x10" * 1000}, "bad.zip is damaged"),
    "the loss is missing": ({"loss.jax": None}, "no 'loss.jax'"),
    "an array of another shape": ({KERNEL: npy(np.zeros((5, 8), np.float32))},
                                  "another array hidden/kernel"),
    "an array that the program lacks": ({"arrays": []}, "no 'hidden/kernel'"),
    "other inputs": ({"input": {"dtype": "uint8", "shape": ["batch", 6]}},
                     "other inputs"),
    "one label of three": ({"labels": ["a"]}, "3 classes"),
    "NaN in an array that the program uses": ({KERNEL: NAN}, "answers with nan"),
}  # fmt: skip


def forge(path: Path, changes: dict) -> bytes:
    """An exported file with other contents for some names in the zip, or values for
    some names in its metadata.
    """
    files = unpack(path)
    for name, change in changes.items():
        if name in files:
            files[name] = change
        else:
            metadata = json.loads(files["metadata.json"])
            files["metadata.json"] = json.dumps(metadata | {name: change}).encode()
    return pack({name: bytes_ for name, bytes_ in files.items() if bytes_ is not None})


@pytest.mark.parametrize("name", [*FORGED, *FORGED_PROGRAMS])
def test_forged(trained, folder, name):
    """Checksums that fit, and content that does not."""
    job, _, path, _ = trained
    changes, sentence = (FORGED | FORGED_PROGRAMS)[name]
    content = forge(path, changes)
    found = refused(content, read=ask)
    assert sentence in found
    if name in FORGED:
        sentences = refused(content, read=lambda path: load_weights(job.task, path))
        assert sentence in sentences
        assert "export it again, or name" in sentences
    assert os.listdir() == ["bad.zip"]


def test_another_version_of_jax(trained, folder):
    """The version is named only if it's another one."""
    broken = {"model.jax": b"\x10" * 1000}
    assert "jax 9.9.9" not in refused(forge(trained[2], broken), read=ask)
    content = forge(trained[2], broken | {"jax": "9.9.9"})
    assert f"exported with jax 9.9.9, which jax {jax.__version__} cannot" in refused(
        content, read=ask
    )


def test_jax_0_12_refuses_a_file_of_an_older_format(trained, folder, monkeypatch):
    """With the page's message, and not with the page's variable. A file from before
    November 2025 has its number of devices in 16 bits alone.
    """
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    setting = re.search(r"`JAX_(EXPORT_DESERIALIZE\w+)=1`", page)[1].lower()
    is_known = tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12)
    assert hasattr(jax.config, f"jax_{setting}") == is_known
    if is_known:
        monkeypatch.setattr(Exported, "NrDevices", lambda _: 0)
        monkeypatch.setattr(Exported, "NrDevicesShort", lambda _: 1)
        message = refused(trained[2].read_bytes(), read=ask)
        assert re.search(r"`(Exported being [^`]*)`", page)[1] in message
        jax.config.update(f"jax_{setting}", True)
        try:
            with pytest.warns(DeprecationWarning, match="6-month"):
                ask(trained[2])
        finally:
            jax.config.update(f"jax_{setting}", False)


def test_a_few_bytes_that_unpack_to_gigabytes(trained, folder):
    """By compression, and by a table that names the same bytes 3,000 times."""
    packed = zipfile.ZipFile("packed.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with packed, packed.open("metadata.json", "w") as file:
        for _ in range(310):
            file.write(bytes(2**20))
    with zipfile.ZipFile("often.zip", "w") as archive:
        archive.writestr("metadata.json", bytes(2**20))
        archive.filelist *= 3000
    for name in ("packed.zip", "often.zip"):
        for read in (ask, lambda path: load_weights(trained[0].task, path)):
            assert "(it is compressed, or not as long as it says)" in refused(
                (folder / name).read_bytes(), read=read
            )
