"""Every line of the catalogue, planted in the program of `program.py`, is found by its name, and never by another."""

import runpy
from pathlib import Path

import pytest
from marks import quick
from planted import PLANTS, SOURCE, given

from pmapdp.verify import VerificationError, verify

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
# The first line of each cause; benchmarks/verify_matrix.py plants them all, under each way and update rule.
FIRST = [plant for n, plant in enumerate(PLANTS) if plant.cause not in {other.cause for other in PLANTS[:n]}]
BY_TURNS = [(plant, plant.under[number % len(plant.under)]) for number, plant in enumerate(FIRST)]
BY_TURNS.sort(key=lambda each: each[0].cause != "no all-reduce")


@quick(1, ("plant", "way"), BY_TURNS)
def test_a_planted_line_is_found_by_its_name(plant, way):
    report = verify(**given(way, plant))
    assert report.causes == [plant.cause], str(report)
    with pytest.raises(VerificationError):
        report.require()


RIGHT = [("pmap", {"norm": True}), ("shard_map", {"key": "none", "sums": True}), ("jit", {"optimizer": "adamw"})]
RIGHT += [("pmap", {"optimizer": "momentum in bfloat16", "key": "state"})]


@quick(1, ("way", "options"), RIGHT)
def test_the_program_as_it_is_passes(way, options):
    report = verify(**given(way, **options), float64=len(options) == 1)
    assert report.ok, str(report)
    assert report.updates == dict.fromkeys((1, 2, 3, 4), (4,))


@pytest.mark.slow
def test_a_missing_all_reduce_under_adam_with_global_batch_norm_is_seen_in_the_moments():
    """No device makes the update of its examples alone there, and only Adam's first moments have the right mean."""
    report = verify(**given("pmap", PLANTS[0], optimizer="adam", norm=True))
    assert report.causes == ["no all-reduce"], str(report)


def test_the_page_is_made_from_the_catalogue(capsys):
    runpy.run_path(str(PAGE.with_suffix(".py")), run_name="__main__")
    assert PAGE.read_text() == capsys.readouterr().out, "python docs/mistakes.py > docs/mistakes.md"
    assert all(SOURCE.count(plant.right) == 1 for plant in PLANTS)
