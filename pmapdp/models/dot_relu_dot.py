"""The regression of Flax's guide "Scale up on multiple devices": `python -m pmapdp.train nnx-mesh`."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from pmapdp.data.batches import Batch
from pmapdp.loss import MetricSums
from pmapdp.models import named


class DotReluDot(nnx.Module):
    """`[b, D]` to `[b, D]`, with two `[D, D]` matrices (D is `size`) and no bias; Flax's default initialiser."""

    input_axes = ("batch", "embed")
    size = 1024

    def __init__(
        self,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        param_dtype: DTypeLike = jnp.float32,
    ):
        def matrix(*names: str) -> nnx.Param[jax.Array]:
            values = nnx.initializers.lecun_normal()(
                rngs.params(), (self.size, self.size), param_dtype
            )
            return nnx.Param(values, **named(*names))

        self.dtype = dtype
        self.first, self.second = matrix("embed", "hidden"), matrix("hidden", "embed")

    def __call__(self, x: jax.Array) -> jax.Array:
        """Forward pass."""
        first, second = (
            matrix[...].astype(self.dtype) for matrix in (self.first, self.second)
        )
        return nnx.relu(x.astype(self.dtype) @ first) @ second

    def loss(self, batch: Batch) -> MetricSums:
        """The mean squared error over the D numbers of each example; its labels are targets `[b, D]`."""
        errors = jnp.square(self(batch.inputs) - batch.labels).mean(-1)
        return MetricSums((batch.weights * errors).sum(), None, batch.weights.sum())
