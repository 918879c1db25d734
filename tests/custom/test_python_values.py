"""Values of every kind for each argument of `train` from Python: a result, or a sentence that names the argument."""

import contextlib
import dataclasses
import decimal
import fractions
import itertools
import json
from pathlib import Path

import flax.nnx
import jax
import numpy as np
import pytest

from pmapdp.config import Config
from pmapdp.data.dataset import DataSet, Split
from pmapdp.devices import choose, simulate
from pmapdp.errors import UserError
from pmapdp.evaluate.evaluation import evaluate_exported
from pmapdp.export.read import load_exported
from pmapdp.export.write import export_model
from pmapdp.job import prepare
from pmapdp.port.read import read_program
from pmapdp.registry import load_data
from pmapdp.run.trained import load_run, load_state
from pmapdp.train import train


class Silent:
    """An object that cannot even be shown."""

    def __repr__(self):
        raise ValueError("no")


class Net(flax.nnx.Module):
    """`[b, 6]` to three logits."""

    def __init__(self, *, rngs):
        self.out = flax.nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, inputs, context):
        return self.out(inputs)


SPLIT = Split(np.ones((40, 6), np.float32), np.zeros(40, np.int32))
RIGHT = {
    "config": Config(devices=2, epochs=1, global_batch_size=20, progress=False, compile_cache=False),
    "model": Net,
    "data": DataSet(SPLIT, SPLIT),
    "loss": None,
    "metrics": None,
    "optimizer": None,
    "schedule": None,
    "trainable": None,
    "after_epoch": None,
    "peers": None,
}
# Made when a test asks for them: JAX must not start before.
VALUES = {
    "0": lambda: 0,
    "5": lambda: 5,
    "nan": lambda: float("nan"),
    "text": lambda: "mlp",
    "empty text": lambda: "",
    "bytes": lambda: b"x",
    "empty dictionary": lambda: {},
    "dictionary": lambda: {"a": 1},
    "empty tuple": lambda: (),
    "tuple": lambda: (SPLIT, SPLIT),
    "list": lambda: [SPLIT],
    "array": lambda: np.ones(3),
    "array of JAX": lambda: jax.numpy.ones(3),
    "module": lambda: np,
    "object": lambda: object(),
    "silent": lambda: Silent(),
    "class int": lambda: int,
    "class dict": lambda: dict,
    "class Silent": lambda: Silent,
    "function of nothing": lambda: lambda: None,
    "function that gives None": lambda: lambda *_, **__: None,
    "instance of a model": lambda: Net(rngs=flax.nnx.Rngs(0)),
    "split": lambda: SPLIT,
    "data set of nothing": lambda: DataSet(None, None),
    "data set of tuples": lambda: DataSet((1, 2), (3, 4)),
    "generator": lambda: (each for each in ()),
    "exception": lambda: ValueError("x"),
}


# Any function may be called after an epoch and fail in its own way; no names of trained parts stand for all.
FUNCTIONS = (
    "class int",
    "class dict",
    "class Silent",
    "function of nothing",
    "function that gives None",
    "instance of a model",
)
TAKEN = {("trainable", "empty tuple"), *(("after_epoch", name) for name in FUNCTIONS)}


@pytest.mark.parametrize(("argument", "name"), [case for case in itertools.product(RIGHT, VALUES) if case not in TAKEN])
def test_a_value_of_another_kind_is_one_sentence(argument, name):
    with pytest.raises(UserError) as caught:
        train(**RIGHT | {argument: VALUES[name]()})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


NUMBERS = [2**63, 2**70, 10**400, 10**5000, float("inf"), 1e-320, 1j, decimal.Decimal(8), fractions.Fraction(1, 2)]
NUMBERS += [np.int64(8), np.float32(0.5), np.bool_(True), np.array(8), np.array([]), True, "8", "a\nb", Path("x")]


def test_settings_of_another_kind_are_one_sentence():
    """Of every kind for every setting: a configuration that JSON can keep, or a sentence."""
    for setting, value in itertools.product(vars(Config()), [*NUMBERS, *(make() for make in VALUES.values())]):
        with contextlib.suppress(UserError):
            json.dumps(dataclasses.asdict(Config(**{setting: value})))


class NoPath:
    """As a path of somebody else's, which fails."""

    def __fspath__(self):
        raise ValueError("no")


@pytest.mark.parametrize("value", [NoPath(), "a\nb", "x" * 10**6])
def test_settings_of_any_text_are_one_line(value):
    for setting in vars(Config()):
        said = ""
        try:
            Config(**{setting: value})
        except UserError as error:
            said = str(error)
        assert "\n" not in said
        assert len(said) < 600


@pytest.mark.parametrize("settings", [{"recipe": "abc"}, {"recipe": "mirrored"}, {"recipe": "mirrored", "devices": 2}])
def test_a_recipe_is_not_chosen_by_its_name_alone(settings):
    with pytest.raises(
        UserError, match=r"unknown recipe 'abc'|'mirrored' alone chooses no settings: give pmapdp\.recip"
    ):
        train(Config(**settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adamw", "clip_norm": 2**40, "weight_decay": 2**40},
        {"schedule": "piecewise", "switch_epochs": (1,), "switch_factor": 2**40},
    ],
)
def test_whole_numbers_beyond_32_bits_are_real_numbers_too(settings):
    config = dataclasses.replace(RIGHT["config"], steps=1, **settings)
    assert train(**RIGHT | {"config": config}).state.step == 1


class Name(str):
    """A text that shows itself as another, or cannot."""

    __hash__ = str.__hash__

    def __repr__(self):
        raise ValueError("no")

    __str__ = __eq__ = __repr__


OTHERS = {
    "prepare": lambda value: prepare(RIGHT["config"], value),
    "simulate": simulate,
    "choose": choose,
    "evaluate_exported": lambda value: evaluate_exported(value, SPLIT),
    "export_model": lambda value: export_model(None, value, "x.zip", examples=SPLIT, metadata={}),
    "load_state": lambda value: load_state("nowhere", None, best=value),
    "load_run": load_run,
    "load_exported": load_exported,
    "load_data": lambda value: load_data("mnist", value),
    "read": read_program,
}


class NoName:
    """As a path of somebody else's, which is none."""

    def __fspath__(self):
        return b"x"


@pytest.mark.parametrize("function", OTHERS)
@pytest.mark.parametrize("value", [3.5, object(), Silent(), [1], b"x", np.ones(3), NoPath(), NoName(), Name("x")])
def test_other_functions_refuse_what_is_of_another_kind(function, value):
    with pytest.raises(UserError, match=r" is no .*: give "):
        OTHERS[function](value)


def test_a_program_whose_name_is_too_long():
    with pytest.raises(UserError, match=r"File name too long|there is no file"):
        read_program("x" * 300)


class Number(int):
    __repr__ = __str__ = __bool__ = __eq__ = Name.__repr__


def test_settings_of_a_subclass_become_plain_values():
    """The enums of a program among them, which Python 3.11 formats by their own names."""
    config = Config(strategy=Name("jit"), devices=Number(2), learning_rate=np.float64(1), trainable=[Name("out")])
    assert config == Config(strategy="jit", devices=2, learning_rate=1.0, trainable=("out",))
    assert {type(config.strategy), type(config.trainable[0]), type(config.learning_rate)} == {str, float}
    with pytest.raises(UserError, match="unknown strategy 'jot'"):
        Config(strategy=Name("jot"))


@pytest.mark.parametrize("name", ["workdir", "init_from", "mesh", "data_dir", "metrics_file"])
def test_an_empty_text_is_not_taken_for_none(name):
    with pytest.raises(UserError, match=f"--{name.replace('_', '-')} '' is empty: leave it out"):
        Config(**{name: ""})


@pytest.mark.parametrize("path", ["a\nb\x1b[31m", "x" * 100_000])
@pytest.mark.parametrize("setting", ["model", "dataset", "init_from", "workdir"])
def test_a_path_of_any_text_is_told_in_one_line(path, setting):
    """Names of files as the system takes them, however long."""
    ending = {"model": ".py:Net", "dataset": ".npz"}.get(setting, "\0")
    config = dataclasses.replace(RIGHT["config"], **{setting: path + ending})
    with pytest.raises(UserError) as caught:
        train(**{name: value for name, value in RIGHT.items() if name not in ("model", "data")} | {"config": config})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 10_100


def test_a_start_from_a_name_that_is_too_long_is_one_sentence():
    with pytest.raises(UserError, match=r"cannot be read \(File name too long"):
        train(**RIGHT | {"config": dataclasses.replace(RIGHT["config"], init_from="x" * 300)})


def test_the_right_values_train():
    assert train(**RIGHT).epochs[-1]["test_examples"] == 40
