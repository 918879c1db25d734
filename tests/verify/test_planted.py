"""`verify` finds the mistake of each wrong line that is planted in `program.py`.

It may find a second one, if that is true, too. For example, each device that makes the
statistics of its batch norm alone has its own, and its gradients' mean is a mean of
means.
"""

import itertools
import re
import runpy
from functools import partial

import jax
import pytest
from marks import quick
from planted import PAGE, PLANTS, SECTIONS, SOURCE, make_arguments
from steps import BATCH, W, alone, descend, mean, total

from pmapdp.verify import VerificationError, verify
from pmapdp.verify.mistakes import MISTAKES

# Mistakes that fit a wrong line besides its own.
TRUE_TOO = {
    "local statistics": {"mean of means"},
    "no all-reduce": {"local statistics"},
    "every device computes everything": {"sum for mean"},
}
FIRST = {}  # the first wrong line of each mistake; benchmarks/verify_matrix.py has all
LAST = {plant.mistake: plant for plant in PLANTS}
for plant in PLANTS:
    FIRST.setdefault(plant.mistake, plant)
CASES = [  # strategy, wrong lines, and options of the program
    ("pmap", [FIRST["no all-reduce"]], {}),
    ("pmap", [], {"norm": True}),
    # No device makes the update of its examples alone here, and only Adam's first
    # moments have the correct mean.
    ("pmap", [FIRST["no all-reduce"]], {"optimizer": "adam", "norm": True}),
    ("shard_map", [], {"key": "none", "sums": True}),
    ("jit", [], {"optimizer": "adamw"}),
    ("pmap", [], {"optimizer": "momentum in bfloat16", "key": "state"}),
    # Sums over all devices aren't what one device adds up, whatever is drawn.
    ("shard_map", [FIRST["same mask"]], {"sums": True}),
    # Most of this work is the optimizer's, which is the same for any batch.
    (
        "jit",
        [LAST["every device computes everything"]],
        {"optimizer": "adamw", "key": "none"},
    ),
]
for number, plant in enumerate(FIRST.values()):
    if plant.mistake != "no all-reduce":
        strategies = plant.strategies
        CASES.append((strategies[number % len(strategies)], [plant], {}))


@quick(2, ("strategy", "plants", "options"), CASES)
def test_a_planted_line_fits_its_mistake_and_the_program_as_it_is_passes(
    strategy, plants, options
):
    arguments = make_arguments(strategy, *plants, **options)
    # A few of the correct programs are compared in float32.
    float64 = bool(plants) or len(options) == 1
    report = verify(**arguments, float64=float64)
    expected = {plant.mistake for plant in plants if plant.mistake}
    true_too = set().union(*(TRUE_TOO.get(mistake, set()) for mistake in expected))
    assert expected <= set(report.mistakes) <= expected | true_too, str(report)
    if "every device computes everything" in expected:
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
    """A sum instead of a mean keeps them equal, as the page says."""
    page: dict = {}
    exec(re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1], page)
    device_step = partial(descend, average=average)
    step = jax.pmap(device_step, "i", in_axes=(None, 0), out_axes=out_axes)
    batch = jax.tree.map(lambda x: x.reshape(8, 2, *x.shape[1:]), BATCH)
    w, _ = step(W, batch)
    assert (page["largest_spread"]({"w": w}) > 0) == (average is alone)


def test_the_page_has_a_section_for_every_mistake(capsys):
    page = runpy.run_path(str(PAGE.with_suffix(".py")), run_name="__main__")
    assert PAGE.read_text() == capsys.readouterr().out, (
        "python docs/mistakes.py > docs/mistakes.md"
    )
    assert list(SECTIONS) == list(MISTAKES)
    assert sorted(itertools.chain(*page["PLACES"].values())) == sorted(MISTAKES)
    assert all(SOURCE.count(plant.correct) == 1 for plant in PLANTS)
