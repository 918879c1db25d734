"""The regression of Flax's guide "Scale up on multiple devices".

`python -m pmapdp.train nnx-mesh` trains it.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from pmapdp.data.batches import Batch
from pmapdp.loss import MetricSums
from pmapdp.models import axis_names


class DotReluDot(nnx.Module):
    """`[b, D]` to `[b, D]`, with two `[D, D]` matrices and no bias. D is `size`."""

    input_axes = ("batch", "embed")
    size = 1024

    def __init__(
        self,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        param_dtype: DTypeLike = jnp.float32,
    ):
        self.dtype = dtype
        initialise = nnx.initializers.lecun_normal()  # Flax's default
        shape = (self.size, self.size)
        first = initialise(rngs.params(), shape, param_dtype)
        second = initialise(rngs.params(), shape, param_dtype)
        self.first = nnx.Param(first, **axis_names("embed", "hidden"))
        self.second = nnx.Param(second, **axis_names("hidden", "embed"))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the outputs."""
        first = self.first[...].astype(self.dtype)
        second = self.second[...].astype(self.dtype)
        return nnx.relu(x.astype(self.dtype) @ first) @ second

    def loss(self, batch: Batch) -> MetricSums:
        """Return sums of each example's mean squared error over its D numbers.

        The labels are targets `[b, D]`.
        """
        errors = jnp.square(self(batch.inputs) - batch.labels).mean(-1)
        return MetricSums((batch.weights * errors).sum(), None, batch.weights.sum())
