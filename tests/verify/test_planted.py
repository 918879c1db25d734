"""Every line of the catalogue, planted in the program of `program.py`, is found by its name, and never by another."""

import runpy
from pathlib import Path

import pytest
from marks import quick
from planted import PLANTS, SOURCE, given

from pmapdp.verify import VerificationError, verify

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
# The first line of each cause; benchmarks/verify_matrix.py plants them all, under each
# way and update rule.
FIRST = [
    plant
    for n, plant in enumerate(PLANTS)
    if plant.cause not in {other.cause for other in PLANTS[:n]}
]
CASES = [
    (plant.under[number % len(plant.under)], [plant], {})
    for number, plant in enumerate(FIRST)
]
CASES += [
    ("pmap", [], {"norm": True}),
    ("shard_map", [], {"key": "none", "sums": True}),
    ("jit", [], {"optimizer": "adamw"}),
    ("pmap", [], {"optimizer": "momentum in bfloat16", "key": "state"}),
    # No device makes the update of its examples alone here, and only Adam's first
    # moments have the right mean.
    ("pmap", PLANTS[:1], {"optimizer": "adam", "norm": True}),
]
CASES.sort(
    key=lambda case: (
        case[2] != {"norm": True}
        and [each.cause for each in case[1]] != ["no all-reduce"]
    )
)


@quick(2, ("way", "plants", "options"), CASES)
def test_a_planted_line_is_found_by_its_name_and_the_program_as_it_is_passes(
    way, plants, options
):
    report = verify(
        **given(way, *plants, **options), float64=bool(plants) or len(options) == 1
    )
    assert report.causes == [plant.cause for plant in plants], str(report)
    if plants:
        with pytest.raises(VerificationError):
            report.require()
    else:
        assert report.ok, str(report)
        assert report.updates == dict.fromkeys((1, 2, 3, 4), (4,))


def test_the_page_is_made_from_the_catalogue(capsys):
    runpy.run_path(str(PAGE.with_suffix(".py")), run_name="__main__")
    assert PAGE.read_text() == capsys.readouterr().out, (
        "python docs/mistakes.py > docs/mistakes.md"
    )
    assert all(SOURCE.count(plant.right) == 1 for plant in PLANTS)
