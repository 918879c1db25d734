"""Every line of the catalogue, planted in the program of `program.py`, is found by its name, and never by another."""

import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from planted import PLANTS, SOURCE, WAYS, given
from program import RULES

from pmapdp.verify import VerificationError, verify
from pmapdp.verify.mistakes import CATALOGUE

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
EVERY = [(plant, way) for plant in PLANTS for way in plant.under]
BY_TURNS = [(plant, plant.under[number % len(plant.under)]) for number, plant in enumerate(PLANTS)]
slow = pytest.mark.slow


def name(value):
    return value if isinstance(value, str) else f"{value.cause}: {value.wrong}"[:60]


def says(cause):
    """The sentence of a cause as a regular expression, for any values in it."""
    return re.sub(r"\\{.*?\\}", ".+", re.escape(" ".join(CATALOGUE[cause]["says"].split())))


@pytest.mark.parametrize(
    ("plant", "way"),
    [pytest.param(*each, marks=() if each in BY_TURNS[::2] else slow) for each in EVERY],
    ids=name,
)
def test_a_planted_line_is_found_by_its_name(plant, way):
    report = verify(**given(way, plant))
    assert report.causes == [plant.cause], str(report)
    assert re.search(says(plant.cause), str(report)), str(report)
    with pytest.raises(VerificationError, match=says(plant.cause)):
        report.require()


ENTANGLED = [plant for plant in PLANTS if "check" not in plant.cause and len(plant.under) == 3]
PAIRS = [pair for near in (1, 3) for pair in zip(ENTANGLED, ENTANGLED[near:] + ENTANGLED[:near], strict=True)]
PAIRS = [(a, b) for a, b in PAIRS if a.right != b.right and all(a.options.get(k, v) == v for k, v in b.options.items())]
TRUE_TOO = {"same mask": {"mean of means"}, "key stands still": {"mean of means"}}


@slow
@pytest.mark.parametrize(("one", "other"), PAIRS, ids=name)
def test_two_lines_never_get_the_name_of_a_third(one, other):
    report = verify(**given(list(WAYS)[PAIRS.index((one, other)) % 3], one, other))
    true = {one.cause, other.cause, "unknown"}.union(*(TRUE_TOO.get(each.cause, ()) for each in (one, other)))
    assert report.causes, str(report)
    assert set(report.causes) <= true, str(report)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options",
    [
        {"norm": True},
        *(pytest.param({"optimizer": rule, "key": "state"}, marks=slow) for rule in RULES),
        pytest.param({"key": "none", "sums": True}, marks=slow),
    ],
    ids=str,
)
def test_the_program_as_it_is_passes(way, options):
    for float64 in (True, False):
        report = verify(**given(way, **options), float64=float64)
        assert report.ok, str(report)
        assert report.compared.updates == dict.fromkeys((1, 2, 3, 4), (4,))


def test_which_examples_and_which_leaves_are_named():
    (dropped,) = (plant for plant in PLANTS if plant.cause == "dropped")
    assert "examples 15 have no influence" in str(verify(**given("pmap", dropped)))
    (_, one_layer) = (plant for plant in PLANTS if plant.cause == "no all-reduce")
    (check,) = verify(**given("pmap", one_layer)).failed
    assert set(check.leaves) == {f"{tree}/logits/{x}" for tree in ("params", "opt_state/0/trace") for x in "wb"}


def test_a_missing_all_reduce_under_adam_with_global_batch_norm_is_seen_in_the_moments():
    """No device makes the update of its examples alone there, and only Adam's first moments have the right mean."""
    report = verify(**given("pmap", PLANTS[0], optimizer="adam", norm=True))
    assert report.causes == ["no all-reduce"], str(report)


def test_the_page_is_made_from_the_catalogue():
    made = subprocess.run([sys.executable, PAGE.with_suffix(".py")], capture_output=True, text=True, check=True)
    assert PAGE.read_text() == made.stdout, "python docs/mistakes.py > docs/mistakes.md"
    assert all(SOURCE.count(plant.right) == 1 for plant in PLANTS)
    assert jax.device_count() == 8
