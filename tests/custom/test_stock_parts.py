"""Parts of Flax as people combine them train, resume, evaluate and export; modules of Linen come through the bridge."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from marks import quick
from points import DATA, run

from pmapdp.errors import UserError
from pmapdp.evaluate.evaluation import evaluate_exported, evaluate_run
from pmapdp.export.read import load_exported
from pmapdp.export.write import export_run
from pmapdp.state import Task, build, create_state


class Everything(nnx.Module):
    """`[b, 6]` to three logits, through one of each."""

    def __init__(self, *, rngs):
        self.embed = nnx.Embed(4, 8, rngs=rngs)
        self.lstm = nnx.RNN(nnx.LSTMCell(8, 8, rngs=rngs))
        self.gru = nnx.RNN(nnx.GRUCell(8, 8, rngs=rngs), rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, dropout_rate=0.2, decode=False, rngs=rngs)
        self.frozen = nnx.BatchNorm(8, use_running_average=True, rngs=rngs)
        self.norm = nnx.WeightNorm(nnx.Linear(8, 8, rngs=rngs), rngs=rngs)
        self.nothing = nnx.Dropout(0.0, rngs=rngs)
        self.adapted = nnx.LoRALinear(8, 8, lora_rank=2, rngs=rngs)
        self.first = nnx.Linear(8, 8, rngs=rngs)
        self.tied = nnx.Linear(8, 8, rngs=rngs)
        self.tied.kernel = self.first.kernel
        self.out = nnx.Linear(8, 3, rngs=rngs)
        self.rngs = rngs

    def __call__(self, x):
        tokens = (x > 0).astype(jnp.int32) + 2 * (x > 1).astype(jnp.int32)
        h = self.gru(self.lstm(self.embed(tokens)))
        h = self.frozen(self.attention(h)).mean(1)
        h = nnx.relu(self.adapted(self.nothing(self.norm(h))))
        return self.out(self.tied(nnx.tanh(self.first(h))))


class LinenNet(linen.Module):
    """`[b, 6]` to three logits, as a program before NNX has it."""

    middle: Any = None

    @linen.compact
    def __call__(self, x):
        x = linen.RNN(linen.LSTMCell(8))(x[..., None])[:, -1]
        return linen.Dense(3)(x if self.middle is None else self.middle(x))


def bridged(module):
    """What builds a module of Linen as one of NNX."""

    def build(*, rngs):
        return nnx.bridge.lazy_init(nnx.bridge.ToNNX(module, rngs=rngs), jnp.ones((1, 6)))

    return build


@quick(0, "model", [Everything, bridged(LinenNet())], by_day=1)
def test_it_trains_resumes_evaluates_and_exports(tmp_path, model):
    """Stopped and resumed on three devices, it is what one device makes, within rounding."""
    workdir, file = str(tmp_path / "run"), tmp_path / "model.zip"
    alone = run(model, strategy="single", devices=1)
    run(model, workdir=workdir, devices=3, steps=2)
    found = run(model, workdir=workdir, devices=3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found.state.params, alone.state.params)
    loss = pytest.approx(found.epochs[-1]["test"]["loss"], rel=1e-5)
    assert evaluate_run(workdir, model=model, data=DATA)[0]["loss"] == loss
    export_run(workdir, file, model=model, data=DATA)
    assert evaluate_exported(load_exported(file), DATA.test)["loss"] == loss


def test_shared_weights_are_one_parameter():
    params = create_state(Task(build(Everything))).params
    assert ("kernel" in params["first"]) + ("kernel" in params["tied"]) == 1


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (bridged(LinenNet(linen.Dropout(0.5, deterministic=False))), "ToNNX draws random numbers from .* in training"),
        (lambda rngs: nnx.bridge.ToNNX(LinenNet(), rngs=rngs), "ToNNX does not take inputs"),
        (LinenNet, "is a module of Linen: give a function that makes it one of NNX, .*flax.nnx.bridge.ToNNX"),
        (LinenNet(), "is a module of Linen: give a function"),
    ],
    ids=["dropout", "no variables", "class", "instance"],
)
def test_modules_of_linen_that_are_refused(model, sentence):
    with pytest.raises(UserError, match=sentence):
        run(model)
