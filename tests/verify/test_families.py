"""Programs in the style of the pmap era (tests/programs): each equals its old self on 8 groups; no mistake passes."""

import jax
import pytest
from pmap_programs import MISTAKES, NAMES, N, example

from pmapdp.verify import old_program, verify

MISTAKEN = [(name, mistake) for name in NAMES for mistake in (None, *MISTAKES[name])]
BY_DAY = [("accumulation", "sum in place of mean")]


def with_types_of(case, changed):
    """The step of a changed program, whose classes are others, for the arguments of the program as it is."""
    form, other = (jax.tree.structure(each.given["state"]) for each in (case, changed))

    def step(state, *rest):
        found = changed.step(jax.tree.unflatten(other, jax.tree.leaves(state)), *rest)
        return jax.tree.unflatten(form, jax.tree.leaves(found[0])), found[1]

    return step


@pytest.mark.parametrize(
    ("name", "mistake"),
    [pytest.param(*each, marks=() if each in BY_DAY else pytest.mark.slow) for each in MISTAKEN],
)
def test_a_program_equals_its_old_self_and_a_mistake_does_not_pass(name, mistake):
    case = example(name)
    step = with_types_of(case, example(name, MISTAKES[name][mistake])) if mistake else case.step
    reference = old_program(case.step, case.axis_name, groups=N)
    report = verify(**case.given, step=jax.pmap(step, case.axis_name), reference=reference)
    assert bool(report.failed) == bool(mistake), str(report)
    assert report.compared.leaves, str(report)
    expected = {"no all-reduce": {"no all-reduce", "drift"}, "sum in place of mean": {"sum for mean"}}.get(mistake)
    named = set(report.causes) - {"unknown", "one device's metrics", "scaled metrics", "mean of means"}
    assert expected is None or named <= expected, str(report)
