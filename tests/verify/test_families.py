"""Programs in the style of the pmap era (tests/programs): each equals its old self on 8 groups; no mistake passes."""

import jax
import pytest
from pmap_examples import N, example
from pmap_mistakes import MISTAKES
from pmap_programs import NAMES, stand_ins

from pmapdp.verify import old_program, verify

BY_DAY = ("accumulation", "ppo_environments")


def report_on(name, changes=None):
    """What verify finds on the program with these changes under pmap, compared with the program as it is."""
    case = example(name)
    step = case.step if changes is None else with_types_of(case, example(name, changes))
    with stand_ins():
        mapped = jax.pmap(step, case.axis_name)
        return verify(**case.given, step=mapped, reference=old_program(case.step, case.axis_name, groups=N))


def with_types_of(case, changed):
    """The step of a changed program, whose classes are others, for the arguments of the program as it is."""
    form, other = (jax.tree.structure(each.given["state"]) for each in (case, changed))

    def step(state, *rest):
        found = changed.step(jax.tree.unflatten(other, jax.tree.leaves(state)), *rest)
        return jax.tree.unflatten(form, jax.tree.leaves(found[0])), found[1]

    return step


@pytest.mark.parametrize("name", [n if n in BY_DAY else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_a_program_equals_its_old_self(name):
    report = report_on(name)
    assert not report.failed, str(report)
    assert report.compared.leaves, str(report)


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        pytest.param(name, mistake, marks=() if name in BY_DAY and number == 1 else pytest.mark.slow)
        for name, mistakes in MISTAKES.items()
        for number, mistake in enumerate(mistakes)
    ],
)
def test_a_mistake_in_a_program_does_not_pass(name, mistake):
    report = report_on(name, MISTAKES[name][mistake])
    assert report.failed, str(report)
    expected = {"no all-reduce": {"no all-reduce", "drift"}, "sum in place of mean": {"sum for mean"}}.get(mistake)
    named = set(report.causes) - {"unknown", "one device's metrics", "scaled metrics", "mean of means"}
    assert expected is None or named <= expected, str(report)
