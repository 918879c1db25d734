"""Flax's own dropout, batch norm and attention, made to keep the contracts, as PyTorch's `convert_sync_batchnorm` does.

A layer of Flax draws one mask for all examples that it sees and takes moments over them: on N devices both would depend
on N. `exchange` turns each such layer of a built model into a subclass of it that differs in two things: a mask belongs
to the example, and moments are those of the global batch. The layer learns of both from the step that runs
(`Context.entered`), so it is called as before. All settings, names and parameters stay. `docs/own.md` describes it.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from pmapdp.models.layers import Context, current_context


class ExampleNumber(nnx.Variable[jax.Array]):
    """Which of the layers that draw random numbers a layer is: `[]`, or `[L]` in a scan over L layers."""


def masks(shape: tuple[int, ...], keep: float, number: jax.Array, context: Context) -> jax.Array:
    """`[b, ...]` masks of this shape, one drawn for each example from its own key and the layer's number."""
    if context.keys is None or shape[0] != len(context.keys):
        raise ValueError(
            f"dropout sees {list(shape)}, whose first axis is not that of the examples: move that axis to the front"
        )

    def of_example(key: jax.Array) -> jax.Array:
        return jax.random.bernoulli(jax.random.fold_in(key, number), keep, shape[1:])

    return jax.vmap(of_example)(context.keys)


class ExampleDropout(nnx.Dropout):
    """`nnx.Dropout` with a mask that belongs to the example."""

    number: ExampleNumber

    def __call__(self, inputs: jax.Array, *, deterministic: bool | None = None, **_: Any) -> jax.Array:
        """`[b, ...]` to the same; the identity in evaluation, and where the layer itself is `deterministic`."""
        context, off = current_context(), self.deterministic if deterministic is None else deterministic
        if not context.train or off or self.rate == 0:
            return inputs
        if self.rate == 1:
            return jnp.zeros_like(inputs)
        one = {axis % inputs.ndim for axis in self.broadcast_dims}
        shape = tuple(1 if axis in one and axis else size for axis, size in enumerate(inputs.shape))
        keep = masks(shape, 1 - self.rate, self.number[...], context)
        return jnp.where(keep, inputs / (1 - self.rate), 0).astype(inputs.dtype)


class ExampleAttention(nnx.MultiHeadAttention):
    """`nnx.MultiHeadAttention` whose dropout draws a mask for each example."""

    number: ExampleNumber

    def __call__(self, *inputs: Any, deterministic: bool | None = None, rngs: Any = None, **options: Any) -> jax.Array:
        """As the layer of Flax."""
        context, off = current_context(), self.deterministic if deterministic is None else deterministic
        rngs = functools.partial(tuple, (self.number[...], context))  # what `attend` gets as `dropout_rng`
        return super().__call__(*inputs, deterministic=bool(off or not context.train), rngs=rngs, **options)


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    dropout_rng: Any = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = True,
    is_causal: bool = False,
    **_: Any,
) -> jax.Array:
    """Attention of h heads, `[b, q, h, d]` by `[b, k, h, d]` twice to `[b, q, h, d]`; the softmax of Vaswani et al.,
    "Attention is all you need", NeurIPS 2017, with dropout on its weights. `dropout_rng` is None without dropout."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", query / jnp.sqrt(query.shape[-1]).astype(query.dtype), key)
    scores = scores if bias is None else scores + bias
    lowest = jnp.finfo(scores.dtype).min
    if is_causal:
        scores = jnp.where(jnp.tri(scores.shape[-2], scores.shape[-1], dtype=bool), scores, lowest)
    weights = jax.nn.softmax(scores if mask is None else jnp.where(mask, scores, lowest))
    if dropout_rng is not None:
        number, context = dropout_rng
        b, h, q, k = weights.shape
        keep = masks((b, 1 if broadcast_dropout else h, q, k), 1 - dropout_rate, number, context)
        weights = jnp.where(keep, weights / (1 - dropout_rate), 0)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


class GlobalBatchNorm(nnx.BatchNorm):
    """`nnx.BatchNorm` with the moments of the global batch, in which padding does not count."""

    def __call__(self, x: jax.Array, use_running_average: bool | None = None, *, mask: Any = None) -> jax.Array:
        """`[b, ...]` to the same; in training it also moves the running moments. A frozen layer, one that uses its
        running moments in training too, stays frozen."""
        context, frozen = current_context(), use_running_average
        frozen = self.use_running_average if frozen is None else frozen
        features = self.axis % x.ndim
        wide = tuple(size if axis == features else 1 for axis, size in enumerate(x.shape))
        if mask is not None:
            raise ValueError("batch norm with a mask is not exchanged: set the weights of the examples instead")
        mean, variance = self.mean[...], self.var[...]
        if context.train and not frozen:
            mean, variance = self.moments(x.astype(mean.dtype), features, context)
        scale, bias = (None if each is None else each[...].reshape(wide) for each in (self.scale, self.bias))
        x, mean, variance = self.promote_dtype((x, mean, variance), dtype=self.dtype)
        y = (x - mean.reshape(wide)) * lax.rsqrt(variance.reshape(wide) + self.epsilon)
        y = y if scale is None else y * scale
        return (y if bias is None else y + bias).astype(x.dtype)

    def moments(self, x: jax.Array, features: int, context: Context) -> tuple[jax.Array, jax.Array]:
        """Mean and variance `[C]` over the examples of all devices, weighted; moves the running ones."""
        rest = tuple(axis for axis in range(1, x.ndim) if axis != features)
        weights = jnp.ones(len(x)) if context.weights is None else context.weights
        if len(weights) != len(x):
            raise ValueError(
                f"batch norm sees {list(x.shape)}, whose first axis is not that of the examples: leave it there"
            )
        weights = weights.astype(x.dtype)[:, None]

        def mean_of(values: jax.Array) -> tuple[jax.Array, jax.Array]:
            sums = (weights * values.mean(rest)).sum(0), weights.sum()
            sums = sums if context.axis_name is None else lax.pmean(sums, context.axis_name)
            return sums[0] / jnp.where(sums[1] > 0, sums[1], 1), sums[1]

        mean, count = mean_of(x)
        shape = tuple(size if axis == features else 1 for axis, size in enumerate(x.shape))
        variance, _ = mean_of(jnp.square(x - mean.reshape(shape)))
        kept = jnp.where(count > 0, self.momentum, 1)  # padding alone moves nothing
        self.mean[...] = kept * self.mean[...] + (1 - kept) * mean
        self.var[...] = kept * self.var[...] + (1 - kept) * variance
        return mean, variance


def exchange(model: nnx.Module) -> nnx.Module:
    """Exchange the layers of a built model, in place; returns it.

    Layers of a subclass of Flax's are left as they are, because what it changes is not known here.
    """
    drawing = 0
    layer: Any  # of the kind that is asked for
    for _, layer in nnx.iter_modules(model):
        kind = type(layer)
        if kind is nnx.BatchNorm:
            layer.__class__ = GlobalBatchNorm
            for moment in (layer.mean, layer.var):
                moment.set_value(moment[...].astype(jnp.promote_types(moment[...].dtype, layer.param_dtype)))
        elif kind is nnx.Dropout or (kind is nnx.MultiHeadAttention and layer.dropout_rate > 0):
            # In a scan over L layers the stream of random numbers is `[L]`.
            stream = getattr(layer, "rngs", None)
            shape = stream.count[...].shape if isinstance(stream, nnx.RngStream) else ()
            within = jnp.arange(math.prod(shape), dtype=jnp.int32).reshape(shape)
            layer.number = ExampleNumber((drawing << 16) + within)
            drawing += 1
            layer.rngs = nnx.data(None)
            layer.__class__ = ExampleDropout if kind is nnx.Dropout else ExampleAttention
            if kind is nnx.MultiHeadAttention:
                layer.attention_fn = attend
    return model


def exchanged(model: nnx.Module) -> str:
    """For the header of a run, for example `2 Dropout per example`; empty where no layer was exchanged."""
    ways = {
        ExampleDropout: "Dropout per example",
        ExampleAttention: "MultiHeadAttention with dropout per example",
        GlobalBatchNorm: "BatchNorm over the global batch",
    }
    kinds = [type(layer) for _, layer in nnx.iter_modules(model)]
    return ", ".join(f"{kinds.count(kind)} {way}" for kind, way in ways.items() if kind in kinds)
