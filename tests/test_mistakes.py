"""Promise 7: a common mistake gets one sentence, with the value given and one that
works, and exit status 2.

Every row is a command and words of its sentence. To add a mistake, add a row; its files
are made by `folder`.
"""

import os

import entry
import numpy as np
import pytest

MODELS = """
from flax import nnx

class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(6, 3, rngs=rngs)
    def __call__(self, x):
        return self.out(x)

class NoRngs(nnx.Module):
    def __init__(self):
        pass

class Narrow(Net):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(5, 3, rngs=rngs)

class OneNumber(Net):
    def __call__(self, x):
        return self.out(x)[:, 0]

class OverTheBatch(Net):
    def __call__(self, x):
        return self.out(x - x.mean(0))

class Fails(Net):
    def __call__(self, x):
        return self.out(x).reshape(7, 7)

net = Net(rngs=nnx.Rngs(0))

def rate(step):
    return "high"

def falling(step):
    return 0.1 / (1 + step)

def data():
    return 5

def optimizer(schedule):
    return 3
"""
GENERATOR = np.random.default_rng(0)
INPUTS = GENERATOR.normal(size=(40, 6)).astype(np.float32)
LABELS = (np.arange(40) % 3).astype(np.int32)
RIGHT = {
    "train_inputs": INPUTS,
    "train_labels": LABELS,
    "test_inputs": INPUTS[:9],
    "test_labels": LABELS[:9],
}
DATA = {
    "right": {},
    "no_labels": {"train_labels": None},
    "lengths": {"train_labels": LABELS[:39]},
    "widths": {"test_inputs": INPUTS[:9, :5]},
    "negative": {"train_labels": LABELS - 1},
    "too_many": {"train_labels": LABELS + 8},
    "empty": {"train_inputs": INPUTS[:0], "train_labels": LABELS[:0]},
    "nan": {"train_inputs": INPUTS * np.nan},
    "texts": {"train_inputs": INPUTS.astype(str)},
    "objects": {"train_inputs": INPUTS.astype(object)},
    "weights": {"train_weights": np.zeros(40)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the commands run."""
    path = tmp_path_factory.mktemp("mistakes")
    for name, changes in DATA.items():
        arrays = {
            key: array for key, array in (RIGHT | changes).items() if array is not None
        }
        np.savez(path / f"{name}.npz", **arrays)
    (path / "nets.py").write_text(MODELS)
    (path / "broken.py").write_text("def x(:\n")
    (path / "raises.py").write_text("\n1 / 0\n")
    (path / "text.npz").write_text("hello")
    (path / "photos").mkdir()
    (path / "others").mkdir()
    (path / "others" / "metrics.jsonl").write_text("mine")
    return path


def yours(*arguments):
    """Training a model and data of yours, which are right but for `arguments`."""
    small = [
        "--devices",
        2,
        "--global-batch-size",
        10,
        "--no-compile-cache",
        "--no-progress",
    ]
    return [
        "train",
        "--model",
        "nets.py:Net",
        "--dataset",
        "right.npz",
        *small,
        *arguments,
    ]


MISTAKES = [
    # names: the nearest one that exists
    (["train", "--strategy", "pmapp"], ["'pmapp'", "'pmap'", "shard_map"]),
    (["train", "--lr", "0.1"], ["'--lr'", "did you mean '--learning-rate'?"]),
    (["train", "--bs=8"], ["'--bs'", "did you mean '--global-batch-size'?"]),
    (["train", "--batch-size", "8"], ["did you mean '--global-batch-size'?"]),
    (["train", "--gpus", "4"], ["'--gpus'", "did you mean '--devices'?"]),
    (["evaluate", "run", "--gpus", "4"], ["did you mean '--devices'?"]),
    (["train", "--max-steps", "9"], ["did you mean '--steps'?"]),
    (["train", "--checkpoint-dir", "x"], ["did you mean '--workdir'?"]),
    # no name is like these
    (["train", "--momentum", "0.9"], ["argument '--momentum': choose from --dataset"]),
    (["train", "--dropout", "0.5"], ["argument '--dropout': choose from --dataset"]),
    (["train", "jit"], ["jit is no recipe", "--strategy jit"]),
    (["train", "digit"], ["'digit'", "'digits'", "keras-guide"]),
    (["train", "--dataset", "mnits"], ["'mnits'", "'mnist'", "fashion-mnist", ".npz"]),
    (["train", "--model", "convnett"], ["'convnett'", "'convnet'", "mlp", ".py:"]),
    (["train", "--optimizer", "adma"], ["'adma'", "'adam'", "my_file.py:make"]),
    (["train", "--optimizer", "sgdd"], ["'sgdd'", "'sgd'", "my_file.py:make"]),
    (["train", "--schedule", "cosin"], ["'cosin'", "'cosine'", "my_file.py:rate"]),
    (["train", "--dtype", "float16"], ["'float16'", "bfloat16"]),
    (["train", "--learning-rat", "0.1"], ["--learning-rat", "--learning-rate"]),
    (["train", "--trainable", "head"], ["'head'", "logits"]),
    (
        ["train", "--layout", "wide", "--strategy", "jit"],
        ["'wide'", "data", "model", "spatial"],
    ),
    # numbers
    (["train", "--devices", "0"], ["--devices 0", "at least 1", "8"]),
    (["train", "--devices", "two"], ["--devices", "'two'", "whole number", "8"]),
    (["train", "--devices"], ["--devices", "one argument"]),
    (
        ["train", "--global-batch-size", "0"],
        ["--global-batch-size 0", "at least 1", "64"],
    ),
    (["train", "--epochs", "0"], ["--epochs 0", "at least 1", "10"]),
    (["train", "--epochs", "1.5"], ["--epochs", "'1.5'", "whole number"]),
    (["train", "--steps", "-5"], ["--steps -5", "at least 1", "100"]),
    (["train", "--accumulate", "0"], ["--accumulate 0", "at least 1", "2"]),
    (["train", "--learning-rate", "nan"], ["--learning-rate nan", "finite", "0.001"]),
    (
        ["train", "--learning-rate", "-0.1"],
        ["--learning-rate -0.1", "at least 0", "0.001"],
    ),
    (
        ["train", "--learning-rate", "fast"],
        ["--learning-rate", "'fast'", "number", "0.001"],
    ),
    (["train", "--label-smoothing", "1"], ["--label-smoothing 1", "0.1"]),
    (["train", "--seed", "-1"], ["--seed -1", "at least 0"]),
    (["train", "--patience", "0"], ["--patience 0", "at least 1"]),
    (["train", "--best", "highest"], ["'highest'", "highest:accuracy"]),
    (
        ["train", "--schedule", "piecewise", "--switch-epochs", "x"],
        ["--switch-epochs", "'x'"],
    ),
    # settings that do not go together
    (["train", "--steps", "5", "digits", "mnist"], ["mnist"]),
    (
        ["train", "--global-batch-size", "64", "--per-device-batch-size", "8"],
        ["64", "8", "one of them"],
    ),
    (
        ["train", "--strategy", "single", "--devices", "4"],
        ["4", "--devices 1", "--strategy pmap"],
    ),
    (["train", "--schedule", "piecewise"], ["--switch-epochs 3 7"]),
    (["train", "--switch-epochs", "3"], ["--schedule piecewise"]),
    (["train", "--weight-decay", "0.1"], ["0.1", "adamw"]),
    (
        ["train", "--switch-factor", "0.5"],
        ["--switch-factor 0.5", "--schedule piecewise", "--switch-factor 0.1"],
    ),
    (
        ["train", "--base-batch-size", "256"],
        ["256", "--scale-learning-rate linear", "--base-batch-size 64"],
    ),
    (["train", "--checkpoint-every", "5"], ["--checkpoint-every", "--workdir"]),
    (["train", "--mesh", "data=2,model=2"], ["data=2,model=2", "--strategy jit"]),
    (
        ["train", "--shard-state", "parameters", "--strategy", "pmap"],
        ["parameters", "--strategy jit"],
    ),
    # the machine and the data
    (["train", "--devices", "9"], ["9", "8"]),
    (["train", "--global-batch-size", "1438"], ["1438", "1437"]),
    (["train", "--per-device-batch-size", "180"], ["180", "1437", "179"]),
    (["train", "--accumulate", "65"], ["65", "64"]),
    (["train", "--dataset", "reviews"], ["featurizer", "texts", "--model transformer"]),
    (["train", "--model", "text_mlp"], ["images", "texts", "--model convnet"]),
    (
        ["train", "dtensor-data", "--data-dir", "nowhere"],
        ["nowhere", "aclImdb_v1.tar.gz", "reviews"],
    ),
    (["train", "--dataset", "mnist", "--data-dir", "nowhere"], ["nowhere", "digits"]),
    # your files of data
    (
        yours("--dataset", "missing.npz"),
        ["missing.npz", "No such file", "train_inputs"],
    ),
    (yours("--dataset", "text.npz"), ["text.npz", "numpy.savez"]),
    (yours("--dataset", "no_labels.npz"), ["no_labels.npz", "train_labels"]),
    (yours("--dataset", "lengths.npz"), ["40", "39"]),
    (yours("--dataset", "widths.npz"), ["6", "5", "test"]),
    (yours("--dataset", "negative.npz"), ["-1", "0 to 2"]),
    (yours("--dataset", "too_many.npz"), ["10", "3 logits", "0 to 2"]),
    (yours("--dataset", "empty.npz"), ["[0, 6]", "at least one"]),
    (yours("--dataset", "nan.npz"), ["training inputs", "finite"]),
    (yours("--dataset", "texts.npz"), ["<U32", "numbers"]),
    (yours("--dataset", "objects.npz"), ["objects.npz", "Object arrays"]),
    (yours("--dataset", "weights.npz"), ["weights", "above 0"]),
    (yours("--dataset", "nets.py:data"), ["5", "data"]),
    (yours("--dataset", "photos/"), ["photos", "class"]),
    # your model, optimizer and schedule
    (yours("--model", "missing.py:Net"), ["missing.py", "my_file.py:Net"]),
    (yours("--model", "nets.py"), ["'nets.py'", "my_file.py:Net"]),
    (yours("--model", "nets.py:Nett"), ["'Nett'", "Net"]),
    (yours("--model", "broken.py:Net"), ["broken.py", "line 1"]),
    (yours("--model", "raises.py:Net"), ["raises.py", "ZeroDivisionError"]),
    (yours("--model", "nets.py:NoRngs"), ["NoRngs", "rngs"]),
    (yours("--model", "nets.py:net"), ["a Net that is built already", "model=Net"]),
    (yours("--model", "nets.py:Narrow"), ["Narrow", "(6,)", "(5,)"]),
    (yours("--model", "nets.py:OneNumber"), ["OneNumber", "[n, C]"]),
    (
        yours("--model", "nets.py:OverTheBatch"),
        ["OverTheBatch", "sum over the examples"],
    ),
    (yours("--model", "nets.py:Fails"), ["Fails", "(7, 7)"]),
    (yours("--schedule", "nets.py:rate"), ["high", "step"]),
    (
        yours("--schedule", "nets.py:falling", "--warmup-steps", "5"),
        ["--warmup-steps 5", "no effect", "--warmup-steps 0"],
    ),
    (
        yours("--schedule", "nets.py:falling", "--learning-rate", "0.1"),
        ["--learning-rate 0.1", "no effect", "--learning-rate 0.005"],
    ),
    (
        yours("--optimizer", "nets.py:optimizer", "--weight-decay", "0.1"),
        ["--weight-decay 0.1", "no effect", "--weight-decay 0.0"],
    ),
    (yours("--optimizer", "nets.py:optimizer"), ["optax"]),
    (yours("--best", "lowest:error"), ["lowest:error", "lowest:loss"]),
    # files and folders of a run
    (
        yours("--metrics-file", "nowhere/m.jsonl"),
        ["nowhere/m.jsonl", "No such file", "folder"],
    ),
    (yours("--metrics-file", "."), ["--metrics-file .", "Is a directory"]),
    (yours("--workdir", "nets.py"), ["nets.py", "--workdir"]),
    (yours("--workdir", ""), ["--workdir"]),
    (yours("--workdir", "others"), ["others", "metrics.jsonl"]),
    (yours("--init-from", "nowhere"), ["nowhere", "--workdir"]),
    # the other commands
    (["evaluate", "nowhere"], ["nowhere", "--workdir"]),
    (["evaluate"], ["pmapdp.evaluate", "runs/first"]),
    (["export", "nowhere", "model.zip"], ["nowhere", "--workdir"]),
    (["predict", "nowhere.zip", "x.npy"], ["nowhere.zip", "pmapdp.export"]),
    (["predict", "right.npz", "x.npy"], ["right.npz", "pmapdp.export"]),
    (["compare", "--devices", "0"], ["--devices 0", "8"]),
    (["compare", "--strategies", "pmapp"], ["'pmapp'", "'pmap'"]),
    (["compare", "--steps", "1"], ["single update", "time"]),
    (["compare", "old.py:program"], ["old.py:program", "alone"]),
    (["compare", "digits", "mnist"], ["mnist", "old.py:program new.py:program"]),
    (["compare", "--json", "both", "--html", "both"], ["/both", "name two files"]),
    (
        ["compare", "--html", "/proc/nowhere/page.html"],
        ["/proc/nowhere/page.html", "cannot be written"],
    ),
    (["verify", "nowhere.py:step"], ["nowhere.py", ".py"]),
    (["verify", "nets.py:step"], ["'step'", "Net"]),
    (["verify", "nets.py"], ["nets.py", "name a function of it", "nets.py:step"]),
    (["port", "nowhere.py"], ["nowhere.py", "such as ."]),
    (["scaling", "--devices", "8"], ["--devices", "pmapdp.scaling.predict"]),
]


def require_sentence(done, words):
    """One line on standard error.

    Before it only the traceback of an error of your code.
    """
    assert done.status == 2, done
    *before, sentence = done.err.splitlines()
    assert sentence.startswith("error: ")
    assert [word for word in words if word not in sentence] == [], sentence
    assert not before or before[0] == "Traceback (most recent call last):"


def files_in(folder):
    """Python itself caches what it compiled of `nets.py`, at a time of its own
    choice.
    """
    return sorted(set(os.listdir(folder)) - {"__pycache__"})


@pytest.mark.parametrize(
    ("command", "words"),
    MISTAKES,
    ids=lambda value: " ".join(map(str, value[:1] + value[-2:])),
)
def test_a_common_mistake_gets_one_sentence(command, words, folder, monkeypatch):
    monkeypatch.chdir(folder)
    entry.stay_in_this_process(monkeypatch)
    before = files_in(folder)
    require_sentence(entry.run_command(*command), words)
    assert files_in(folder) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["--model", "nets.py:Narrow"], ["Narrow"]),
        (["--seed", 1], ["seed", "0", "1", "another folder"]),
        (["--global-batch-size", 20], ["10", "20", "another folder"]),
        (["--optimizer", "sgd"], ["adam", "sgd", "another folder"]),
        (["--label-smoothing", 0.2], ["0.1", "0.2", "another folder"]),
    ],
)
def test_a_run_that_does_not_fit_its_folder_gets_one_sentence(
    changes, words, folder, monkeypatch
):
    monkeypatch.chdir(folder)
    if not (folder / "run").exists():
        assert entry.run_command(*yours("--workdir", "run", "--steps", 3)).status == 0
    require_sentence(entry.run_command(*yours("--workdir", "run", *changes)), words)


def test_a_loss_that_is_not_finite_stops_training_with_status_3(folder, monkeypatch):
    monkeypatch.chdir(folder)
    done = entry.run_command(
        *yours(
            "--learning-rate", "1e38", "--optimizer", "sgd", "--schedule", "constant"
        )
    )
    assert done.status == 3, done
    assert "--learning-rate" in done.err


def test_the_advice_works(folder, monkeypatch):
    """Commands that some of the sentences suggest run."""
    monkeypatch.chdir(folder)
    for advice in (
        ["--global-batch-size", 40],
        ["--accumulate", 10],
        ["--best", "lowest:loss"],
    ):
        done = entry.run_command(*yours(*advice, "--steps", 1))
        assert done.status == 0, done.err


def test_from_outside_it_is_the_same():
    """A process of its own, without the tests' way into it."""
    from launch import train

    done = train("--strategy", "pmapp")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: unknown strategy 'pmapp'")
    assert done.stderr.count("\n") == 1
