"""The programs of the pmap era run on today's JAX, and `my_pmap` of the page gives their numbers."""

import re
from pathlib import Path

import jax
import numpy as np
from marks import quick
from pmap_programs import NAMES, run

PAGE = Path(__file__).parents[2] / "docs" / "porting.md"


def page_pmap():
    """The `my_pmap` of the page."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (source,) = (block for block in blocks if "def my_pmap" in block)
    names = {}
    exec(source, names)
    return names["my_pmap"]


@quick(1, "name", NAMES, by_day=5)
def test_the_drop_in_of_the_page_gives_the_numbers_of_pmap(name):
    before, after = (jax.tree.leaves(run(name, pmap=pmap)) for pmap in (None, page_pmap()))
    for x, y in zip(before, after, strict=True):
        np.testing.assert_allclose(np.asarray(x, float), np.asarray(y, float), rtol=1e-5, atol=1e-5)
