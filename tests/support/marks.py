"""Which cases of a test plain pytest runs, and which `.ci/run` alone.

What must not be skipped.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest

MNIST_REQUIRED = os.environ.get("PMAPDP_REQUIRE_MNIST") == "1"


def quick(
    number: int, names: str | tuple[str, ...], cases: Iterable[Any]
) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize(names, cases)`, where the cases after the first `number`
    are slow.
    """

    def case(position: int, values: Any):
        if position < number:
            return values
        return pytest.param(
            *(values if isinstance(names, tuple) else (values,)), marks=pytest.mark.slow
        )

    return pytest.mark.parametrize(
        names, [case(*numbered) for numbered in enumerate(cases)]
    )
