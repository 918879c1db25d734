"""Every line of the table, planted in `program.py`, fits its row, and few others.

A row that fits besides is true, too: the running statistics of a batch norm that each
device makes alone are its own, and its gradients' mean is a mean of means.
"""

import re
import runpy
from functools import partial

import jax
import pytest
from marks import quick
from planted import PAGE, PLANTS, SECTIONS, SOURCE, given
from steps import BATCH, W, alone, descend, mean, total

from pmapdp.verify import VerificationError, verify
from pmapdp.verify.mistakes import MISTAKES

# Rows that fit a plant besides its own.
ALSO = {
    "local statistics": {"mean of means"},
    "no all-reduce": {"local statistics"},
    "every device computes everything": {"sum for mean"},
}
# The first line of each row; benchmarks/verify_matrix.py plants them all, under each
# way and update rule.
FIRST = [
    plant
    for n, plant in enumerate(PLANTS)
    if plant.row not in {other.row for other in PLANTS[:n]}
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
    # Sums over all devices aren't what one device adds up, whatever is drawn.
    (
        "shard_map",
        [plant for plant in FIRST if plant.row == "same mask"],
        {"sums": True},
    ),
]
CASES.sort(
    key=lambda case: (
        case[2] != {"norm": True}
        and [each.row for each in case[1]] != ["no all-reduce"]
    )
)


@quick(2, ("way", "plants", "options"), CASES)
def test_a_planted_line_fits_its_row_and_the_program_as_it_is_passes(
    way, plants, options
):
    report = verify(
        **given(way, *plants, **options), float64=bool(plants) or len(options) == 1
    )
    wanted = {plant.row for plant in plants if plant.row}
    also = set().union(*(ALSO.get(row, set()) for row in wanted))
    assert wanted <= set(report.rows) <= wanted | also, str(report)
    if "every device computes everything" in wanted:
        assert report.failed[0].name == "the work is split", str(report)
    if plants:
        with pytest.raises(VerificationError):
            report.require()
    else:
        assert report.ok, str(report)
        assert (report.devices, report.updates) == (4, 4)


@pytest.mark.parametrize("out_axes", [0, None])
@pytest.mark.parametrize("average", [mean, total, alone])
def test_the_check_of_the_page_tells_if_devices_hold_the_same(average, out_axes):
    """A sum in place of a mean keeps them equal, as the page says."""
    page: dict = {}
    exec(re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1], page)
    device_step = partial(descend, average=average)
    step = jax.pmap(device_step, "i", in_axes=(None, 0), out_axes=out_axes)
    batch = jax.tree.map(lambda x: x.reshape(8, 2, *x.shape[1:]), BATCH)
    w, _ = step(W, batch)
    assert (page["largest_spread"]({"w": w}) > 0) == (average is alone)


def test_the_page_has_a_section_for_every_mistake(capsys):
    runpy.run_path(str(PAGE.with_suffix(".py")), run_name="__main__")
    assert PAGE.read_text() == capsys.readouterr().out, (
        "python docs/mistakes.py > docs/mistakes.md"
    )
    assert list(SECTIONS) == list(MISTAKES)
    assert all(SOURCE.count(plant.right) == 1 for plant in PLANTS)
