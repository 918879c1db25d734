"""Planted mistakes: each is found by its sentence, and two at once never get the name of a third.

The plants are in `training_programs.py`, in a program that is right without them, as `test_right_programs.py` shows.
The table in `pmapdp.verify.mistakes` is checked against them.
"""

import functools
import re
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
import training_programs as programs
from jax.sharding import Mesh, PartitionSpec
from marks import quick
from right_programs import HALVED

from pmapdp.verify import VerificationError, one_device, verify
from pmapdp.verify.mistakes import MISTAKES, WAYS, page

QUICK = [
    ("no all-reduce", "pmap"), ("sum for mean", "jit"), ("check_vma", "shard_map"), ("mean of means", "pmap"),
]  # fmt: skip
# By day each mistake under one of the three ways, by turns.
TURNS = [
    (mistake, programs.ways(mistake)[n % len(programs.ways(mistake))]) for n, mistake in enumerate(programs.PLANTS)
]
BY_DAY = list(dict.fromkeys([*QUICK, *TURNS]))
AT_NIGHT = [(mistake, way) for mistake in programs.PLANTS for way in programs.ways(mistake)]
PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"


def report_on(way, *mistakes, **arguments):
    """The report on the program of `training_programs.py` with these mistakes, on 4 devices."""
    return verify(**programs.given(way, *mistakes) | arguments)


def pattern(cause):
    """The sentence of a cause as a regular expression, for any values in it."""
    return re.sub(r"\\{.*?\\}", ".+", re.escape(MISTAKES[cause].sentence))


@quick(len(QUICK), ("mistake", "way"), dict.fromkeys([*BY_DAY, *AT_NIGHT]), by_day=len(BY_DAY))
def test_a_planted_mistake_is_found_and_named(mistake, way):
    report, cause = report_on(way, mistake), programs.CAUSE.get(mistake, mistake)
    assert report.causes == [cause], str(report)
    assert any(re.search(pattern(cause), check.sentence) for check in report.failed), str(report)
    assert "One mistake can hide others" in str(report)
    with pytest.raises(VerificationError, match=pattern(cause)):
        report.require()


# Two mistakes at once: those whose traces resemble one another, each with the three that follow it in the circle, each
# pair under one of the three ways by turns.
ENTANGLED = (
    "left out", "sum for mean", "averaged twice", "weight decay", "local normalisation", "averaged statistics",
    "nonlinear", "same mask", "other random numbers", "dropped", "place decides",
)  # fmt: skip
ONE_PLACE = (  # of the program, in which only one of them can be made; or, one undoes the other
    {"left out", "nonlinear"}, {"sum for mean", "averaged twice"}, {"same mask", "other random numbers"},
    {"local normalisation", "averaged statistics"},
)  # fmt: skip
PAIRS = [pair for near in (1, 2, 3) for pair in zip(ENTANGLED, ENTANGLED[near:] + ENTANGLED[:near], strict=True)]
PAIRS = [pair for pair in PAIRS if not any(set(pair) <= one for one in ONE_PLACE)]
# Of the third what is drawn moves the loss by a twentieth of what another seed does.
PAIRS = [
    ("check_vma", "transfer"),
    ("replicated in the step", "transfer"),
    ("local normalisation", "same mask"),
    *PAIRS,
]
PAIRS = list(dict.fromkeys(PAIRS))
# What is true of a mistake besides its own sentence, and leads to it.
TRUE_TOO = {
    "left out": {"drift"}, "same mask": {"other random numbers", "mean of means"}, "sum for mean": {"another scale"},
    "averaged twice": {"another scale"},
}  # fmt: skip


@quick(0, ("one", "other"), PAIRS, by_day=4)
def test_two_mistakes_are_never_given_the_name_of_a_third(one, other):
    pair = one, other
    possible = [way for way in WAYS if all(way in programs.ways(mistake) for mistake in pair)]
    report = report_on(possible[PAIRS.index(pair) % len(possible)], *pair)
    true = {programs.CAUSE.get(mistake, mistake) for mistake in pair}.union(*(TRUE_TOO.get(each, ()) for each in pair))
    assert report.causes, str(report)
    assert set(report.causes) <= true | {"unknown"}, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["sum for mean", "no all-reduce", "nonlinear"])
def test_a_mistake_is_found_in_float32_too(mistake):
    assert report_on("shard_map" if mistake == "nonlinear" else "pmap", mistake, float64=False).causes == [mistake]


def test_a_missing_all_reduce_under_adam_with_global_batch_norm_is_seen_in_the_moments():
    """No device makes the update of its examples alone there, and only Adam's first moments have the right mean."""
    report = verify(**programs.given("pmap", "no all-reduce", optimizer="adam", norm=True))
    assert report.causes == ["no all-reduce"], str(report)


@pytest.mark.slow
def test_a_gradient_summed_under_adam_is_found_although_the_parameters_hardly_show_it():
    report = verify(**programs.given("pmap", "sum for mean", optimizer="adam"))
    assert report.causes == ["sum for mean"], str(report)
    assert "This explains 100 % of the difference." in str(report)


def test_a_device_with_padding_alone_that_divides_by_its_own_count_is_named():
    _, batch, _ = programs.start()
    last = {**batch, "weight": (np.arange(programs.B) < 7).astype(np.float32)}
    report = report_on("pmap", "mean of means", last_batch=last)
    assert report.causes == ["mean of means"], str(report)
    assert "inf" in str(report)


def averaged(state, batch, clip_first=False, gradients=1, average=0.1):
    """Two parameters, whose gradients are clipped by their norm; an average of the parameters; over the axis "data"."""

    def clip(g):
        return jax.tree.map(lambda x: x * jax.numpy.minimum(1, 0.05 / optax.tree.norm(g)), g)

    def loss_of(p):
        return jax.numpy.mean((batch["x"] @ p["a"] - batch["y"]) ** 2 + jax.numpy.sin(batch["x"] @ p["b"]))

    loss, g = jax.value_and_grad(loss_of)(state["params"])
    g = clip(jax.lax.pmean(clip(g) if clip_first else g, "data"))
    g["b"] *= gradients
    params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], g)
    kept = jax.tree.map(lambda e, p: e + average * (p - e), state["average"], params)
    return {"params": params, "average": kept}, jax.lax.pmean(loss, "data")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"clip_first": True}, {"nonlinear", "mean of means"}),  # and no statistics, though an average shows it too
        ({"gradients": 4}, {"sum for mean"}),
        ({"average": 0.4}, {"unknown"}),  # and no learning rate, for the parameters are right
    ],
    ids=["clipped first", "one of two summed", "average"],
)
def test_an_average_of_the_parameters_and_one_gradient_of_two_are_told_apart(change, cause):
    random = np.random.default_rng(0)
    start = {"a": random.normal(size=6), "b": random.normal(size=6)}
    batch = {"x": random.normal(size=(16, 6)), "y": random.normal(size=16)}
    state = {"params": start, "average": {name: x + random.normal(size=6) for name, x in start.items()}}
    step = jax.pmap(functools.partial(averaged, **change), "data", devices=jax.devices()[:4])
    report = verify(reference=one_device(averaged, "data"), step=step, state=state, batch=batch, counts=[4])
    assert report.causes, str(report)
    assert set(report.causes) <= cause, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "clipping"])
def test_a_batch_that_is_replicated_in_a_small_step_is_found(optimizer):
    report = verify(**programs.given("jit", "replicated in the step", optimizer=optimizer, key="none"))
    assert report.causes == ["every device computes everything"], str(report)


def test_which_examples_and_which_leaves_are_named():
    dropped = report_on("jit", "dropped").failed[0]
    assert "Examples 15 have no influence" in dropped.sentence
    left_out = report_on("pmap", "left out").failed[0]
    assert left_out.sentence.startswith("opt_state/0/trace/logits/b, params/logits/b: every device makes")


def test_a_result_that_check_vma_refuses_is_named_with_its_cure():
    def reference(state, batch):
        return (state - 0.1 * batch["x"].mean(0)), batch["x"].mean()

    def device_step(state, batch):
        gathered = jax.lax.all_gather(batch["x"], "data", tiled=True)
        return state - 0.1 * gathered.mean(0), gathered.mean()

    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec()}
    report = verify(
        reference=reference, step=jax.jit(jax.shard_map(device_step, mesh=mesh, **specs)), layout="sharded",
        **HALVED, counts=[2],
    )  # fmt: skip
    assert report.causes == ["unseen replication"]
    assert re.search(pattern("unseen replication"), str(report))


def test_the_table_says_under_which_of_them_each_mistake_can_be_made():
    for cause in {programs.CAUSE.get(mistake, mistake): None for mistake in programs.PLANTS}:
        of_cause = [mistake for mistake in programs.PLANTS if programs.CAUSE.get(mistake, mistake) == cause]
        possible = {way for mistake in of_cause for way in programs.ways(mistake)}
        assert MISTAKES[cause].ways == tuple(way for way in WAYS if way in possible), cause


def test_the_page_is_that_of_the_table():
    assert PAGE.read_text() == page(), "python -m pmapdp.verify.mistakes > docs/mistakes.md"
