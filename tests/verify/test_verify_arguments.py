"""Arguments of `verify` that cannot be used: one sentence with the value given, why not, and one that works."""

import numpy as np
import pytest
from right_programs import HALVED, halved

from pmapdp.verify import ArgumentsError, verify


def with_key(state, batch, key):
    return halved(state, batch)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either step, for all devices, or make_step"),
        ({"step": halved, "counts": [9000]}, r"counts=\[9000\]: give a list of numbers from 1 to"),
        ({"step": halved, "counts": 4}, "counts=4: give a list of numbers from 1 to"),
        ({"step": halved, "devices": 4}, "devices=4: give a list of devices, for example"),
        ({"step": halved, "updates": 0}, "updates=0: give a whole number from 1 to 1000, for example 3"),
        ({"step": halved, "updates": 2**70}, "updates=.*: give a whole number"),
        ({"step": halved, "float64": np.ones(2)}, "float64=.*: give True or False"),
        *(
            ({"step": halved, "batch_axis": axis}, "batch_axis=.*: give a whole number from 0")
            for axis in (None, 1.0, -1, "0", True, np.ones(2))
        ),
        *(
            ({"step": halved, name: array}, f"{name}=.* holds no arrays: give")
            for name in ("state", "batch", "last_batch")
            for array in (2**70, np.zeros(3, "i4,f4"), np.ma.array([1]), np.ones(2, np.longdouble), np.array([None]))
        ),
        ({"step": halved, "updates": 2.5}, "updates=2.5: give a whole number"),
        ({"step": halved, "reference": None}, "reference=None cannot be called: give a function of"),
        ({"step": "halved"}, "step='halved' cannot be called: give a function of"),
        ({"step": halved, "state": {"name": "net"}}, r"state\['name'\]='net' holds no arrays: give the state as"),
        ({"step": halved, "layout": 3}, "unknown layout 3: choose from stacked"),
        (
            {"step": halved, "reference": lambda w, batch: {"w": w}},
            "the reference returns a dict, in which there",
        ),
        (
            {"step": halved, "per_device": ["momentum"]},
            "there is no leaf 'momentum' among the value",
        ),
        ({"step": halved, "per_device": 3}, "per_device=3: give names of leaves"),
        ({"step": halved, "batch_axis": 1}, "give arrays whose axis 1 is that of the examples, as batch_axis=1 says"),
        (
            {"step": halved, "state": np.ones((8, 3)), "reference": lambda w, b: halved(w[:3, 0] * w.reshape(3), b)},
            "as if it were replicated: give state=jax.tree.map",
        ),
        (
            {"step": halved, "state": np.full(3, np.nan, np.float32)},
            "update 1 of the reference returns NaN in the state",
        ),
        ({"step": halved, "layout": "staked"}, "unknown layout 'staked': choose from stacked"),
        ({"step": halved, "batch": {"x": np.ones((8, 3)), "y": np.ones(4)}}, "x \\[8, 3\\], y \\[4\\]"),
        (
            {"step": halved, "state": None},
            "state=None holds no arrays: give the state as one device has it",
        ),
        ({"step": halved, "state": "weights.npz"}, "state='weights.npz' holds no arrays: give the state"),
        ({"step": halved, "state": ["w", "b"]}, r"state\[0\]='w' holds no arrays: give the state"),
        ({"step": halved, "state": halved}, "state=<function .* holds no arrays: give the state"),
        (
            {"step": halved, "batch": None},
            "takes .state, batch., and verify has state for it: give batch=, the examples",
        ),
        ({"step": halved, "batch": [np.ones((8, 3)), "y"]}, r"batch\[1\]='y' holds no arrays: give arrays that start"),
        ({"step": halved, "batch": lambda update: None}, "batch=None holds no arrays"),
        ({"step": halved, "batch": 3.0}, r"batch holds the value itself \[\]: give arrays that start"),
        ({"step": halved, "last_batch": "last"}, "last_batch='last' holds no arrays: give arrays that start"),
        ({"step": halved, "key": 3}, r"key=3 holds no key: give jax.random.key\(0\), or a function"),
        ({"step": halved, "key": "a"}, "key='a' holds no key: give jax.random.key"),
        ({"step": halved, "key": np.ones(2, np.float32)}, r"key=array\(.* holds no key: give jax.random.key"),
        ({"step": halved, "key": lambda update: update}, "key=0 holds no key: give jax.random.key"),
        (
            {"step": halved, "key": np.zeros(2, np.uint32)},
            "takes .state, batch., and verify has state, batch, key for it: leave key out",
        ),
        (
            {"step": halved, "reference": with_key},
            "takes .state, batch, key., and verify has state, batch for it: give key=jax.random.key",
        ),
        (
            {"step": halved, "reference": lambda state, batch, rng, rate: state, "key": np.zeros(2, np.uint32)},
            "a function around it that gives the rest, lambda state, batch, key: step",
        ),
        (
            {"step": halved, "layout": "stack"},
            "unknown layout 'stack': choose from stacked, replicated, sharded",
        ),
        ({"step": halved, "devices": 0}, r"devices=0: give a list of devices, for example jax.devices\(\)\[:4\]"),
        ({"step": halved, "devices": []}, r"devices=\[\]: give a list of devices"),
        ({"make_step": 3}, "make_step=3 cannot be called: give a function of the devices that returns the step"),
        ({"make_step": lambda devices: None}, r"make_step\(devices\)=None cannot be called: return a function of"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, message):
    with pytest.raises(ArgumentsError, match=message) as caught:
        verify(**{"reference": halved, **HALVED, **arguments})
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_an_error_of_the_reference_stays_the_users():
    with pytest.raises(KeyError, match="absent"):
        verify(reference=lambda state, batch: (state, batch["absent"]), step=halved, **HALVED)
    # Of the orders of the arguments, that which gives the key to the parameter of that name.
    key = np.zeros(2, np.uint32)
    with pytest.raises(KeyError, match="absent"):
        verify(reference=lambda batch, rng, state: (state, batch["absent"]), step=halved, **HALVED, key=key)
