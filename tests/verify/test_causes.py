"""Steps of a few lines, each with the causes that `verify` may name, and what the report says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from marks import quick
from pmap_programs import load
from steps import (
    BATCH,
    MESH,
    RANDOM,
    W,
    alone,
    descend,
    loss_of,
    mean,
    on_pmap,
    sharded,
    total,
)

from pmapdp.verify import Layout, old_program, verify


def tracker():
    """The gradient is averaged, but a running mean of the inputs and a count of them are each device's own."""

    def step(state, batch, average=alone):
        w, metrics = descend(state["w"], batch, average)
        mean, seen = (
            0.9 * state["mean"] + 0.1 * batch["x"].mean(0),
            state["seen"] + jnp.uint32(len(batch["y"])),
        )
        return {"w": w, "mean": mean, "seen": seen}, metrics

    state = {"w": W, "mean": np.zeros(5, np.float32), "seen": np.uint32(0)}
    return {"reference": step, "step": on_pmap(step), "state": state}


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


def on_the_host():
    """The first device does everything, because the loop passes arrays of the host."""
    layout = Layout(lambda state, devices: state, lambda batch, devices: batch)
    wide = {"x": RANDOM.normal(size=(32, 40)), "y": RANDOM.normal(size=(32, 20))}
    return {
        "reference": descend,
        "step": jax.jit(descend),
        "state": np.ones((40, 20)),
        "batch": wide,
        "layout": layout,
    }


def accumulation():
    """A sum in place of a mean after a loop over micro-batches. The program clips, which hides the factor."""
    module, wrong = (
        load("accumulation"),
        load("accumulation", {"lax.pmean((": "lax.psum(("}),
    )

    def step(state, batch, module=module):
        *state, loss = module.update_fn(*state, batch)
        return tuple(state), loss

    step_of_all = jax.pmap(functools.partial(step, module=wrong), "batch")
    given = {"reference": old_program(step, "batch", groups=8), "step": step_of_all}
    return given | {
        "state": module.init(jax.random.PRNGKey(0)),
        "batch": next(module.batches(1, 64)),
    }


TABLE = {  # a program, the causes that may be named, and what is said
    "psum under check_vma": (
        lambda: {"reference": descend, "state": W, "layout": "sharded",
                 "step": sharded(lambda w, b: (descend(w, b, total)[0], mean(descend(w, b)[1])))},
        {"check_vma"}, ["64 times as large, under check_vma=True"]),
    "a tracker": (tracker, {"local statistics"}, ["mean: these are the statistics", "Largest difference: 14 in seen"]),
    "a later update": (
        late, {"unknown"}, ["from update 2 on", "the devices hold the same values", "docs/mistakes.md"]),
    "on the host": (
        on_the_host, {"every device computes everything"}, ["The busiest device makes 100% of", "its part would be"]),
    "a sum of accumulated gradients": (accumulation, {"unknown", "scaled metrics"}, ["docs/mistakes.md", "8 times"]),
}  # fmt: skip


@quick(4, "name", TABLE)
def test_no_cause_is_named_but_these(name):
    program, causes, said = TABLE[name]
    report = verify(**{"batch": BATCH} | program())
    assert report.failed, str(report)
    assert set(report.causes) <= causes, str(report)
    assert all(text in " ".join(str(report).split()) for text in said), str(report)


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
