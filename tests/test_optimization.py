"""Schedules, update rules, smoothing and precision, against values worked out by hand
or in NumPy.
"""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import quick

from pmapdp import devices
from pmapdp.config import Config
from pmapdp.data.batches import Batch, Batches
from pmapdp.data.digits import load
from pmapdp.loss import metric_sums
from pmapdp.optimizer import make_optimizer, make_schedule
from pmapdp.recipes import RECIPES
from pmapdp.registry import MODELS
from pmapdp.state import Task, build, create_state
from pmapdp.steps import STRATEGIES


def rates(steps, *, batch=64, per_epoch=10, total=100, **settings) -> list[float]:
    config = Config(**{"learning_rate": 0.1, "schedule": "constant"} | settings)
    schedule = make_schedule(config, batch, per_epoch, total)
    return [float(schedule(step)) for step in steps]


def cosine(part):
    return 0.1 * (1 + math.cos(math.pi * part)) / 2


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {0: 0.1, 50: 0.1, 99: 0.1}),
        (
            {
                "schedule": "piecewise",
                "switch_epochs": (3, 7),
            },  # at the start of an epoch
            {0: 0.1, 29: 0.1, 30: 0.01, 69: 0.01, 70: 0.001, 99: 0.001},
        ),
        ({"schedule": "piecewise", "switch_epochs": (3, 2**31 - 1)}, {30: 0.01}),
        (
            {"schedule": "cosine"},
            {0: cosine(0), 25: cosine(0.25), 50: cosine(0.5), 100: 0},
        ),
        # A warm-up rises linearly, and the schedule keeps its place.
        (
            {"warmup_steps": 10, "schedule": "piecewise", "switch_epochs": (3,)},
            {0: 0, 5: 0.05, 10: 0.1, 29: 0.1, 30: 0.01},
        ),
        ({"warmup_steps": 10, "schedule": "cosine"}, {10: 0.1, 55: 0.05, 100: 0}),
    ],
)
def test_schedules(settings, expected):
    assert rates(expected, **settings) == pytest.approx(
        list(expected.values()), abs=1e-8
    )


def test_scaling_rules():
    assert rates([0], batch=512, scale_learning_rate="linear") == pytest.approx([0.8])
    assert rates([0], batch=256, scale_learning_rate="sqrt") == pytest.approx([0.2])
    assert rates(
        [0], batch=256, scale_learning_rate="linear", base_batch_size=128
    ) == pytest.approx([0.2])


def one_update(gradient, parameter=1.0, **settings):
    config = Config(**settings)
    optimizer = make_optimizer(config, lambda step: 0.1)
    params = {"w": jnp.full(len(gradient), parameter)}
    updates, _ = optimizer.update(
        {"w": jnp.asarray(gradient)}, optimizer.init(params), params
    )
    return np.asarray(params["w"] + updates["w"])


def test_update_rules():
    np.testing.assert_allclose(one_update([2.0], optimizer="sgd"), [0.8], rtol=1e-6)
    np.testing.assert_allclose(
        one_update([2.0], optimizer="momentum"), [0.8], rtol=1e-6
    )
    # Adam's first step is the learning rate, whatever the gradient; decoupled decay
    # adds 0.1 * 0.5 * 1.
    np.testing.assert_allclose(one_update([2.0], optimizer="adam"), [0.9], rtol=1e-6)
    np.testing.assert_allclose(
        one_update([2.0], optimizer="adamw", weight_decay=0.5), [0.85], rtol=1e-6
    )


def test_clipping_scales_the_whole_gradient():
    np.testing.assert_allclose(
        one_update([3.0, 4.0], optimizer="sgd", clip_norm=1.0), [0.94, 0.92], rtol=1e-6
    )
    np.testing.assert_allclose(
        one_update([3.0, 4.0], optimizer="sgd", clip_norm=9.0), [0.7, 0.6], rtol=1e-6
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_equals_numpy(smoothing):
    random = np.random.default_rng(0)
    logits = random.normal(size=(5, 10)).astype(np.float32)
    labels = random.integers(0, 10, 5)
    weights = np.array([1, 1, 0, 1, 1], np.float32)
    sums = metric_sums(
        jnp.asarray(logits),
        Batch(None, jnp.asarray(labels), None, jnp.asarray(weights)),
        smoothing,
    )
    log_p = logits.astype(np.float64) - np.log(
        np.exp(logits.astype(np.float64)).sum(-1, keepdims=True)
    )
    target = np.eye(10)[labels] * (1 - smoothing) + smoothing / 10
    np.testing.assert_allclose(
        sums.loss, (weights * -(target * log_p).sum(-1)).sum(), rtol=1e-5
    )
    assert sums.correct == (weights * (logits.argmax(-1) == labels)).sum()
    assert sums.count == 4


@quick(1, "strategy", ["pmap", "jit"])
def test_bfloat16_computes_in_it_and_reduces_in_float32(strategy):
    config = dataclasses.replace(RECIPES["digits"].config, dtype="bfloat16")
    task = Task(
        build(MODELS["cnn"], dtype="bfloat16"),
        make_optimizer(config, lambda step: 0.1),
        dtype="bfloat16",
    )
    steps = STRATEGIES[strategy](task, devices.choose_devices(8))
    state = steps.place_state(create_state(task))
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {
        jnp.dtype("float32")
    }
    batch = steps.place_batch(next(Batches(load().train, 64, devices=8).epoch(0)))
    # What is asked of XLA: the CPU's compiler may well compute bfloat16 in float32.
    lowered = steps.train_step.lower(state, batch)
    assert "bf16" in lowered.as_text()
    compiled = lowered.compile().as_text()
    (reduced,) = re.findall(r"= (\(.*\)|\S+) all-reduce(?:-start)?\(", compiled)
    assert "bf16" not in reduced
    alone = ("f32[5408,64]", "f32[64,5408]")
    in_one_vector = f"f32[{347_146 + 3}]"
    assert any(shape in reduced for shape in (*alone, in_one_vector))
    state, _ = steps.train_step(state, batch)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {
        jnp.dtype("float32")
    }
