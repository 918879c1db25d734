"""Which cases of a test plain pytest runs, which `.ci/run`, and which the night alone; what must not be skipped."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

MNIST_REQUIRED = os.environ.get("PMAPDP_REQUIRE_MNIST") == "1"
# The night's: what takes longest, and checks that `.ci/run` makes, again at random moments or in other cases.
NIGHT = [pytest.mark.slow, pytest.mark.night]


def quick(
    number: int, names: str | tuple[str, ...], cases: Iterable[Any], by_day: int | None = None
) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize(names, cases)`, where the cases after the first `number` are slow, and those after the
    first `by_day` are the night's."""

    def case(position: int, values: Any):
        if position < number:
            return values
        marks = pytest.mark.slow if by_day is None or position < by_day else NIGHT
        return pytest.param(*(values if isinstance(names, tuple) else (values,)), marks=marks)

    return pytest.mark.parametrize(names, [case(*each) for each in enumerate(cases)])
