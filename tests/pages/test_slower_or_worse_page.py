"""docs/slower_or_worse.md: the two runs that it compares are equal."""

import re
from pathlib import Path

import entry
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

PAGE = (Path(__file__).parents[2] / "docs" / "slower_or_worse.md").read_text()
NUMBER = re.compile(r"\d\.\d+")


def epoch_lines(text: str) -> list[str]:
    return re.findall(r"^epoch \d/2  train loss .*$", text, re.MULTILINE)


def numbers_of(lines: list[str]) -> list[list[float]]:
    return [[float(text) for text in NUMBER.findall(line)] for line in lines]


def scan_lengths(b: int) -> list[int]:
    """Return the steps of each loop of a GRU over b texts of 7 time steps."""

    def outputs(texts):
        rngs = nnx.Rngs(0)
        network = nnx.RNN(nnx.GRUCell(3, 4, rngs=rngs), rngs=rngs)
        return network(texts)

    jaxpr = jax.make_jaxpr(outputs)(jnp.ones((b, 7, 3)))
    return [int(steps) for steps in re.findall(r"\blength=(\d+)", str(jaxpr))]


def test_fewer_examples_leave_a_recurrent_network_all_its_steps():
    assert scan_lengths(8) == scan_lengths(16) == [7]


@pytest.mark.nightly
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
