"""Collectives on a CPU take one array after the other, though XLA puts them into one operation."""

from collections.abc import Callable
from typing import Any

from jax import lax
from jax.flatten_util import ravel_pytree


def packed(collective: Callable[..., Any]) -> Callable[..., Any]:
    """`collective`, which is `lax.psum` here, with all arrays of its argument in one vector where it runs on CPUs.

    Simulated devices would wait for each other once for each array (seen with jax 0.10).
    Accelerators exchange several arrays at once, and are left alone.
    """

    def run(tree: Any, axis_name: Any) -> Any:
        def as_vector(tree: Any) -> Any:
            # Behind the barrier the arrays are copied. Without it the compiler may move what computes them into the
            # concatenation, and do that work number by number (seen with jax 0.10: a step ten times as long).
            vector, restore = ravel_pytree(lax.optimization_barrier(tree))
            return restore(collective(vector, axis_name))

        return lax.platform_dependent(tree, cpu=as_vector, default=lambda tree: collective(tree, axis_name))

    return run
