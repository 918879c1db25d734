"""The exact versions of Flax's batch norm, dropout and attention.

Lessons 07 and 08 teach this file.

Flax's dropout draws one mask for all examples of a device, and its batch norm takes
moments over them. So their results depend on the number of devices. `make_exact(model)`
replaces them in a built model by subclasses whose results don't. Names, settings and
parameters stay, and you call the model as before: the layers find the batch's weights
and random keys in the current context.

Shapes: b examples on this device, C channels, h heads, d features per head.
"""

import contextlib
import contextvars
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

AxisName = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Context:
    """A context holds what a layer needs to know about the batch besides its input.

    Attributes:
        weights: `[b]`, how much each example counts, 0 for padding. None: all count
            alike.
        keys: `[b]` random keys, one per example. None in evaluation.
        step: `[]`, the number of updates made so far.
        train: True in a training step.
        axis_name: The mapped axis over which the batch is split. None: the arrays hold
            all of it.
        draws: The counter by which each call of `next_keys` gets keys of its own.
    """

    weights: Any = None
    keys: Any = None
    step: Any = 0
    train: bool = False
    axis_name: AxisName = None
    draws: Iterator[int] = field(default_factory=itertools.count)

    def next_keys(self, number: Any = 0) -> jax.Array:
        """Return a new random key for each of the b examples, as `[b]`.

        No two calls return the same keys, so no two layers draw the same mask. Layers
        in a scan are traced once and share one call, so each gives its own `number`.
        """
        # The low 16 bits tell calls apart, and the high bits the layers of a scan. A
        # model makes far fewer than 2**16 calls.
        number = next(self.draws) + (number << 16)
        return jax.vmap(jax.random.fold_in, (0, None))(self.keys, number)


# Outside of a training step: no weights, no keys, no axis.
NO_BATCH = Context()
_current = contextvars.ContextVar("context", default=NO_BATCH)


def current_context() -> Context:
    """Return the context of the batch that the model is called with.

    Call it in a layer of your own. Outside of a training step `train` is False, and
    there are no weights, keys or axis.

    Returns:
        A `Context`, with `train`, the examples' `weights` `[b]`, the `axis_name` over
        which the batch is split, and `next_keys()`, which makes a random key for each
        example.

    Example:
        class Noise(nnx.Module):
            def __call__(self, x):  # [b, D]
                if not current_context().train:
                    return x
                draw = jax.vmap(lambda key: jax.random.normal(key, x.shape[1:]))
                return x + 0.1 * draw(current_context().next_keys())
    """
    return _current.get()


@contextlib.contextmanager
def use_context(context: Context) -> Iterator[None]:
    """Make `context` the current one inside a `with` block."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def example_keys(seed: int, step: jax.Array, indices: jax.Array) -> jax.Array:
    """Return `[b]` random keys that depend on the seed, the update and the example."""
    # Nothing else goes in. A device's number would give other masks on other devices.
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)


class ExactBatchNorm(nnx.BatchNorm):
    """Batch norm over all examples of the global batch, and over no padding.

    Ioffe and Szegedy, "Batch normalization", ICML 2015. Flax's layer averages the
    devices' means, which is wrong as soon as devices hold different numbers of valid
    examples. This one averages sums and counts, and divides afterwards.

    Mean and variance come from the sums of 1, x - m and (x - m)², where m is the
    running mean. These take one pass over the activations and one all-reduce. The
    price is rounding: the variance has a relative error of about (d / s)² epsilon,
    where d is the distance of the batch mean from m, s the standard deviation, and
    epsilon the type's. In a fresh layer m is 0. If the mean is 100 s there, the error
    is 1e-3 in float32. Once m is close to the mean, the error is negligible.

    Attributes:
        is_frozen: True in a part of the model that isn't trained. Then the running
            moments are used in training too, and they don't move.
    """

    is_frozen = False

    def __call__(
        self, x: jax.Array, use_running_average: bool | None = None, *, mask: Any = None
    ) -> jax.Array:
        """Normalize `[b, ...]`. Training also moves the running moments."""
        context = current_context()
        if use_running_average is None:
            use_running_average = self.use_running_average
        if mask is not None:
            raise ValueError(
                "exact batch norm takes no mask: "
                "set the weights of the examples instead"
            )
        shape = [1] * x.ndim
        shape[self.axis] = x.shape[self.axis]
        params = [param[...] for param in (self.scale, self.bias) if param is not None]
        dtype = self.dtype or jnp.result_type(x, *params)
        # Moments of bfloat16 are taken in float32, the type of the running ones.
        x = x.astype(jnp.promote_types(x.dtype, self.mean.dtype))
        # From here on, everything is relative to the running mean.
        x = x - self.mean[...].reshape(shape)
        mean = jnp.zeros_like(self.mean[...])
        variance = self.var[...]
        if context.train and not use_running_average and not self.is_frozen:
            mean, variance = self.moments(x, context)
        # x * scale + bias is one multiplication and one addition for each number, and
        # the subtraction of the mean is in the bias.
        scale = lax.rsqrt(variance + self.epsilon)
        if self.scale is not None:
            scale = scale * self.scale[...]
        bias = -mean * scale
        if self.bias is not None:
            bias = bias + self.bias[...]
        return (x * scale.reshape(shape) + bias.reshape(shape)).astype(dtype)

    def moments(self, x: jax.Array, context: Context) -> tuple[jax.Array, jax.Array]:
        """Compute the moments over the valid examples of all devices.

        The running moments move towards them.

        Args:
            x: `[b, ...]`, relative to the running mean.
            context: The context of the batch.

        Returns:
            Mean `[C]`, relative to the running mean, and variance `[C]`.
        """
        weights = context.weights
        if weights is None:
            weights = jnp.ones(len(x))
        if len(weights) != len(x):
            raise ValueError(
                f"batch norm sees {list(x.shape)}, whose first axis doesn't count the "
                "examples: leave it there"
            )
        pixels = tuple(axis for axis in range(1, x.ndim) if axis != self.axis % x.ndim)
        mean = x.mean(pixels)  # [b, C]
        squares = jnp.square(x).mean(pixels)
        sums = jnp.stack([jnp.ones_like(mean), mean, squares])  # [3, b, C]
        # Multiplied and added up, because a matrix product would round to TF32 or
        # bfloat16 on accelerators.
        sums = (sums * weights.astype(x.dtype)[:, None]).sum(1)
        if context.axis_name is not None:
            sums = lax.pmean(sums, context.axis_name)  # the layer's one all-reduce
        count = sums[0]
        mean, squares = sums[1:] / jnp.where(count > 0, count, 1)
        # Rounding may make it negative, and its root a NaN.
        variance = jnp.maximum(squares - jnp.square(mean), 0)
        # If all is padding, nothing moves.
        rate = jnp.where(count > 0, 1 - self.momentum, 0)
        self.mean[...] += (rate * mean).astype(self.mean.dtype)
        self.var[...] += (rate * (variance - self.var[...])).astype(self.var.dtype)
        return mean, variance


class ExactDropout(nnx.Dropout):
    """`nnx.Dropout` whose mask depends on the example, and not on the device.

    Srivastava et al., "Dropout: a simple way to prevent neural networks from
    overfitting", JMLR 15, 2014.
    """

    def __call__(
        self, inputs: jax.Array, *, deterministic: bool | None = None, **_: Any
    ) -> jax.Array:
        """Drop parts of `[b, ...]` in training, unless the layer is `deterministic`."""
        if deterministic is None:
            deterministic = self.deterministic
        if not current_context().train or deterministic or self.rate == 0:
            return inputs
        if self.rate == 1:  # below, it would divide by 0
            return jnp.zeros_like(inputs)
        shape = list(inputs.shape)
        for axis in self.broadcast_dims:
            shape[axis] = 1
        shape[0] = len(inputs)  # an example never shares its mask with another
        keep = draw_masks(layer_keys(self), 1 - self.rate, shape)
        # Divided, so that an activation has the same mean as in evaluation.
        return jnp.where(keep, inputs / (1 - self.rate), 0).astype(inputs.dtype)


class ExactAttention(nnx.MultiHeadAttention):
    """`nnx.MultiHeadAttention` whose dropout draws a mask for each example."""

    def __call__(
        self,
        *inputs: Any,
        deterministic: bool | None = None,
        rngs: Any = None,
        **options: Any,
    ) -> jax.Array:
        """Attend as Flax's layer does. The context tells if this is training."""
        if deterministic is None:
            deterministic = bool(self.deterministic)
        deterministic = deterministic or not current_context().train
        # Flax passes the result of `rngs()` to `attend` unchanged, so it may be a key
        # for each example.
        keys: Any = functools.partial(layer_keys, self)
        return super().__call__(
            *inputs, deterministic=deterministic, rngs=keys, **options
        )


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: jax.Array | None = None,
    dropout_rng: Any = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = True,
    is_causal: bool = False,
    precision: Any = None,
    **_: Any,
) -> jax.Array:
    """Attend with h heads.

    Vaswani et al., "Attention is all you need", NeurIPS 2017. The softmax is in float32
    at least, and in float64 for float64, unlike in `jax.nn.dot_product_attention`. The
    arguments are those with which Flax calls the function, so not all are used.

    Args:
        query: `[b, q, h, d]`.
        key: `[b, k, h, d]`, or fewer heads, of which each serves several of `query`.
        value: Like `key`.
        mask: `[b, h, q, k]` or broadcastable, False for pairs that don't attend.
        dropout_rng: `[b]` keys, one per example. None: no dropout.
        dropout_rate: The share of the weights that are dropped.
        broadcast_dropout: All heads share a dropout mask.
        is_causal: A query attends to keys up to its own position.
        precision: Of the matrix products.

    Returns:
        `[b, q, h, d]`.
    """
    dtype = jnp.promote_types(query.dtype, jnp.float32)
    # Grouped queries: several heads may share one of keys and values.
    key = jnp.repeat(key, query.shape[2] // key.shape[2], axis=2)
    value = jnp.repeat(value, query.shape[2] // value.shape[2], axis=2)
    scores = jnp.einsum(
        "bqhd,bkhd->bhqk", query, key, precision=precision, preferred_element_type=dtype
    )
    # Products of d numbers grow as sqrt(d), and large ones would leave the softmax
    # with hardly any gradient.
    scores /= query.shape[-1] ** 0.5
    if is_causal:
        causal = jnp.tri(query.shape[1], key.shape[1], dtype=bool)
        if mask is not None:
            causal = causal & mask
        mask = causal
    if mask is not None:
        # Not -inf: a row whose keys are all masked would become NaN.
        scores = jnp.where(mask, scores, jnp.finfo(dtype).min)
    weights = jax.nn.softmax(scores)
    if dropout_rng is not None:
        b, h, q, k = weights.shape
        if broadcast_dropout:  # all heads share a mask
            h = 1
        keep = draw_masks(dropout_rng, 1 - dropout_rate, [b, h, q, k])
        weights = jnp.where(keep, weights / (1 - dropout_rate), 0)
    return jnp.einsum(
        "bhqk,bkhd->bqhd", weights.astype(value.dtype), value, precision=precision
    )


def layer_keys(layer: Any) -> jax.Array:
    """Return `[b]` random keys for a layer.

    JAX traces the layers of a scan once, so they share one call of `next_keys`. They
    get different keys by the number in their random stream.
    """
    number = 0
    if layer.rngs is not None:
        number = layer.rngs.count[...]
    return current_context().next_keys(number)


def draw_masks(keys: jax.Array, keep: float, shape: list[int]) -> jax.Array:
    """Draw masks `[b, ...]` by the examples' keys, True with probability `keep`."""
    if shape[0] != len(keys):
        raise ValueError(
            f"dropout sees {shape}, whose first axis doesn't count the examples: "
            "move it to the front"
        )
    return jax.vmap(lambda key: jax.random.bernoulli(key, keep, tuple(shape[1:])))(keys)


def make_exact(model: nnx.Module) -> nnx.Module:
    """Make the batch norms, dropouts and attention layers of a built model exact.

    It changes the class of each layer in place, and returns the model. A new layer
    wouldn't do: other modules may share the old one, and it holds the initial
    parameters and random streams. Subclasses of Flax's layers, and attention by a
    function other than Flax's, are left as they are, because what they change is not
    known.
    """
    layer: Any
    for _, layer in nnx.iter_modules(model, graph=True):
        # `type`, because a subclass may compute something else.
        if type(layer) is nnx.BatchNorm:
            layer.__class__ = ExactBatchNorm
            # Under float64 Flax makes them in float32.
            for moment in (layer.mean, layer.var):
                dtype = jnp.promote_types(moment.dtype, layer.param_dtype)
                moment.set_value(moment[...].astype(dtype))
        elif type(layer) is nnx.Dropout:
            layer.__class__ = ExactDropout
            number_scanned_layers(layer)
        elif (
            type(layer) is nnx.MultiHeadAttention
            and layer.attention_fn is nnx.dot_product_attention
        ):
            layer.__class__ = ExactAttention
            layer.attention_fn = attend
            number_scanned_layers(layer)
    return model


def number_scanned_layers(layer: Any) -> None:
    """Give each layer of a stack that was made for a scan its own number."""
    stream = getattr(layer, "rngs", None)
    if isinstance(stream, nnx.RngStream):
        count = stream.count[...]
        numbers = jnp.arange(count.size, dtype=count.dtype).reshape(count.shape)
        stream.count.set_value(numbers)


def freeze_batch_norms(model: nnx.Module, trainable: Any) -> None:
    """Freeze the batch norms in the parts of a model that aren't trained.

    They then use their running moments and leave them as they are. Otherwise the
    moments would move in training, and with them the outputs of a part that's meant to
    stay as it is.

    Args:
        model: With exact layers.
        trainable: The filter of Flax that chooses the parameters to train. It's asked
            about a parameter of each layer, also of those that have none.
    """
    is_trained = nnx.filterlib.to_predicate(trainable)
    parameter = nnx.Param(jnp.zeros(()))
    for path, layer in nnx.iter_modules(model, graph=True):
        if isinstance(layer, ExactBatchNorm):
            layer.is_frozen = not is_trained((*path, "scale"), parameter)
