"""Programs in the style of the pmap era (tests/programs): each equals its old self on 8 groups; no mistake passes."""

import jax
import pytest
from marks import quick
from pmap_examples import N, example
from pmap_mistakes import MISTAKES
from pmap_programs import NAMES, stand_ins

from pmapdp.verify import old_program, verify

# For each program which of its arguments are state, batch and key, and which leaves belong to a device.
HARNESS = {
    "linen_dynamic_scale": {"state": 0, "batch": 1, "per_device": ["batch_stats"]},
    "haiku_mixed_precision": {"state": 0, "batch": 1, "per_device": ["state"]},
    "hugging_face_tokens": {"state": 0, "batch": 1, "per_device": ["dropout_rng"]},
    "score_scan": {"state": 0, "batch": 1, "batch_axis": 1, "per_device": ["/0"]},
    "ppo_environments": {"state": (0, 1), "key": 2, "per_device": ["/1", "key"]},
    "graph_equinox": {"state": (0, 1), "batch": (2, 3), "per_device": ["batch"]},
    "accumulation": {"state": (0, 1), "batch": 2},
    "mixup": {"state": (0, 1), "key": 2, "batch": (3, 4)},
    "linen_image": {"state": 0, "batch": 1, "key": 2, "per_device": ["key"]},
    "nnx_image": {"state": (0, 1), "batch": (2, 3)},
}


def report_on(name, changes=None, both=None):
    """What verify finds on the program with these changes under pmap, beside the program as it is on one device.

    Args:
        both: changes in the program on one device, too.
    """
    case, harness = example(name, both), dict(HARNESS[name])
    step = case.step if changes is None else with_types_of(case, example(name, {**(both or {}), **changes}))
    given = {
        part: tuple(case.arguments[i] for i in place) if isinstance(place, tuple) else case.arguments[place]
        for part, place in harness.items()
        if part in ("state", "batch", "key")
    }
    with stand_ins():
        return verify(
            **harness | given,
            step=jax.pmap(step, case.axis_name),
            reference=old_program(case.step, case.axis_name, groups=N),
        )


def with_types_of(case, changed):
    """The step of a changed program, whose classes are others, for the arguments of the program as it is."""
    forms = [tuple(map(jax.tree.structure, pair)) for pair in zip(case.arguments, changed.arguments, strict=True)]
    back = {there: here for here, there in forms}

    def step(*arguments):
        given = [jax.tree.unflatten(there, jax.tree.leaves(x)) for x, (_, there) in zip(arguments, forms, strict=True)]
        found = changed.step(*given)
        pairs = ((x, jax.tree.structure(x)) for x in found)
        return tuple(jax.tree.unflatten(back.get(form, form), jax.tree.leaves(x)) for x, form in pairs)

    return step


def test_every_program_has_a_harness_and_mistakes():
    assert set(HARNESS) == set(NAMES) == set(MISTAKES)
    assert all(len(mistakes) >= 3 for mistakes in MISTAKES.values())


@quick(1, "name", sorted(HARNESS), by_day=5)
def test_a_program_equals_its_old_self(name):
    report = report_on(name)
    assert not report.causes, str(report)
    assert report.compared.leaves, str(report)


@pytest.mark.slow
def test_a_program_in_half_precision_is_proven_where_it_computes_in_float32():
    """The gradient of a bias in front of a batch norm is 0, and Adam makes an update of what rounding leaves of it."""
    float32 = {"compute=bfloat16": "compute=float32"}
    assert "params/linear/b" in report_on("haiku_mixed_precision").compared.blind
    report = report_on("haiku_mixed_precision", both=float32)
    assert set(report.compared.blind) == {"params/linear/b"}, str(report)
    report.require(not_compared=["params/linear/b"])


# By day one mistake in each program, by turns.
FIRST = [(name, list(MISTAKES[name])[n % len(MISTAKES[name])]) for n, name in enumerate(MISTAKES)]
ALL = [(name, mistake) for name in MISTAKES for mistake in MISTAKES[name]]


@quick(0, ("name", "mistake"), dict.fromkeys([*FIRST, *ALL]), by_day=len(FIRST))
def test_a_mistake_in_a_program_does_not_pass(name, mistake):
    assert report_on(name, MISTAKES[name][mistake]).failed


@pytest.mark.slow
def test_a_key_that_is_the_same_in_every_update_hides_no_other_mistake():
    report = report_on("linen_image", {"return losses.mean(), logits": "return losses.sum(), logits"})
    (state,) = (check for check in report.failed if check.name == "same update")
    assert state.cause not in ("", "follows"), str(report)
