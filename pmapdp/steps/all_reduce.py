"""The all-reduce of the training step, as pmap and shard_map write it. Under jit the compiler writes it."""

from typing import Any

from jax import lax
from jax.flatten_util import ravel_pytree

from pmapdp.models.layers import AxisName


def all_reduce(tree: Any, axis_name: AxisName) -> Any:
    """The sum of every array over the devices: `lax.psum(tree, axis_name)`.

    XLA makes one all-reduce of the arrays, but on a CPU its devices then still meet once for each of them (seen with
    jax 0.10). So there the arrays travel as one vector.
    """

    def as_vector(tree: Any) -> Any:
        vector, restore = ravel_pytree(tree)
        return restore(lax.psum(vector, axis_name))

    return lax.platform_dependent(tree, cpu=as_vector, default=lambda tree: lax.psum(tree, axis_name))
