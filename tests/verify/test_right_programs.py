"""Right programs pass, in float64 and in float32: rounding is told from mistakes (`pmapdp.verify.rounding`)."""

import jax
import numpy as np
import pytest
import right_programs
from marks import quick
from right_programs import HALVED

from pmapdp.verify import trees, verify
from pmapdp.verify.plain_step import PlainStep
from pmapdp.verify.rounding import reference_updates

FIRST = right_programs.fully_sharded_with_jit  # that of plain `pytest`
BY_DAY = [(FIRST, True)] + [(each, number % 3 > 0) for number, each in enumerate(right_programs.RIGHT)]
AT_NIGHT = [(each, float64) for each in right_programs.RIGHT for float64 in (True, False)]


@quick(1, ("program", "float64"), dict.fromkeys(BY_DAY + AT_NIGHT), by_day=len(BY_DAY))
def test_a_right_program_passes(program, float64):
    report = verify(**program(), float64=float64)
    assert report.ok, str(report)
    given = program()
    counts = tuple(given.get("counts", (1, 2, 4, 8)))
    updates = 3 + ("last_batch" in given)
    assert report.compared.updates == dict.fromkeys(range(1, updates + 1), counts), str(report)


@pytest.mark.parametrize(
    "program",
    [
        right_programs.batch_norm_and_dropout_with_jit, right_programs.adam_with_pmap, right_programs.zero_1,
        right_programs.stacked_pmap_with_linen, right_programs.plain_arrays_with_pmap,
        right_programs.mixed_precision_with_pmap,
    ],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_the_tolerance_covers_the_rounding_of_another_order_of_the_batch(program):
    """None of these depends on the order. Half of the tolerance is enough."""
    given = program()
    keys = (given["key"],) if given.get("key") is not None else ()
    plain = PlainStep(given["reference"], trees.as_arrays(given["state"]), (), 0)
    reference = plain.reference(plain.convention(given["batch"], keys))
    (update,) = reference_updates(reference, plain.state, [given["batch"]], [keys], 0, plain.ignored)
    order = np.random.default_rng(0).permutation(update.examples)
    permuted = reference(update._replace(batch=trees.rows(update.batch, order)).arguments)
    for part, allowed in update.allowed.items():
        for name, most in allowed.items():
            assert trees.distance(permuted[part][name], update.values[part][name]) <= most.tolerance / 2, name


@pytest.mark.slow
def test_a_right_program_in_mixed_precision_passes():
    report = verify(**right_programs.mixed_precision_with_pmap())
    assert report.ok, str(report)
    assert "given float64, it computes in bfloat16" in report.precision


def test_a_program_that_does_not_keep_float64_is_compared_in_its_own_type():
    def reference(state, batch):
        return (state - 0.1 * batch["x"].mean(0)).astype(np.float32), batch["x"].sum()

    report = verify(reference=reference, step=jax.jit(reference), layout="sharded", **HALVED)
    assert report.ok
    assert "given float64, it computes in float32" in report.precision
