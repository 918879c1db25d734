"""Steps of a few lines, each with the mistakes that fit, and what the report says."""

import linecache
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import device_count, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from marks import quick
from steps import (
    BATCH,
    MESH,
    W,
    alone,
    descend,
    given,
    loss_of,
    mean,
    on_pmap,
    sharded,
    total,
)

from pmapdp.verify import ArgumentsError, old_program, verify


def late():
    """The first update is right; numbers that rounding doubles in every step of a loop hide no mistake."""

    def step(state, batch, average=alone, wrong=False):
        z = lax.fori_loop(0, 40, lambda _, z: 3.9 * z * (1 - z), state["z"])
        gradient = average(jax.grad(loss_of)(state["w"], batch)) * jnp.where(
            wrong & (state["n"] > 0), -8.0, 1.0
        )
        return {"w": state["w"] - z * gradient, "z": z, "n": state["n"] + 1}

    state = {"w": W, "z": np.float32(0.3), "n": np.int32(0)}
    return {"reference": step, "step": on_pmap(step, wrong=True), "state": state}


def average_of_local_statistics():
    """Haiku's batch norm keeps an `average`, which is made of `hidden`."""

    def step(state, x):
        w = descend(state["w"], {"x": x, "y": 1.0}, mean)[0]
        hidden = 0.9 * state["ema"]["hidden"] + 0.1 * x.mean(0)
        count = state["ema"]["count"] + 1
        average = hidden / (1 - 0.9**count)
        return {"w": w, "ema": {"count": count, "hidden": hidden, "average": average}}

    zeros = np.zeros(5, np.float32)
    ema = {"count": np.int32(0), "hidden": zeros, "average": zeros}
    return given(step, {"w": W, "ema": ema}, BATCH["x"])


def two_leaves_of_one_name():
    """One is a parameter, and the other a statistic that nothing reads."""

    def step(state, x):
        dense = state["net"]["dense"]["scale"]
        loss = lambda scale, v: ((x @ scale * v.mean() - 1) ** 2).mean()
        gradient, gradient_of_v = jax.grad(loss, (0, 1))(dense, state["v"])
        norm = 0.9 * state["net"]["norm"]["scale"] + 0.1 * x.mean(0)
        net = {"dense": {"scale": dense - 0.1 * gradient}, "norm": {"scale": norm}}
        return {"v": state["v"] - 0.1 * mean(gradient_of_v), "net": net}

    zeros = np.zeros(5, np.float32)
    net = {"dense": {"scale": W}, "norm": {"scale": zeros}}
    return given(step, {"v": np.ones(4, np.float32), "net": net}, BATCH["x"])


def a_difference_of_equal_leaves():
    """Both are parameters, and shifted alike they'd change nothing."""

    def step(state, x):
        loss = lambda net: ((x @ (net["a"]["w"] - net["b"]["w"]) - 1) ** 2).mean()
        gradients = jax.grad(loss)(state["net"])
        net = jax.tree.map(lambda w, g: w - 0.1 * g, state["net"], gradients)
        return {"net": net, "loss": mean(loss(state["net"]))}

    net = {"a": {"w": W}, "b": {"w": W}}
    return given(step, {"net": net, "loss": np.float32(0)}, BATCH["x"], updates=1)


def eighty_leaves():
    """Each device clips its own gradient, and all 80 leaves of the state show it."""
    rule = optax.sgd(0.1, momentum=0.9)
    random = np.random.default_rng(0)
    params = []
    for _ in range(20):
        w = random.normal(size=(5, 5)) / 2
        params.append({"w": w, "b": random.normal(size=5) / 9})

    def loss(params, x):
        for layer in params:
            x = x + jnp.tanh(x @ layer["w"] + layer["b"])
        return (x**2).mean()

    def step(state, x):
        gradients = jax.grad(loss)(state[0], x)
        clip = optax.clip_by_global_norm(0.1)
        gradients, _ = clip.update(gradients, optax.EmptyState())
        updates, momentum = rule.update(mean(gradients), state[1])
        return optax.apply_updates(state[0], updates), momentum

    return given(step, (params, rule.init(params)), BATCH["x"])


def accumulator():
    """A correct program: gradients are added up here, and averaged every second step."""

    def step(state, x):
        gradient = jax.grad(loss_of)(state["w"], {"x": x, "y": 1.0})
        total = state["sum"] + gradient
        is_last = state["step"] % 2 == 1
        w = jnp.where(is_last, state["w"] - 0.1 * mean(total) / 2, state["w"])
        total = jnp.where(is_last, 0, total)
        return {"w": w, "sum": total, "step": state["step"] + 1}

    state = {"w": W, "sum": np.zeros_like(W), "step": np.int32(0)}
    return given(step, state, BATCH["x"])


def a_device_of_padding():
    """The last device's weights add up to 0, and each device divides by its own sum."""
    weight = (np.arange(16) < 14).astype(np.float32)

    def step(w, batch):
        errors = batch["weight"] * (batch["x"] @ w - batch["y"]) ** 2
        loss = mean(errors.sum() / batch["weight"].sum())
        return w - 0.1, {"loss": loss}

    return given(step, W, {**BATCH, "weight": weight})


def the_norm_of_a_sum():
    """The gradients are added up, and the metric is the norm of what came out."""

    def step(w, batch, add=total):
        gradient = add(jax.grad(loss_of)(w, batch))
        return w - 0.1 * gradient, {"norm": jnp.linalg.norm(gradient)}

    return {
        "reference": partial(step, add=alone),
        "step": jax.pmap(step, "i"),
        "state": W,
    }


def a_key_of_each_example():
    """Noise from keys in the batch, and the gradients are added up."""

    def step(w, batch, add=total):
        noise = jax.vmap(jax.random.normal)(batch["key"])
        loss = lambda w: loss_of(w, {"x": batch["x"], "y": batch["y"] + noise})
        return w - 0.1 * add(jax.grad(loss)(w))

    batch = {**BATCH, "key": jax.random.split(jax.random.key(0), 16)}
    return given(step, W, batch, reference=partial(step, add=alone))


def a_key_stands_still():
    """The rate warms up, and the loss is computed with the new parameters."""

    def step(state, x):
        noise = jax.random.normal(jax.random.fold_in(state["key"], 1), x.shape)
        batch = {"x": x + noise, "y": 1.0}
        rate = 0.01 * (state["step"] + 1)
        w = state["w"] - rate * mean(jax.grad(loss_of)(state["w"], batch))
        new = {**state, "w": w, "step": state["step"] + 1}
        return new, {"loss": mean(loss_of(w, batch))}

    keys = jax.random.split(jax.random.PRNGKey(0), 8)
    state = {"w": W, "step": np.int32(0), "key": keys}
    reference = old_program(step, "i", groups=8)
    return given(step, state, BATCH["x"], per_device="key", reference=reference)


TABLE = {  # a program, the mistakes that fit, and what is said
    "psum under check_vma": (
        lambda: {"reference": descend, "state": W, "layout": "sharded",
                 "step": sharded(lambda w, b: (descend(w, b, total)[0], mean(descend(w, b)[1])))},
        ["check_vma"], ["the change is 64 times the reference's, on 8 devices", "The step has a shard_map with check_vma=True"]),
    "a later update": (
        late, [], ["from update 2 on", "the devices hold the same values", "the change is about -8 times the reference's", "None of the usual mistakes"]),
    "average of local statistics": (
        average_of_local_statistics, ["local statistics"],
        ["each device holds the reference's result", "No other result of this update depends on ema/average"]),
    "two leaves of one name": (
        two_leaves_of_one_name, ["no all-reduce", "local statistics"],
        ["Other results depend on net/dense/scale.", "No other result of this update depends on net/norm/scale."]),
    "a difference of equal leaves": (
        a_difference_of_equal_leaves, ["no all-reduce"], ["Other results depend on net/a/w, net/b/w."]),
    "eighty leaves": (eighty_leaves, ["mean of means"], ["80 of 80 leaves differ", "the mean of the reference's results"]),
    "an accumulator": (
        accumulator, ["local statistics"], ["sum: each device holds the reference's result", "depends on sum"]),
    "a device of padding": (
        a_device_of_padding, ["NaN on one device"],
        ["metrics/loss: NaN on device 0, 1, 2 and 5 more, from update 1 on",
         "On the examples of device 7 alone, the reference is also NaN."]),
    "the norm of a sum": (the_norm_of_a_sum, ["sum for mean"], ["the state also differs, so look at that first"]),
    "a key of each example": (a_key_of_each_example, ["sum for mean"], ["the change is 8 times the reference's, on 8 devices"]),
    "a key stands still": (
        a_key_stands_still, ["key stands still"], ["draws the random numbers of the first again"]),
}  # fmt: skip


@quick(8, "name", TABLE)
def test_no_mistake_fits_but_these(name):
    program, mistakes, said = TABLE[name]
    report = verify(**{"batch": BATCH} | program())
    assert report.failed, str(report)
    assert report.mistakes == mistakes, str(report)
    assert all(text in " ".join(str(report).split()) for text in said), str(report)


@pytest.mark.parametrize("average", [mean, total])
def test_a_step_that_counts_devices_is_not_its_own_reference(average):
    """Over an axis of size 1 it divides by 8, which turns the verdict upside down."""

    def step(w, batch):
        gradient = jax.grad(loss_of)(w, batch)
        return w - 0.1 * average(gradient) / jax.device_count()

    count = jax.device_count
    with pytest.raises(ArgumentsError, match=r"calls jax.device_count\(\), which says"):
        verify(**given(step, W, BATCH))
    assert jax.device_count is count
    report = verify(
        step=jax.pmap(step, "i"),
        reference=lambda w, batch: descend(w, batch)[0],
        state=W,
        batch=BATCH,
    )
    assert report.ok == (average is total), str(report)
    assert "Can't see" not in str(report)


COUNTS = {
    "device_count": lambda: jax.device_count(),
    "local_device_count": lambda: jax.local_device_count(),
    "devices": lambda: len(jax.devices()),
    "local_devices": lambda: len(jax.local_devices()),
    "process_count": lambda: jax.process_count(),
    "host_count": lambda: jax.host_count(),
    "device_count by another name": lambda: device_count(),
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_way_to_count_devices_is_refused(name):
    def step(w, batch):
        return w - 0.1 * mean(jax.grad(loss_of)(w, batch)) / COUNTS[name]()

    function = name.partition(" ")[0]
    with pytest.raises(ArgumentsError, match=rf"calls jax.{function}\(\), which says"):
        verify(**given(step, W, BATCH))
    assert device_count is jax.device_count


def test_a_report_says_what_its_reference_cannot_show():
    report = verify(
        **given(lambda w, x: descend(w, {"x": x, "y": 1.0}, mean), W, BATCH["x"])
    )
    assert "Can't see: what is also wrong on a single device" in str(report)
    assert "N = jax.device_count()" in " ".join(str(report).split())


def test_a_step_under_jit_that_is_its_own_reference_hides_its_mistakes():
    step = lambda w, batch: descend(w, batch)[0]
    sharded_step = {"step": jax.jit(step), "layout": "sharded"}
    arguments = {**sharded_step, "state": W, "batch": BATCH, "updates": 1}
    report = verify(**arguments, reference=step)
    assert "Can't see: what is also wrong on a single device" in str(report)
    other = verify(**arguments, reference=lambda w, batch: descend(w, batch)[0])
    assert "Can't see" not in str(other)


def test_the_old_program_hides_a_sum_in_place_of_a_mean():
    step = lambda w, batch: descend(w, batch, total)[0]
    reference = old_program(step, "i", groups=8)
    report = verify(**given(step, W, BATCH, reference=reference, updates=1))
    assert report.ok, str(report)
    assert "Can't see: what the old program also does wrong" in str(report)


@pytest.fixture
def full_tracebacks():
    """JAX writes all callers into a program, as by default. The tests leave them out."""
    name = "jax_include_full_tracebacks_in_locations"
    setting = getattr(jax.config, name)
    jax.config.update(name, True)
    yield
    jax.config.update(name, setting)


def test_the_report_says_how_often_and_where_an_all_reduce_runs(full_tracebacks):
    """Two micro-batches, and an all-reduce for each of them: the numbers are right."""

    def step(w, x):
        def add(gradients, part):
            gradient = jax.grad(loss_of)(w, {"x": part, "y": 1.0})
            gradient = lax.pmean(gradient, "i")
            return gradients + gradient, None

        parts = x.reshape(2, -1, 5)
        gradients, _ = lax.scan(add, jnp.zeros_like(w), parts)
        return w - 0.05 * gradients

    batch = np.concatenate([BATCH["x"]] * 4)
    report = verify(**given(step, W, batch, float64=False))
    assert report.ok, str(report)
    # Five numbers of four bytes, twice.
    assert report.exchange.startswith("1 all-reduce, run 2 times an update, 40 bytes")
    assert re.search(r"2 times at test_facts\.py:(\d+)$", report.exchange)
    line = int(report.exchange.rpartition(":")[2])
    assert (
        linecache.getline(__file__, line).strip()
        == 'gradient = lax.pmean(gradient, "i")'
    )
    assert report.exchange in " ".join(str(report).split())


@pytest.mark.parametrize(("name", "said"), [("params", "20 bytes"), ("w", "")])
def test_the_report_says_how_large_the_gradients_of_params_are(name, said):
    """Five numbers of four bytes. The other leaf doesn't count."""

    def step(state, batch):
        w = descend(state[name], batch, mean)[0]
        return {name: w, "average": 0.9 * state["average"] + 0.1 * w}

    state = {name: W, "average": np.zeros(5, np.float32)}
    report = verify(**given(step, state, float64=False, updates=1))
    assert report.ok, str(report)
    sentence = f"The leaves of params, and so their gradients, take {said}."
    assert (sentence in " ".join(str(report).split())) == bool(said)
    assert ("gradients" in report.exchange) == bool(said)


@pytest.mark.parametrize("average", [mean, total])
def test_step_and_reference_are_compiled_once(average, caplog):
    """For a large model, `verify` hardly does anything but compile."""

    def train_step(w, batch):
        return descend(w, batch, average)[0]

    step = sharded(train_step, check_vma=False)
    with jax.log_compiles():
        report = verify(**given(train_step, W) | {"step": step, "layout": "sharded"})
    assert report.ok == (average is mean), str(report)
    names = re.findall(r"Finished XLA compilation of jit\((\w+)\)", caplog.text)
    large = ["run_batch", "run_device", "train_step"]
    expected = ["run_batch", "train_step"]
    if average is total:  # the experiments run the reference on a device's examples
        expected.append("run_device")
    assert sorted(name for name in names if name in large) == sorted(expected)


def test_work_that_a_plain_function_places_is_not_called_split():
    """The compiler's counts would leave its `device_put` out, so nothing is said of the work."""
    jitted = jax.jit(descend)
    step = lambda w, batch: jitted(w, jax.device_put(batch, NamedSharding(MESH, P())))
    report = verify(
        step=step, reference=descend, state=W, layout="sharded", batch=BATCH
    )
    (check,) = (check for check in report.checks if check.name == "the work is split")
    assert (check.status, "the function around your step places" in check.sentence) == (
        "not checked",
        True,
    )
