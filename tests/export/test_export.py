import json
import os
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest
from archives import pack, unpack
from marks import quick
from trained import train_briefly

from pmapdp import cli
from pmapdp.config import Config
from pmapdp.data.dataset import Split
from pmapdp.errors import UserError
from pmapdp.evaluate.evaluation import evaluate_exported
from pmapdp.export import __main__ as export
from pmapdp.export import write
from pmapdp.export.read import EXAMPLES_PER_CALL, load_exported
from pmapdp.export.write import export_model
from pmapdp.registry import MODELS
from pmapdp.run.workdir import lock_workdir
from pmapdp.state import Task, build, create_state
from pmapdp.train import evaluate, train

METADATA = {"labels": "0123456789", "dataset": "digits"}


def train_and_export(model, folder):
    """A job, its state and the file that its model was exported to."""
    job, state = train_briefly(model=model)
    export_model(job.task, state, folder / "model.zip", examples=job.data.test, metadata=METADATA)
    return job, state, folder / "model.zip"


@pytest.fixture(scope="module")
def convnet(tmp_path_factory):
    return train_and_export("convnet", tmp_path_factory.mktemp("convnet"))


@pytest.fixture(
    scope="module", params=["mlp", *(pytest.param(each, marks=pytest.mark.slow) for each in ("convnet", "cnn"))]
)
def trained(request, tmp_path_factory):
    """As `convnet`, for each model."""
    if request.param == "convnet":
        return request.getfixturevalue("convnet")
    return train_and_export(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def small(convnet):
    """The file of the smallest model."""
    return convnet[2]


def test_same_figures_as_the_state(trained):
    job, state, path = trained
    ours = evaluate(job, job.strategy.place_state(state), "test")
    exported = evaluate_exported(load_exported(path), job.data.test)
    assert exported["examples"] == ours["examples"] == 360
    assert exported["accuracy"] == ours["accuracy"]
    assert exported["loss"] == pytest.approx(ours["loss"], abs=1e-6)


@quick(1, "examples", [7, EXAMPLES_PER_CALL + 1])
def test_any_batch_size(trained, examples):
    job, state, path = trained
    inputs = job.data.train.inputs[:examples]
    model = job.task.model_with(state.params, state.model_state)
    probabilities = load_exported(path).outputs(inputs)["probabilities"]
    np.testing.assert_allclose(probabilities, jax.nn.softmax(model(inputs)), atol=1e-5)
    assert probabilities.shape == (examples, 10)


def test_float64(tmp_path):
    """float64 stays float64, also where JAX is not set to it."""
    task = Task(build(MODELS["cnn"], dtype="float64"), optax.identity(), dtype="float64")
    inputs = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1), np.uint8)
    with jax.enable_x64(True):
        state = create_state(task)
        model = task.model_with(state.params, state.model_state)
        expected = jax.device_get(model(inputs))
    examples = Split(inputs, np.zeros(3, np.int32))
    export_model(task, state, tmp_path / "model.zip", examples=examples, metadata=METADATA)
    logits = load_exported(tmp_path / "model.zip").outputs(inputs)["logits"]
    assert logits.dtype == np.float64
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-12)


def test_bfloat16(tmp_path):
    """Parameters are exported as they are trained, in float32; the answer is float32."""
    task = Task(build(MODELS["cnn"], dtype="bfloat16"), optax.identity(), dtype="bfloat16")
    state = create_state(task)
    inputs = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1), np.uint8)
    examples = Split(inputs, np.zeros(3, np.int32))
    export_model(task, state, tmp_path / "model.zip", examples=examples, metadata=METADATA)
    exported = load_exported(tmp_path / "model.zip")
    assert {array.dtype for array in exported.arrays.values()} == {np.dtype(np.float32)}
    expected = task.model_with(state.params, state.model_state)(inputs)
    logits = exported.outputs(inputs)["logits"]
    assert logits.dtype == np.float32
    # 8 bits of mantissa: compiled as a whole and layer by layer differ in the third digit.
    np.testing.assert_allclose(logits, np.asarray(expected, np.float32), atol=2e-2)


def documented_code() -> str:
    """The example in the documentation of the file."""
    lines = write.__doc__.splitlines()
    start = lines.index("    import json")
    end = next(number for number, line in enumerate(lines) if line.startswith("    classes ="))
    return "\n".join(line.removeprefix("    ") for line in lines[start : end + 1])


@pytest.mark.slow
def test_readable_with_jax_and_numpy_alone(convnet):
    """The code in the documentation, word for word, where our package and the model's library cannot be imported."""
    job, _, path = convnet
    np.save(path.parent / "images.npy", job.data.test.inputs[:5])
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
    ours = load_exported(path).outputs(job.data.test.inputs[:5])
    with np.load(path.parent / "outputs.npz") as theirs:
        for name, expected in ours.items():
            np.testing.assert_allclose(theirs[name], expected, atol=1e-6)
    assert run.stdout.split() == ["0123456789"[number] for number in ours["logits"].argmax(-1)]


def test_what_is_in_the_file(small):
    files = unpack(small)
    metadata = json.loads(files["metadata.json"])
    assert metadata["input"] == {"dtype": "uint8", "shape": ["batch", 28, 28, 1]}
    assert metadata["labels"] == list("0123456789")
    assert metadata["jax"] == jax.__version__
    assert metadata["parameters"] == 49_210
    assert load_exported(small).model.platforms == ("cpu", "cuda", "tpu") == tuple(metadata["platforms"])
    assert sorted(files) == sorted(
        ["metadata.json", "model.jax", "loss.jax", *(f"arrays/{name}.npy" for name in metadata["arrays"])]
    )
    assert len(files["model.jax"]) < 20_000, "the parameters belong into the arrays, not into the program"
    folder = os.path.dirname(write.__file__).encode()
    assert folder not in small.read_bytes(), "the folders of the machine that exported are nobody's business"


def test_same_model_same_bytes(convnet, tmp_path):
    job, state, path = convnet
    export_model(job.task, state, tmp_path / "again.zip", examples=job.data.train, metadata=METADATA)
    assert (tmp_path / "again.zip").read_bytes() == path.read_bytes()


def test_cut_short(small, tmp_path):
    whole, part = small.read_bytes(), tmp_path / "part.zip"
    for length in [0, 1, 2, 30, 1000, len(whole) // 2, len(whole) - 30, len(whole) - 1]:
        part.write_bytes(whole[:length])
        with pytest.raises(UserError, match="is damaged, or is no exported model"):
            load_exported(part)


def test_altered(small, tmp_path):
    """Any byte: either it is found, or it carried nothing (a date, for example)."""
    whole, altered = small.read_bytes(), tmp_path / "altered.zip"
    original = load_exported(small)
    generator, found = np.random.default_rng(0), 0
    ends = np.arange(len(whole) - 3_000, len(whole))  # the zip's own table
    for position in [*generator.choice(len(whole), 100, replace=False), *generator.choice(ends, 300, replace=False)]:
        changed = bytearray(whole)
        changed[position] ^= 1 << generator.integers(8)
        altered.write_bytes(changed)
        try:
            again = load_exported(altered)
        except UserError:
            found += 1
            continue
        assert again.metadata == original.metadata
        assert again.model.mlir_module_serialized == original.model.mlir_module_serialized
        for name, array in original.arrays.items():
            np.testing.assert_array_equal(again.arrays[name], array)
    assert found > 200


def test_not_ours(small, tmp_path):
    """Another file; a zip of somebody else; one of ours without the network."""
    path, ours = tmp_path / "other.zip", unpack(small)
    ours.pop("model.jax")
    for content in (b"\x89PNG\r\n\x1a\n", pack({"readme.txt": b"hello"}), pack(ours)):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"is no exported model .*: name a file made with python -m pmapdp\.export"):
            load_exported(path)
    with pytest.raises(UserError, match="No such file"):
        load_exported(tmp_path / "missing.zip")
    with pytest.raises(UserError, match="it is a folder"):
        load_exported(tmp_path)


def test_other_versions(small, tmp_path):
    """Of the format, and of JAX."""
    files = unpack(small)
    newer = json.loads(files["metadata.json"]) | {"format": "pmapdp model 99"}
    (tmp_path / "newer.zip").write_bytes(pack(files | {"metadata.json": json.dumps(newer).encode()}))
    with pytest.raises(
        UserError, match=r"its format is 'pmapdp model 99', not 'pmapdp model 2'\): .* export the model again"
    ):
        load_exported(tmp_path / "newer.zip")
    program = files["model.jax"].replace(b"ML\xefR", b"ML\xefX")  # not MLIR bytecode as JAX knows it
    (tmp_path / "old.zip").write_bytes(pack(files | {"model.jax": program}))
    with pytest.raises(UserError, match=f"was exported with jax {jax.__version__}.*cannot read"):
        load_exported(tmp_path / "old.zip")


def test_command(tmp_path, capsys):
    run, path = str(tmp_path / "run"), str(tmp_path / "model.zip")
    settings = {"strategy": "single", "devices": 1, "epochs": 1, "model": "mlp"}
    result = train(Config(**settings, workdir=run, progress=False, compile_cache=False)).epochs[-1]
    capsys.readouterr()
    assert cli.run(export.main, [run, path]) == 0
    assert f"{path}: mlp after 23 updates, " in capsys.readouterr().out
    metadata = load_exported(path).metadata
    assert metadata["metrics"] == {"test": result["test"]}
    assert metadata["dataset"] == "digits"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: WORKDIR, FILE"),
        (
            ["runs/first"],
            "the following arguments are required: FILE: try python -m pmapdp.export runs/first model.zip",
        ),
        (["a", "b", "c"], "unrecognized arguments: c: try python -m pmapdp.export"),
        (["a", "b", "--forse"], "unknown argument '--forse'"),
        (["nowhere", "model.zip"], "nowhere holds no run"),
    ],
)
def test_mistakes(arguments, sentence, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.run(export.main, arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_workdir_without_checkpoint(tmp_path, capsys):
    with lock_workdir(str(tmp_path / "run"), Config(), 64):
        pass
    assert cli.run(export.main, [str(tmp_path / "run"), str(tmp_path / "model.zip")]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "model.zip").exists()
