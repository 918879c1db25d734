"""A report says what differs, `verify` refuses what it can't compare, and nothing passes that was not compared."""

import ast
import collections
import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from marks import quick
from steps import BATCH, W, alone, descend, loss_of, mean, on_pmap

from pmapdp.verify import (
    ArgumentsError,
    Check,
    Report,
    VerificationError,
    old_program,
    one_device,
    verify,
)
from pmapdp.verify.mistakes import Fact
from pmapdp.verify.verification import find_missing_leaves

GIVEN = {"reference": descend, "state": W, "batch": BATCH}
JIT = {**GIVEN, "step": jax.jit(descend), "layout": "sharded"}
KEYS = jax.random.split(jax.random.PRNGKey(1), 8)
Metrics = collections.namedtuple("Metrics", ("loss", "count"))


def flat(report):
    """A report in one line."""
    return " ".join(str(report).split())


def rows(count):
    return jax.tree.map(lambda x: x[:count], BATCH)


def drawing(state, batch, key, fold=False):
    """Draw from the key. With `fold`, the update's number goes into it first."""
    w, update = state
    new, metrics = descend(w, batch)
    if fold:
        key = jax.random.fold_in(key, update)
    return (new, update + 1), metrics["loss"] + jax.random.normal(key)


def old_style(state, batch, average=mean):
    """Average the gradients. Each device has its own key, statistics and loss."""
    key, now = jax.random.split(state["rng"])
    keep = jax.random.bernoulli(now, 0.7, batch["y"].shape)
    loss, gradient = jax.value_and_grad(loss_of)(state["w"], batch, keep)
    new = {
        "w": state["w"] - 0.1 * average(gradient),
        "rng": key,
        "mean": 0.9 * state["mean"] + 0.1 * batch["x"].mean(0),
    }
    return new, {"loss": loss}


OLD = {
    "state": {"w": W, "rng": KEYS, "mean": np.zeros((8, 5), np.float32)},
    "batch": BATCH,
    "reference": old_program(old_style, "i", groups=8),
    "per_device": ["rng", "mean", "metrics/loss"],
}


def local(state, batch):
    """A step without an all-reduce of what no parameter depends on."""
    new = {"w": state["w"], "mean": batch["x"].mean(0)}
    return new, {"loss": loss_of(state["w"], batch)}


def nan_metric(w, batch, average=alone):
    return descend(w, batch, average)[0], {"loss": jnp.log(-jnp.ones(()))}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"step": descend, "reference": jax.pmap(descend, "i")}, "by pmap: give the function in it"),
        ({"step": descend, "layout": "staked"}, "unknown layout 'staked': did you mean 'stacked'"),
        ({"step": descend, "per_device": ["momentum"]}, "per_device: there is no leaf 'momentum' among the value"),
        ({"step": descend, "reference": lambda w, b: (w, w, w)}, "returns 0, 1, 2 instead of the value itself"),
        ({"step": descend, "state": {"w": W, "n": 0}, "reference": lambda s, b: {"w": s["w"]}}, "w instead of n, w"),
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
        (
            lambda w, batch: (w, batch["z"]),
            r"test_reports\.py:\d+ in <lambda>: KeyError: 'z'",
        ),
        (
            lambda w, batch: w,
            "only the reference returns metrics/loss: return it from both",
        ),
        (
            lambda w, batch: (w[:2], {"loss": w[0]}),
            r"the value itself is \[2\] in the step and \[5",
        ),
        (
            lambda w, batch: {"new": w},
            "the step returns new instead of the value itself: return",
        ),
    ],
)
def test_a_step_that_fails_or_returns_something_else_is_said(step, said):
    report = verify(**GIVEN, step=step, layout="sharded")
    assert [check.name for check in report.failed] == ["runs"]
    assert report.missing == []  # no advice about simulated devices
    assert re.search(said, flat(report)), str(report)


@pytest.mark.slow
def test_metrics_have_the_names_of_their_fields():
    """A whole number that went through a fraction is compared exactly, as clu's count of ones."""
    step = lambda w, b, average=alone: (
        w / 2,
        Metrics(average(loss_of(w, b)), jnp.ones(3).sum().astype(int)),
    )
    report = verify(**GIVEN | {"reference": step}, step=on_pmap(step))
    assert report.ok, str(report)
    assert report.kinds == {
        "the value itself": "close",
        "metrics/loss": "close",
        "metrics/count": "exact",
    }, str(report)


def test_an_old_program_is_compared_masks_and_statistics_included():
    report = verify(**OLD, step=jax.pmap(old_style, "i"))
    assert report.ok, str(report)
    assert report.kinds == {
        "mean": "close",
        "rng": "exact",
        "w": "close",
        "metrics/loss": "close",
    }
    wrong_step = functools.partial(old_style, average=alone)
    wrong = verify(**OLD, step=jax.pmap(wrong_step, "i"))
    assert wrong.mistakes == ["no all-reduce"], str(wrong)


@quick(
    1,
    ("arguments", "verdict", "said"),
    [
        ({"key": jax.random.key}, "passed", "passed random numbers advance"),
        (
            {"key": jax.random.key(0)},
            "incomplete",
            "give key=lambda update: jax.random.fold_in(key, update).",
        ),
        (
            {
                "key": jax.random.key(0),
                "reference": functools.partial(drawing, fold=True),
            },
            "failed",
            "draws the random numbers of the first again",
        ),
    ],
)
def test_random_numbers_must_advance(arguments, verdict, said):
    given = {
        "reference": drawing,
        "step": jax.jit(drawing),
        "state": (W, np.int32(0)),
        "layout": "sharded",
    }
    report = verify(**given | {"batch": BATCH} | arguments)
    assert report.verdict == verdict, str(report)
    assert said in flat(report), str(report)
    if verdict == "failed":
        assert report.mistakes == ["key stands still"], str(report)


@pytest.mark.slow
def test_what_rounding_decides_is_not_compared_and_not_passed():
    def step(state, batch, average=alone):
        w, batch = jax.tree.map(lambda x: x.astype("f4"), (state["w"], batch))
        waves = jnp.sin(jnp.outer(batch["x"] @ w, jnp.arange(1, 100, dtype="f4")))
        start = 0.5 + 0.3 * jnp.sin(average(waves.mean()))
        z = lax.fori_loop(0, 60, lambda _, z: 3.9 * z * (1 - z), start)
        return {"w": descend(w, batch, average)[0], "z": z}

    state = {"w": W, "z": np.float32(0.3)}
    report = verify(
        reference=step, step=on_pmap(step), state=state, batch=BATCH, float64=False
    )
    assert report.verdict == "incomplete", str(report)
    assert report.kinds == {"w": "close", "z": "unstable"}
    assert "report.require(not_compared=['z'])" in flat(report)
    report.require(not_compared=["z"])


@pytest.mark.parametrize("columns", [80, 60])
def test_a_report_is_as_wide_as_the_terminal(columns, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    fact = Fact("w: the devices hold different values. " * 4, "sum for mean")
    check = Check("same update", "FAILED", 8, facts=[fact])
    report = Report([check], {"w": "close"}, devices=8, updates=1, precision="float64")
    longest = max(map(len, str(report).splitlines()))
    assert columns - 20 < longest <= columns


def test_a_report_explains_three_of_four_mistakes():
    names = ["no all-reduce", "sum for mean", "drift", "dropped"]
    facts = [Fact("w: a fact.", name) for name in names]
    check = Check("same update", "FAILED", 8, facts=facts)
    report = Report([check], {"w": "close"}, devices=8, updates=1, precision="float64")
    assert report.mistakes == names
    assert re.findall("This fits '(.*?)'", str(report)) == names[:3]


def test_leaves_that_rounding_hides_are_three_a_line_to_copy():
    kinds = {f"layer_{n}/bias": "unstable" for n in range(12)}
    report = Report([], kinds, devices=8, updates=1, precision="float64")
    (gap,) = find_missing_leaves(report)
    names = str(gap).partition("not_compared=")[2].removesuffix(")")
    assert [line.count("layer_") for line in names.splitlines()] == [3, 3, 3, 3]
    assert ast.literal_eval(names) == list(kinds)


def test_a_last_batch_is_compared_too():
    devices = jax.devices()[:2]
    step = jax.pmap(lambda w, b: descend(w, b, mean), "i", devices=devices)
    report = verify(**GIVEN, step=step, last_batch=rows(11), devices=devices)
    assert (report.verdict, report.updates) == ("incomplete", 3), str(report)
    said = "its 11 examples do not divide over 2 devices, give a Layout that pads them"
    assert said in flat(report)


def count(number, batch):
    return number + len(batch["y"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"devices": jax.devices()[:1]},
            "the step ran on one device, which says nothing about several",
        ),
        (
            {"devices": jax.devices()[:4], "batch": rows(6)},
            "6 examples do not divide over 4 devices",
        ),
        (
            {"step": jax.jit(count), "reference": count, "state": np.int32(0)},
            "no leaf holds floating-point numbers",
        ),
    ],
)
def test_what_was_not_compared_is_not_proven(arguments, said):
    report = verify(**JIT | {"updates": 1} | arguments)
    assert report.failed == [], str(report)
    assert (report.verdict, report.ok) == ("incomplete", False)
    assert said in flat(report), str(report)
    with pytest.raises(VerificationError):
        report.require()


def test_what_was_not_checked_is_one_line_and_in_the_json():
    step = lambda s, b: {
        "w": descend(s["w"], b, mean)[0],
        "rng": jax.random.split(s["rng"])[0],
    }
    given = {
        "step": jax.pmap(step, "i"),
        "reference": one_device(step, "i"),
        "state": {"w": W, "rng": KEYS},
    }
    report = verify(**given, batch=BATCH, per_device="rng")
    assert report.ok, str(report)
    assert report.kinds["rng"] == "per_device"
    assert "Not compared, because per_device names them: rng." in flat(report)
    assert max(map(len, str(report).splitlines())) <= 100
    line = flat(report).partition("Not checked: ")[2]
    for part in (
        "same metrics (the step returns no metrics",
        "(no result depends on a key)",
        "give last_batch",
    ):
        assert part in line
    found = json.loads(report.to_json())
    assert (found["ok"], found["verdict"]) == (True, "passed")
    assert (found["devices"], found["updates"]) == (8, 3)
    assert set(found["checks"][0]) >= {
        "name",
        "status",
        "devices",
        "sentence",
        "facts",
        "mistakes",
        "leaves",
        "update",
    }
