"""Programs in the style of the pmap era (tests/programs) equal their old selves on 8 groups."""

import jax
from marks import quick
from pmap_programs import NAMES, SUM, N, example

from pmapdp.verify import old_program, verify


@quick(0, "name", NAMES)
def test_a_program_equals_its_old_self_and_a_sum_in_place_of_a_mean_does_not(name):
    case, wrong = example(name), name == "accumulation"
    step = example(name, SUM).step if wrong else case.step
    reference = old_program(case.step, case.axis_name, groups=N)
    report = verify(**case.given, step=jax.pmap(step, case.axis_name), reference=reference)
    assert report.causes == ["unknown", "scaled metrics"] * wrong, str(report)  # it clips, which hides the factor
    assert "close" in report.kinds.values(), str(report)
