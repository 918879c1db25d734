"""Small programs, each of which needs a branch of `verify` that no other test takes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from steps import BATCH, MESH, W, alone, descend, loss_of, mean, on_pmap, total

from pmapdp.verify import old_program, one_device, verify
from pmapdp.verify.layouts import LAYOUTS, place_arguments

KEY = partial(jax.random.fold_in, jax.random.key(0))  # a key for each update


def flat(report):
    """A report in one line."""
    return " ".join(str(report).split())


# Wrong programs


def nearly(w, batch, average=alone, error=0.0):
    """Linear regression with a relative error of the update."""
    new, _ = descend(w, batch, average)
    return w + (1 + error) * (new - w)


def nearly_the_loss(w, batch, average=alone, error=0.0):
    """Linear regression with a relative error of the loss."""
    new, metrics = descend(w, batch, average)
    return new, {"loss": (1 + error) * metrics["loss"]}


def an_error_near_rounding():
    return {"reference": nearly, "step": on_pmap(nearly, error=3e-7)}


def errors_near_rounding_of_each_device():
    def step(w, batch):
        return nearly(w, batch, mean, error=1e-7 * (2 + lax.axis_index("i")))

    return {"reference": nearly, "step": jax.pmap(step, "i")}


def a_loss_near_rounding():
    step = on_pmap(nearly_the_loss, error=3e-7)
    return {"reference": nearly_the_loss, "step": step}


def a_metric_near_rounding():
    """Its error is about as large as the last device's, which has nothing to do with it."""

    def step(w, batch, average=alone, error=0.0):
        new, _ = descend(w, batch, average)
        return new, {"mean": (1 + error) * average(batch["z"].mean())}

    means = 1 + 1e-7 * (np.arange(8) - 3.5)  # of the devices
    batch = BATCH | {"z": np.repeat(means, 2)}
    return {"reference": step, "step": on_pmap(step, error=3.4e-7), "batch": batch}


def a_mean_over_sixteen():
    """Each device divides by 2, although the last batch has one example a device."""

    def step(w, batch):
        loss = lambda w: jnp.square(batch["x"] @ w - batch["y"]).sum() / 2
        return w - 0.1 * mean(jax.grad(loss)(w))

    last_batch = jax.tree.map(lambda rows: rows[:8], BATCH)
    reference = lambda w, batch: descend(w, batch)[0]
    return {
        "reference": reference,
        "step": jax.pmap(step, "i"),
        "last_batch": last_batch,
    }


def a_number_of_each_device():
    """The numbers' mean is correct, but a whole number isn't meant to be averaged."""

    def step(state, batch, is_parallel=True):
        number = state["number"] + 1
        if is_parallel:
            number += 2 * lax.axis_index("i") - 7
        average = mean if is_parallel else alone
        return {"w": descend(state["w"], batch, average)[0], "number": number}

    state = {"w": W, "number": np.int32(0)}
    reference = partial(step, is_parallel=False)
    return {"reference": reference, "step": jax.pmap(step, "i"), "state": state}


def the_loss_of_each_device():
    step = lambda w, batch: (descend(w, batch, mean)[0], {"loss": loss_of(w, batch)})
    return {"reference": descend, "step": jax.pmap(step, "i")}


def three_times_without_a_batch():
    step = lambda w, times=1: w - 0.1 * times * w
    mapped = jax.pmap(lambda w: step(mean(w), times=3), "i")
    return {"reference": step, "step": mapped, "batch": None}


def a_rate_of_each_device():
    """Without a batch, no device has examples of its own that could explain it."""

    def step(w, rate=0.1):
        return w - rate * w

    mapped = jax.pmap(lambda w: step(w, rate=0.1 * (1 + lax.axis_index("i"))), "i")
    return {"reference": step, "step": mapped, "batch": None}


def three_times_in_a_sharded_leaf():
    """The devices together hold one copy, so none of them has a result of its own."""

    def step(state, batch, times=1, average=alone):
        loss = times * average(loss_of(state["w"], batch))
        return {"w": state["w"], "losses": state["losses"] + loss}

    specs = {"w": P(), "losses": P("i")}
    mapped = jax.shard_map(
        partial(step, times=3, average=mean),
        mesh=MESH,
        in_specs=(specs, P("i")),
        out_specs=specs,
    )
    state = {"w": W, "losses": np.zeros(8, np.float32)}
    return {
        "reference": step,
        "step": jax.jit(mapped),
        "state": state,
        "layout": "sharded",
    }


def metrics_in_the_state():
    """As Flax's examples keep them: a leaf of the state has the name of a metric."""

    def step(state, batch, average=alone, count=1):
        w, metrics = descend(state["w"], batch, average)
        counted = state["metrics"]["loss"] + count
        return {"w": w, "metrics": {"loss": counted}}, metrics

    state = {"w": W, "metrics": {"loss": np.float32(0)}}
    return {"reference": step, "step": on_pmap(step, count=8), "state": state}


def a_device_that_counts_twice():
    def step(w, batch):
        weight = 1 + (lax.axis_index("i") == 0)
        return w - 0.1 * mean(weight * jax.grad(loss_of)(w, batch))

    reference = lambda w, batch: descend(w, batch)[0]
    return {"reference": reference, "step": jax.pmap(step, "i")}


def noise_that_no_example_has():
    """The noise is of the parameters, so on all devices the same, as it should be."""

    def step(w, batch, key, average=alone):
        noisy = w + 0.1 * jax.random.normal(key, w.shape)
        gradient = jax.grad(loss_of)(noisy, batch)
        return w - 0.1 * average(jnp.tanh(gradient))

    mapped = jax.pmap(partial(step, average=mean), "i")
    return {"reference": step, "step": mapped, "key": KEY}


def examples_left_out_by_another_key():
    """Each draws which examples it leaves out, and none of them is always left out."""

    def step(w, batch, key, seed=0):
        keep = jax.random.bernoulli(jax.random.fold_in(key, seed), 0.75, (16,))
        return w - 0.1 * jax.grad(loss_of)(w, batch, keep)

    jitted = jax.jit(partial(step, seed=1))
    return {"reference": step, "step": jitted, "key": KEY, "layout": "sharded"}


NO_MISTAKE = "None of the usual mistakes fits"
WRONG = [  # a program, the mistakes that fit, and what is said
    (an_error_near_rounding, [], NO_MISTAKE),
    (errors_near_rounding_of_each_device, [], NO_MISTAKE),
    (a_loss_near_rounding, [], NO_MISTAKE),
    (a_metric_near_rounding, [], NO_MISTAKE),
    (a_mean_over_sixteen, [], "from update 4 on, the only one with 8 examples"),
    (a_number_of_each_device, ["drift"], "number: the devices hold different values"),
    (
        the_loss_of_each_device,
        ["one device's metrics"],
        "metrics/loss: the devices hold different values",
    ),
    (three_times_without_a_batch, [], "the change is about 3 times"),
    (a_rate_of_each_device, ["drift"], "the devices hold different values, which"),
    (three_times_in_a_sharded_leaf, [], "losses: the change is about 3 times"),
    (metrics_in_the_state, [], "1 of 2 leaves differ"),
    (
        a_device_that_counts_twice,
        ["counted unequally"],
        "The examples at 0, 1 count 2 times as much as those at 2, 3, 4",
    ),
    (noise_that_no_example_has, [], NO_MISTAKE),
    (examples_left_out_by_another_key, [], NO_MISTAKE),
]


@pytest.mark.parametrize(("program", "mistakes", "said"), WRONG)
def test_a_wrong_program_gets_no_wrong_mistake(program, mistakes, said):
    report = verify(**{"state": W, "batch": BATCH} | program())
    assert report.failed, str(report)
    assert report.mistakes == mistakes, str(report)
    assert said in flat(report), str(report)


# Correct programs


def a_key_argument_of_each_device():
    """As pmap programs pass them: `[N]` keys, one row for each device."""

    def step(w, batch, key):
        keep = jax.random.bernoulli(key, 0.7, batch["y"].shape)
        return w - 0.1 * mean(jax.grad(loss_of)(w, batch, keep))

    return {
        "reference": old_program(step, "i", groups=8),
        "step": jax.pmap(step, "i"),
        "key": lambda update: jax.random.split(KEY(update), 8),
        "per_device": "key",
    }


def a_typed_key_in_the_state():
    def step(state, batch):
        key, now = jax.random.split(state["key"])
        noise = jax.random.normal(now, (5,))
        return {"w": descend(state["w"] + noise, batch)[0], "key": key}

    state = {"w": W, "key": jax.random.key(0)}
    step_of_all = jax.jit(step)
    return {
        "reference": step,
        "step": step_of_all,
        "state": state,
        "layout": "sharded",
    }


def a_whole_number_of_the_data():
    """Whole numbers that rounding doesn't change are compared exactly."""

    def step(w, batch, add=alone):
        average = alone if add is alone else mean
        return descend(w, batch, average)[0], {"n": add((batch["y"] > 0).sum())}

    mapped = jax.pmap(partial(step, add=total), "i")
    return {"reference": step, "step": mapped}


CORRECT = [
    a_key_argument_of_each_device,
    a_typed_key_in_the_state,
    a_whole_number_of_the_data,
]


@pytest.mark.parametrize("program", CORRECT)
def test_a_correct_program_passes(program):
    report = verify(**{"state": W, "batch": BATCH} | program())
    assert report.ok, str(report)


def test_a_state_that_is_rounded_to_bfloat16_is_not_compared_in_float64():
    def step(w, batch, average=alone):
        return descend(w, batch, average)[0].astype(jnp.bfloat16)

    report = verify(reference=step, step=on_pmap(step), state=W, batch=BATCH, updates=1)
    assert report.ok, str(report)
    assert "the reference computes in bfloat16" in report.precision


# Programs of which something can't be compared or checked


def test_a_whole_number_that_rounding_decides_is_not_compared():
    def step(state, batch, average=alone):
        z = lax.fori_loop(0, 80, lambda _, z: 3.9 * z * (1 - z), state["z"])
        number = (1000 * z).astype(jnp.int32)
        return {"w": descend(state["w"], batch, average)[0], "z": state["z"]}, number

    state = {"w": W, "z": np.float32(0.3)}
    report = verify(reference=step, step=on_pmap(step), state=state, batch=BATCH)
    assert report.verdict == "incomplete", str(report)
    assert report.unstable == ["metrics/the value itself"], str(report)


def test_rows_for_other_devices_are_not_compared():
    def step(state, batch):
        return {"w": descend(state["w"], batch, mean)[0], "own": state["own"]}

    state = {"w": W, "own": np.zeros((4, 5), np.float32)}
    report = verify(
        reference=one_device(step, "i"),
        step=jax.pmap(step, "i"),
        state=state,
        batch=BATCH,
        per_device="own",
    )
    assert report.verdict == "incomplete", str(report)
    assert "per_device names is [4, 5], which are not 8 rows" in flat(report)


def test_rows_of_each_device_are_split_as_the_batch_is():
    """The examples are on axis 1 of the batch, and their sharding is the layout."""
    columns = NamedSharding(MESH, P(None, "i"))
    rows = NamedSharding(MESH, P("i"))
    replicated = NamedSharding(MESH, P())
    state = {"w": W, "own": np.arange(8.0, dtype=np.float32)}

    def step(state, batch):
        gradient = jax.grad(lambda w: jnp.mean((batch["x"][0] @ w) ** 2))(state["w"])
        return {"w": state["w"] - 0.1 * gradient, "own": state["own"]}

    state_shardings = {"w": replicated, "own": rows}
    report = verify(
        reference=step,
        step=jax.jit(
            step, in_shardings=(state_shardings, columns), out_shardings=state_shardings
        ),
        state=state,
        batch={"x": BATCH["x"][None]},
        batch_axis=1,
        layout=columns,
        per_device="own",
    )
    assert report.verdict == "passed", str(report)


@pytest.mark.parametrize("names", ["own", ["own"]])
def test_leaves_of_each_device_are_placed_by_one_name_or_several(names):
    """`compare` passes on what a program gives."""
    state = {"w": W, "own": np.zeros((8, 3))}
    layout = LAYOUTS["stacked"]
    (placed,) = place_arguments(state, None, None, layout, names, jax.devices())
    assert jax.tree.map(jnp.shape, placed) == {"w": (8, 5), "own": (8, 3)}


@pytest.mark.parametrize(
    ("step", "key", "said"),
    [
        (lambda w, batch, key: w + jax.random.normal(key), KEY, "it takes updates=2"),
        (
            lambda w, batch, key: batch["x"][0],
            None,
            "the compiler counts no operations",
        ),
    ],
)
def test_a_check_that_cannot_be_made_says_why(step, key, said):
    if key is None:
        step = partial(step, key=None)
    report = verify(
        reference=step,
        step=jax.jit(step),
        state=W,
        batch=BATCH,
        key=key,
        layout="sharded",
        updates=1,
    )
    assert not report.failed, str(report)
    assert said in flat(report), str(report)
