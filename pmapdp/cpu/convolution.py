"""Two kinds of convolution for which XLA is slow on CPUs (`python -m benchmarks.convolution`), computed in other ways.

`faster` puts them into a function. Shapes: b examples, H x W pixels, C channels in, F out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pmapdp.cpu.program import Equation, Evaluation, rewritten
from pmapdp.cpu.winograd import tile_size, winograd

LAYOUT = lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))  # NHWC, HWIO, NHWC: Flax's own
FEW = 8  # examples, the fewest with which Winograd's algorithm was measured to be faster


def faster(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with faster convolutions, to be differentiated afterwards."""
    return rewritten(function, {"conv_general_dilated": convolution_rule, "slice": slice_rule})


def is_plain(equation: Equation) -> bool:
    """Whether it is a convolution of `[b, H, W, C]` by `[rows, columns, C, F]` at stride 1, without groups, dilation or
    a type of its own for the sums. bfloat16 is too coarse to be added up in other ways."""
    params, images = equation.params, equation.invars[0].aval
    return (
        params["dimension_numbers"] == LAYOUT
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and {*params["window_strides"], *params["lhs_dilation"], *params["rhs_dilation"]} == {1}
        and params["preferred_element_type"] in (None, images.dtype)
        and images.dtype != jnp.bfloat16
    )


def padded(images: jax.Array, equation: Equation) -> jax.Array:
    """The images with the padding of the convolution."""
    return jnp.pad(images, ((0, 0), *equation.params["padding"], (0, 0)))


def convolution_rule(_: Evaluation, equation: Equation, inputs: Sequence[Any]) -> Sequence[Any] | None:
    """3x3 kernels by Winograd's algorithm, where it takes fewer products."""
    (images, kernel), y = inputs, equation.outvars[0].aval
    m = tile_size(*y.shape[1:3]) if is_plain(equation) and kernel.shape[:2] == (3, 3) else None
    if m is None or len(images) < FEW or images.shape[3] == 1:
        return None
    return [winograd(padded(images, equation), kernel, m)]


def slice_rule(evaluation: Evaluation, equation: Equation, _: Sequence[Any]) -> Sequence[Any] | None:
    """A corner of the 2x2 windows of `max_pool`, behind a convolution of one channel and perhaps its bias: of the
    convolution only these pixels are computed."""
    params, variable, bias = equation.params, equation.invars[0], None
    maker = evaluation.makers.get(variable)
    if maker is not None and maker.primitive.name == "add" and maker.invars[1].aval.shape[:3] == (1, 1, 1):
        bias, maker = evaluation.read(maker.invars[1]), evaluation.makers.get(maker.invars[0])
    if maker is None or maker.primitive.name != "conv_general_dilated" or not is_plain(maker):
        return None
    (b, h, w, F), (_, H, W, _) = equation.outvars[0].aval.shape, variable.aval.shape
    first, i, j, last = params["start_indices"]
    of_all = (first, last, b, F) == (0, 0, variable.aval.shape[0], variable.aval.shape[3])
    if not of_all or params["strides"] != (1, 2, 2, 1) or max(i, j) > 1 or 2 * h > H or 2 * w > W:
        return None
    images, kernel = map(evaluation.read, maker.invars)
    if kernel.shape[2] != 1:
        return None
    y = (corners(padded(images, maker), kernel.shape, h, w) @ at_corner(kernel, i, j)).reshape(b, h, w, F)
    return [y if bias is None else y + bias]


def corners(images: jax.Array, kernel: Sequence[int], h: int, w: int) -> jax.Array:
    """What all four pixels of each window see of the images, `[b h w, (rows + 1) (columns + 1)]`. XLA computes it once
    for the four."""
    seen = [(r, c) for r in range(kernel[0] + 1) for c in range(kernel[1] + 1)]
    pixels = [images[:, r : r + 2 * h - 1 : 2, c : c + 2 * w - 1 : 2] for r, c in seen]
    return jnp.concatenate(pixels, -1).reshape(-1, len(seen))


def at_corner(kernel: jax.Array, i: int, j: int) -> jax.Array:
    """The kernel `[rows, columns, 1, F]` for the pixel (i, j) of each window: `[(rows + 1) (columns + 1), F]`."""
    return jnp.pad(kernel[:, :, 0], ((i, 1 - i), (j, 1 - j), (0, 0))).reshape(-1, kernel.shape[3])
