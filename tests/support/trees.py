"""Comparing pytrees of arrays, leaf by leaf."""

from typing import Any

import jax
import numpy as np


def require_close(found: Any, wanted: Any, atol: float, rtol: float = 0.0) -> None:
    """Require one structure, and numbers that differ by at most these tolerances."""

    def require_close_leaves(leaf: Any, right: Any) -> None:
        np.testing.assert_allclose(leaf, right, rtol=rtol, atol=atol)

    jax.tree.map(require_close_leaves, found, wanted)
