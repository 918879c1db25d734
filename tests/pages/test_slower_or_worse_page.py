"""docs/slower_or_worse.md: the two runs that it compares are equal."""

import re
from pathlib import Path

import entry
import numpy as np
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "slower_or_worse.md").read_text()
NUMBER = re.compile(r"\d\.\d+")


def epoch_lines(text: str) -> list[str]:
    return re.findall(r"^epoch \d/2  train loss .*$", text, re.MULTILINE)


def numbers_of(lines: list[str]) -> list[list[float]]:
    return [[float(text) for text in NUMBER.findall(line)] for line in lines]


@pytest.mark.slow
def test_one_device_and_eight_print_what_the_page_shows():
    commands = re.findall(r"^python -m pmapdp.train (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    results = []
    for flags in commands:
        done = entry.run_command("train", *flags.split(), "--no-progress")
        assert done.status == 0, done.err
        results.append(numbers_of(epoch_lines(done.out)))
    one_device, eight = results
    np.testing.assert_allclose(eight, one_device, atol=2e-4)
    # Another version of JAX rounds in another order, and Adam amplifies it.
    np.testing.assert_allclose(one_device, numbers_of(epoch_lines(PAGE)), atol=5e-3)
