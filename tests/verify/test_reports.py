"""What a report says, what `verify` refuses, and that nothing is passed that was not compared."""

import functools
import json
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from marks import quick
from steps import BATCH, W, alone, descend, float32, loss_of, mean, on_pmap

from pmapdp.verify import ArgumentsError, VerificationError, old_program, one_device, verify

GIVEN = {"reference": descend, "state": W, "batch": BATCH}
JIT = {**GIVEN, "step": jax.jit(descend), "layout": "sharded"}
KEYS = jax.random.split(jax.random.PRNGKey(1), 8)


def flat(report):
    """A report in one line."""
    return " ".join(str(report).split())


def rows(count):
    return jax.tree.map(lambda x: x[:count], BATCH)


def drawing(state, batch, key, fold=False):
    """A step that draws from its key, and folds the update's number into it or leaves that to its loop."""
    w, update = state
    new, metrics = descend(w, batch)
    return (new, update + 1), metrics["loss"] + jax.random.normal(jax.random.fold_in(key, update) if fold else key)


def old_style(state, batch, average=mean):
    """A dropout key of each device, running statistics of its own examples, and a loss that isn't averaged."""
    key, now = jax.random.split(state["rng"])
    keep = jax.random.bernoulli(now, 0.7, batch["y"].shape)
    loss, gradient = jax.value_and_grad(loss_of)(state["w"], batch, keep)
    statistics = 0.9 * state["mean"] + 0.1 * batch["x"].mean(0)
    return {"w": state["w"] - 0.1 * average(gradient), "rng": key, "mean": statistics}, {"loss": loss}


OLD = {"state": {"w": W, "rng": KEYS, "mean": np.zeros((8, 5), np.float32)}, "batch": BATCH}
OLD |= {"step": jax.pmap(old_style, "i"), "reference": old_program(old_style, "i", groups=8)}
OWN = ["rng", "mean", "metrics/loss"]


class Metrics(NamedTuple):
    """Metrics with names of their own."""

    loss: jax.Array
    size: jax.Array
    count: jax.Array


def local(state, batch):
    """A step without an all-reduce of what no parameter depends on."""
    return {"w": state["w"], "mean": batch["x"].mean(0)}, {"loss": loss_of(state["w"], batch)}


def nan_metric(w, batch, average=alone):
    return descend(w, batch, average)[0], {"loss": jnp.log(-jnp.ones(()))}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "either step, for all devices, or make_step"),
        ({"step": descend, "reference": jax.pmap(descend, "i")}, "by pmap: give the function in it"),
        ({"step": descend, "layout": "staked"}, "unknown layout 'staked': did you mean 'stacked'"),
        ({"step": descend, "per_device": ["momentum"]}, "per_device: there is no leaf 'momentum' among the value"),
        ({"step": descend, "reference": lambda w, b: {"w": w}}, "returns w in place of the value itself"),
        ({"step": descend, "reference": lambda w, b: (w, w, w)}, "returns 0, 1, 2 in place of the value itself"),
        ({"step": descend, "state": {"w": W, "n": 0}, "reference": lambda s, b: {"w": s["w"]}}, "w in place of n, w"),
        ({"step": on_pmap(nan_metric), "reference": nan_metric}, "metrics/loss is NaN after update 1"),
        ({"step": on_pmap(descend), "state": W * np.nan}, "the value itself, metrics/loss is NaN after update 1"),
        ({"state": {"w": W, "mean": W}, "reference": old_program(local, "i", groups=8), "step": jax.pmap(local, "i")},
         r"different values of mean, metrics/loss: if each .* per_device=\['mean', 'metrics/loss'\]"),
        ({"reference": old_program(descend, "i", groups=8), "step": jax.pmap(descend, "i")}, "average the gradients"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_sentence(arguments, said):
    with pytest.raises(ArgumentsError, match=said) as caught:
        verify(**GIVEN | arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda w, batch: (w, batch["z"]), r"test_reports\.py:\d+ in <lambda>: KeyError: 'z'"),
        (lambda w, batch: w, "only the reference returns metrics/loss: return it from both"),
        (lambda w, batch: (w[:2], {"loss": w[0]}), r"the value itself is \[2\] in the step and \[5"),
        (lambda w, batch: {"new": w}, "the step returns new in place of the value itself: return"),
    ],
)
def test_a_step_that_fails_or_returns_something_else_is_said(step, said):
    report = verify(**GIVEN, step=step, layout="sharded")
    assert [check.name for check in report.failed] == ["runs"]
    assert re.search(said, flat(report)), str(report)


@pytest.mark.slow
def test_metrics_have_the_names_of_their_fields_and_those_that_are_absent_are_not_passed():
    """A whole number that went through a fraction is compared exactly, as clu's count of ones."""
    step = lambda w, b, average=alone: (  # noqa: E731
        w / 2, Metrics(average(loss_of(w, b)), average(b["y"].mean()), jnp.ones(3).sum().astype(int))
    )  # fmt: skip
    report = verify(**GIVEN | {"reference": step}, step=on_pmap(step))
    assert report.ok, str(report)
    kinds = {"the value itself": "close", "metrics/loss": "close", "metrics/size": "close", "metrics/count": "exact"}
    assert report.kinds == kinds, str(report)
    alone_step = lambda w, b: step(w, b)[0]  # noqa: E731
    report = verify(**GIVEN | {"reference": alone_step, "updates": 1}, step=jax.jit(alone_step), layout="sharded")
    assert report.ok, str(report)
    assert "same metrics (the step returns no metrics that can be compared)" in flat(report)


@quick(1, "way", ["shard_map", "pmap"])
def test_a_port_equals_the_old_program_masks_and_statistics_included(way):
    mesh, P = jax.sharding.Mesh(np.array(jax.devices()), ("i",)), jax.sharding.PartitionSpec
    specs = {"w": P(), "rng": P("i"), "mean": P("i")}

    def inner(state, batch):
        new, metrics = old_style({name: x if name == "w" else x[0] for name, x in state.items()}, batch)
        return {name: x if name == "w" else x[None] for name, x in new.items()}, {"loss": metrics["loss"][None]}

    out = (specs, {"loss": P("i")})
    mapped = jax.jit(jax.shard_map(inner, mesh=mesh, in_specs=(specs, P("i")), out_specs=out, check_vma=False))
    step, layout = (OLD["step"], "stacked") if way == "pmap" else (mapped, "sharded")
    report = verify(**OLD | {"step": step, "layout": layout, "per_device": OWN})
    assert report.ok, str(report)
    assert report.kinds == {"mean": "close", "rng": "exact", "w": "close", "metrics/loss": "close"}
    wrong = verify(**OLD | {"step": jax.pmap(functools.partial(old_style, average=alone), "i"), "per_device": OWN})
    assert set(wrong.causes) == {"no all-reduce"}, str(wrong)


@pytest.mark.slow
def test_leaves_of_each_device_are_not_compared_with_one_device():
    step = lambda s, b: {"w": descend(s["w"], b, mean)[0], "rng": jax.random.split(s["rng"])[0]}  # noqa: E731
    given = {"step": jax.pmap(step, "i"), "reference": one_device(step, "i"), "state": {"w": W, "rng": KEYS}}
    report = verify(**given, batch=BATCH, per_device="rng")
    assert report.ok, str(report)
    assert report.kinds["rng"] == "ignored"
    assert "Not compared, because per_device names them: rng." in flat(report)


@quick(
    1,
    ("arguments", "verdict", "said"),
    [
        ({"key": jax.random.key}, "passed", "passed random numbers advance"),
        ({"key": jax.random.key(0)}, "failed", "tell verify: key=lambda update: jax.random.fold_in(key, update)"),
        ({"key": jax.random.key(0), "reference": functools.partial(drawing, fold=True)}, "failed", "the new key"),
    ],
)
def test_random_numbers_must_advance(arguments, verdict, said):
    given = {"reference": drawing, "step": jax.jit(drawing), "state": (W, np.int32(0)), "layout": "sharded"}
    report = verify(**given | {"batch": BATCH} | arguments)
    assert report.verdict == verdict, str(report)
    assert said in flat(report), str(report)
    if verdict == "failed":
        assert report.causes == ["key stands still"], str(report)


@pytest.mark.slow
def test_what_rounding_decides_is_not_compared_and_not_passed():
    def step(state, batch, average=alone):
        waves = jnp.sin(jnp.outer(batch["x"].astype("f4") @ state["w"].astype("f4"), jnp.arange(1, 100, dtype="f4")))
        z = lax.fori_loop(0, 60, lambda _, z: 3.9 * z * (1 - z), 0.5 + 0.3 * jnp.sin(average(waves.mean())))
        return {"w": float32(state["w"], batch, average)[0], "z": z}

    report = verify(
        **GIVEN | {"reference": step, "state": {"w": W, "z": np.float32(0.3)}}, step=on_pmap(step), float64=False
    )
    assert (report.verdict, report.kinds["z"]) == ("incomplete", "blind"), str(report)
    assert list(report.kinds.values()).count("blind") == 1
    with pytest.raises(VerificationError):
        report.require()
    assert "rounding changes z by more than 30 %" in flat(report)
    report.require(not_compared=["z"])


@quick(1, ("last", "ok"), [(11, False), (8, True)])
def test_a_last_batch_must_be_compared_on_several_devices(last, ok):
    make_step = lambda devices: jax.pmap(lambda w, b: descend(w, b, mean), "i", devices=devices)  # noqa: E731
    report = verify(**GIVEN, make_step=make_step, last_batch=rows(last), devices=jax.devices()[:4])
    assert not report.failed, str(report)
    assert report.ok == ok
    assert report.updates[4] == ((1, 2, 4) if ok else (1,))
    assert ok or "its 11 examples do not divide, give a Layout that pads them" in flat(report)
    unreduced = verify(**GIVEN, step=jax.pmap(descend, "i"), last_batch=rows(last))
    assert "no all-reduce" in unreduced.causes


@pytest.mark.slow
def test_one_device_alone_proves_nothing():
    report = verify(**JIT, devices=jax.devices()[:1])
    assert (report.failed, report.verdict, report.ok) == ([], "incomplete", False)
    assert "update 1 was compared on no more than one device" in flat(report)


def test_whole_numbers_alone_prove_nothing():
    step = lambda count, batch: count + len(batch["y"])  # noqa: E731
    report = verify(reference=step, step=jax.jit(step), state=np.int32(0), batch=BATCH, layout="sharded", updates=1)
    assert report.verdict == "incomplete", str(report)
    with pytest.raises(VerificationError, match="no leaf holds floating-point numbers"):
        report.require()


def test_what_was_not_checked_is_one_line_and_in_the_json():
    report = verify(**JIT)
    assert report.ok, str(report)
    line = flat(report).partition("Not checked: ")[2]
    assert max(map(len, str(report).splitlines())) <= 100
    for part in ("random numbers advance (no result depends on a key)", "give last_batch", "give make_step"):
        assert part in line
    found = json.loads(report.to_json())
    assert (found["ok"], found["verdict"]) == (True, "passed")
    assert found["updates"] == {"1": [8], "2": [8], "3": [8]}
    assert set(found["checks"][0]) >= {"name", "status", "devices", "sentence", "cause", "leaves", "update"}
