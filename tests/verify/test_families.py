"""Programs in the style of the pmap era (tests/programs): each equals its old self on 8 groups; no mistake passes."""

import jax
from marks import quick
from pmap_programs import MISTAKES, NAMES, N, example

from pmapdp.verify import old_program, verify

CAUSES = {"accumulation": {"sum for mean"}, "hugging_face_tokens": {"same mask"}}
CAUSES |= {"ppo_environments": {"no all-reduce", "drift"}}
EVERY = [*((name, True) for name in MISTAKES), *((name, False) for name in NAMES if name != "accumulation")]


def with_types_of(case, changed):
    """The step of a changed program, whose classes are others, for the arguments of the program as it is."""
    form, other = (jax.tree.structure(each.given["state"]) for each in (case, changed))

    def step(state, *rest):
        found = changed.step(jax.tree.unflatten(other, jax.tree.leaves(state)), *rest)
        return jax.tree.unflatten(form, jax.tree.leaves(found[0])), found[1]

    return step


@quick(1, ("name", "wrong"), EVERY)
def test_a_program_equals_its_old_self_and_a_mistake_does_not_pass(name, wrong):
    case = example(name)
    step = with_types_of(case, example(name, MISTAKES[name])) if wrong else case.step
    reference = old_program(case.step, case.axis_name, groups=N)
    report = verify(**case.given, step=jax.pmap(step, case.axis_name), reference=reference)
    assert bool(report.failed) == wrong, str(report)
    assert "close" in report.kinds.values(), str(report)
    named = set(report.causes) - {"unknown", "one device's metrics", "scaled metrics", "mean of means"}
    assert named <= CAUSES.get(name, set()), str(report)
