"""Every line of the catalogue, planted in the program of `program.py`, is found by its name, and never by another."""

import re
import runpy
from pathlib import Path

import pytest
from marks import quick
from planted import PLANTS, SOURCE, given
from program import RULES

from pmapdp.verify import VerificationError, verify
from pmapdp.verify.mistakes import CATALOGUE

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
BY_TURNS = [(plant, plant.under[number % len(plant.under)]) for number, plant in enumerate(PLANTS)]
FIRST = [next(plant for plant in PLANTS if plant.cause == each) for each in ("no all-reduce", "one device's metrics")]


def says(cause):
    """The sentence of a cause as a regular expression, for any values in it."""
    return re.sub(r"\\\{.*?\\\}", ".+", re.escape(" ".join(CATALOGUE[cause]["says"].split())))


@pytest.mark.parametrize(
    ("plant", "way"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (each[0] not in FIRST)) for each in BY_TURNS],
    ids=lambda value: value if isinstance(value, str) else f"{value.cause}: {value.wrong}"[:60],
)
def test_a_planted_line_is_found_by_its_name(plant, way):
    report = verify(**given(way, plant))
    assert report.causes == [plant.cause], str(report)
    with pytest.raises(VerificationError) as error:
        report.require()
    assert re.search(says(plant.cause), " ".join(str(error.value).split())), str(report)


RIGHT = [("pmap", {"norm": True}), ("shard_map", {"key": "none", "sums": True}), ("jit", {"optimizer": "adamw"})]
RIGHT += [("pmap", {"optimizer": rule, "key": "state"}) for rule in RULES if rule not in ("momentum", "adamw")]


@quick(1, ("way", "options"), RIGHT)
def test_the_program_as_it_is_passes(way, options):
    report = verify(**given(way, **options), float64=len(options) == 1)
    assert report.ok, str(report)
    assert report.compared.updates == dict.fromkeys((1, 2, 3, 4), (4,))


@pytest.mark.slow
def test_a_missing_all_reduce_under_adam_with_global_batch_norm_is_seen_in_the_moments():
    """No device makes the update of its examples alone there, and only Adam's first moments have the right mean."""
    report = verify(**given("pmap", PLANTS[0], optimizer="adam", norm=True))
    assert report.causes == ["no all-reduce"], str(report)


def test_the_page_is_made_from_the_catalogue(capsys):
    runpy.run_path(str(PAGE.with_suffix(".py")), run_name="__main__")
    assert PAGE.read_text() == capsys.readouterr().out, "python docs/mistakes.py > docs/mistakes.md"
    assert all(SOURCE.count(plant.right) == 1 for plant in PLANTS)
