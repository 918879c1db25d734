"""The programs to copy on compare's page run as they are, and give one result."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pmapdp.collectives import collectives
from pmapdp.compare.page import load_data
from pmapdp.steps import STRATEGIES

TO_COPY = load_data("to_copy.toml")


def loss(params, batch):
    """Return the sum of squared errors, and the number of examples that aren't padding.

    Without padding the number is a Python int.
    """
    hidden = jnp.tanh(batch["x"] @ params["W1"])
    errors = jnp.square(hidden @ params["W2"] - batch["y"])
    if "weight" not in batch:
        return errors.sum(), len(errors)
    return (batch["weight"] * errors).sum(), batch["weight"].sum()


def run_program(name, padding=0):
    """Run a program on batches of 16, the last rows padding, and return its names."""
    random = np.random.default_rng(0)
    x = random.normal(size=(3, 16, 6))
    batches = [{"x": rows, "y": np.sin(rows.sum(1))} for rows in x]
    if padding:
        weight = (np.arange(16) < 16 - padding).astype(float)
        batches = [{"weight": weight, **batch} for batch in batches]
    names = {
        "loss": loss,
        "optimizer": optax.adam(1e-2),
        "params": {"W1": random.normal(size=(6, 5)), "W2": random.normal(size=5)},
        "batches": batches,
    }
    with jax.enable_x64(True):
        names["params"] = jax.tree.map(jnp.asarray, names["params"])
        exec(TO_COPY[name], names)
    return names


def test_there_is_a_program_for_each_strategy():
    assert set(TO_COPY) == set(STRATEGIES)


def squared_errors(params, batch):
    """Return the sum of squared errors of one weight vector, and their number."""
    x, y = batch
    errors = jnp.square(x @ params["w"] - y)
    return errors.sum(), len(errors)


def train_one_leaf(name):
    """Train one weight vector with SGD on pairs of arrays, and return the weights.

    SGD's state has no leaves, so a step has as many leaves as a step of three
    arguments: pmap would then take `in_axes` leaf by leaf, without an error.
    """
    random = np.random.default_rng(0)
    x = random.normal(size=(3, 64, 5))
    names = {
        "loss": squared_errors,
        "optimizer": optax.sgd(0.1),
        "batches": [(rows, np.sin(rows.sum(1))) for rows in x],
    }
    with jax.enable_x64(True):
        names["params"] = {"w": jnp.asarray(random.normal(size=5))}
        exec(TO_COPY[name], names)
    params, _ = names["carry"]
    return params["w"]


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "single"])
def test_a_program_to_copy_equals_single_s_with_one_weight_and_sgd(name):
    np.testing.assert_allclose(
        train_one_leaf(name), train_one_leaf("single"), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_program_to_copy_compiles_its_step_once(name, caplog):
    """Its first update gets weights and state placed as the second one's are."""
    with jax.log_compiles():
        run_program(name)
    messages = [record.getMessage() for record in caplog.records]
    # pmap calls the step of all devices _fun.
    step = r"Compiling jit\((train_step|_fun)\)"
    assert len([text for text in messages if re.match(step, text)]) == 1


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "single"])
def test_a_program_to_copy_equals_single_s(name, padding):
    """Also if two devices have nothing but padding, and a third has one row of it."""
    single = run_program("single", padding)
    program = run_program(name, padding)
    for result in ("carry", "value"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12),
            program[result],
            single[result],
        )
    assert len(jax.tree.leaves(program["carry"])[0].sharding.device_set) == 8


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_program_to_copy_writes_the_new_carry_over_the_old_one(name):
    names = run_program(name)
    arguments = (names["carry"], names["batch"])
    with jax.enable_x64(True):
        program = names["train_step"].lower(*arguments).compile()
    plan = program.memory_analysis()
    carry = sum(leaf.nbytes for leaf in jax.tree.leaves(names["carry"]))
    assert plan.alias_size_in_bytes >= carry


def test_the_jitted_one_has_an_all_reduce_of_the_compiler():
    names = run_program("jit")
    arguments = (names["carry"], names["batch"])
    with jax.enable_x64(True):
        program = names["train_step"].lower(*arguments).compile()
    assert "all-reduce" in [row.kind for row in collectives(program.as_text())]
