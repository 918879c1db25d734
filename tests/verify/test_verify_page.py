"""The code of docs/verify.md runs, with small programs in the place of the reader's."""

import re
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pmapdp.verify import old_program, verify

PAGE = Path(__file__).parents[2] / "docs" / "verify.md"
FIRST, OWN, TEST = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
RANDOM = np.random.default_rng(0)
BATCH = {"x": RANDOM.normal(size=(16, 3)).astype(np.float32), "y": RANDOM.normal(size=16).astype(np.float32)}


def loss(w, batch, keep=1.0):
    return (keep * (batch["x"] @ w - batch["y"]) ** 2).mean()


def test_the_first_program_and_that_of_a_test(monkeypatch, capsys):
    body = "    metrics, grads = jax.value_and_grad(lambda params: loss(params['w'], batch))(state.params)\n"
    assert FIRST.count("    ...\n") == 1
    state = TrainState.create(apply_fn=None, params={"w": jnp.ones(3)}, tx=optax.sgd(0.1))
    page = {"state": state, "batch": BATCH, "loss": loss}
    exec(FIRST.replace("    ...\n", body), page)
    assert page["report"].ok
    assert str(page["report"]) in capsys.readouterr().out

    module = types.ModuleType("my_project.train")
    vars(module).update(state=state, batch=BATCH, step=page["step"])
    monkeypatch.setitem(sys.modules, "my_project", types.ModuleType("my_project"))
    monkeypatch.setitem(sys.modules, "my_project.train", module)
    test: dict = {}
    exec(TEST, test)
    test["test_the_step_equals_one_device"]()


@pytest.mark.slow
def test_what_each_device_has_of_its_own():
    def step(state, batch):
        key, own = jax.random.split(state["dropout_rng"])
        keep = jax.random.bernoulli(own, 0.5, batch["y"].shape)
        gradient = lax.pmean(jax.grad(loss)(state["w"], batch, keep), "batch")
        statistics = 0.9 * state["batch_stats"] + 0.1 * batch["x"].mean(0)
        return {"w": state["w"] - 0.1 * gradient, "dropout_rng": key, "batch_stats": statistics}

    owned = {"w": P(), "dropout_rng": P("batch"), "batch_stats": P("batch")}

    def on_a_device(state, batch):
        new = step({name: leaf if name == "w" else leaf[0] for name, leaf in state.items()}, batch)
        return {name: leaf if name == "w" else leaf[None] for name, leaf in new.items()}

    mesh = Mesh(np.array(jax.devices()), ("batch",))
    ported = jax.jit(
        jax.shard_map(on_a_device, mesh=mesh, in_specs=(owned, P("batch")), out_specs=owned, check_vma=False)
    )
    state = {
        "w": jnp.ones(3),
        "dropout_rng": jax.random.split(jax.random.PRNGKey(3), 8),
        "batch_stats": jnp.zeros((8, 3)),
    }
    names = {"verify": verify, "old_program": old_program, "step": step, "ported": ported}
    exec(OWN, names | {"state": state, "batch": BATCH})
