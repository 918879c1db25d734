"""The programs of the pmap era run on today's JAX, and a mistake that is planted in one changes its numbers."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from marks import quick
from pmap_examples import PER_DEVICE, REPLICATED, SECOND, SPLIT, N, example
from pmap_mistakes import MISTAKES
from pmap_programs import NAMES, run, stand_ins

PAGE = Path(__file__).parents[2] / "docs" / "porting.md"


def page_pmap():
    """The `my_pmap` of the page."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (source,) = (block for block in blocks if "def my_pmap" in block)
    names = {}
    exec(source, names)
    return names["my_pmap"]


@quick(3, "name", NAMES)
def test_the_drop_in_of_the_page_gives_the_numbers_of_pmap(name):
    before, after = (jax.tree.leaves(run(name, pmap=pmap)) for pmap in (None, page_pmap()))
    for x, y in zip(before, after, strict=True):
        np.testing.assert_allclose(np.asarray(x, float), np.asarray(y, float), rtol=1e-5, atol=1e-5)


GROUPED = {
    REPLICATED: lambda x: x,
    PER_DEVICE: lambda x: x,
    SPLIT: lambda x: x.reshape(N, -1, *x.shape[1:]),
    SECOND: lambda x: np.moveaxis(x.reshape(len(x), N, -1, *x.shape[2:]), 1, 0),
}


def groups(name, changes=None):
    """The leaves that the step of N groups on one device returns, as `jax.vmap` with an axis name makes it."""
    case = example(name, changes)
    split = lambda word, tree: jax.tree.map(lambda _: None if word == REPLICATED else 0, tree)  # noqa: E731
    with stand_ins():
        axes = jax.tree.map(split, case.placed, case.arguments)
        arguments = jax.tree.map(lambda word, tree: jax.tree.map(GROUPED[word], tree), case.placed, case.arguments)
        step = jax.jit(jax.vmap(case.step, in_axes=axes, axis_name=case.axis_name, axis_size=N))
        return jax.tree.leaves(jax.device_get(step(*arguments)))


@pytest.mark.slow  # the tests of verify find the same mistakes
@pytest.mark.parametrize("name", NAMES)
def test_every_planted_mistake_changes_the_numbers(name):
    right = groups(name)
    assert len(MISTAKES[name]) >= 3
    for mistake, changes in MISTAKES[name].items():
        both = zip(right, groups(name, changes), strict=True)
        assert not all(np.allclose(x, y, rtol=1e-3, atol=1e-6) for x, y in both), mistake
