"""Convolution written for the CPU where XLA's own is slow there. On accelerators it stays XLA's.

What it is worth is measured by `python -m benchmarks.convolution`.

Shapes: b examples, H x W pixels, C channels in, F out.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pmapdp.cpu.canonical_convolution import LAYOUT, canonical_convolution
from pmapdp.cpu.winograd import tile_size, winograd
from pmapdp.models.layers import max_pool_2x2

FEW = 8  # examples, the fewest with which Winograd's algorithm was measured to be faster


def convolve(images: jax.Array, kernel: jax.Array, strides, padding, **options: Any) -> jax.Array:
    """`lax.conv_general_dilated`, to be given to `nnx.Conv(..., conv_general_dilated=convolve)`.

    Groups, dilation, a type of their own for the sums, and one or three axes in place of rows and columns stay XLA's.

    Args:
        images: `[b, H, W, C]`.
        kernel: `[rows, columns, C, F]`.
        strides: of rows and columns.
        padding: SAME, VALID, or the pixels before and after each of the two axes.
        options: what else `nnx.Conv` gives; passed on.
    """

    def general(images: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(images, kernel, strides, padding, **options)

    dilated = any(factor != 1 for name in ("lhs_dilation", "rhs_dilation") for factor in options.get(name) or ())
    groups = images.shape[-1] != kernel.shape[-2]
    if kernel.ndim != 4 or dilated or groups or options.get("preferred_element_type"):
        return general(images, kernel)
    (rows, columns, channels, _), strides = kernel.shape, tuple(strides)
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(images.shape[1:3], kernel.shape[:2], strides, padding)
    pads = tuple((before, after) for before, after in padding)

    def on_cpu(images: jax.Array, kernel: jax.Array) -> jax.Array:
        padded = jnp.pad(images, ((0, 0), *pads, (0, 0)))
        if images.dtype != jnp.bfloat16:  # too coarse to be added up in other ways
            if channels == 1 and strides == (1, 1):
                return one_channel(padded, kernel)
            stride = {((3, 3), (1, 1)): 1, ((6, 6), (2, 2)): 2}.get(((rows, columns), strides))
            m = stride and tiles_of(padded, stride)
            if m:
                return winograd(padded, kernel, stride, m)
        return canonical_convolution(images, kernel, strides, pads, options.get("precision"))

    return lax.platform_dependent(images, kernel, cpu=on_cpu, default=general)


def tiles_of(padded: jax.Array, stride: int) -> int | None:
    """The size of Winograd's tiles, or None where they do not fit or do not pay."""
    b, H, W, _ = padded.shape
    few = not isinstance(b, int) or b < FEW  # b is a symbol where a model of any batch size is exported
    return None if few or H % stride or W % stride else tile_size(H // stride - 2, W // stride - 2)


def one_channel(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """`[b, H, W, 1]` without padding, stride 1, as one matrix product.

    A row of the first matrix holds what a block of neighbouring pixels of the output sees, and the second gives all
    channels of the block: F columns alone would be too few for the processor's vectors.
    """
    rows, columns, _, F = kernel.shape
    b, H, W = images.shape[0], images.shape[1] - rows + 1, images.shape[2] - columns + 1
    block = math.gcd(W, 4)
    seen = columns + block - 1
    x = images[..., 0]
    shifted = [x[:, i : i + H, j : j + W - block + 1 : block] for i in range(rows) for j in range(seen)]
    pixels = jnp.stack(shifted, -1).reshape(-1, rows * seen)
    kernels = [jnp.pad(kernel[:, :, 0], ((0, 0), (q, block - 1 - q), (0, 0))) for q in range(block)]
    return (pixels @ jnp.stack(kernels, 2).reshape(rows * seen, block * F)).reshape(b, H, W, F)


def convolve_and_pool(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """A 3x3 convolution without padding, then the maximum over windows of 2x2: `max_pool_2x2(convolution)`.

    A window of the pooling sees 4x4 pixels. The convolution at each of its four corners is a matrix product of these
    pixels with the kernel, put into that corner of a 4x4 kernel. So the maximum is taken over four products, and the
    convolved images are never brought into the order of their pixels. Where corners are equal, the gradient goes to one
    of them: that of the kernel is then the same for each, unless different pixels happen to give equal numbers.

    Args:
        images: `[b, H, W, 1]`.
        kernel: `[3, 3, 1, F]`.

    Returns:
        `[b, (H - 2) // 2, (W - 2) // 2, F]`.
    """

    def general(images: jax.Array, kernel: jax.Array) -> jax.Array:
        return max_pool_2x2(convolve(images, kernel, (1, 1), "VALID", dimension_numbers=LAYOUT))

    def larger(x: jax.Array, y: jax.Array) -> jax.Array:
        """Like `jnp.maximum`, whose gradient divides where both are equal. A NaN is in all products at once."""
        return jnp.where(x > y, x, y)

    def four_products(images: jax.Array, kernel: jax.Array) -> jax.Array:
        b, h, w = images.shape[0], *((size - 2) // 2 for size in images.shape[1:3])
        shifted = [images[:, i : i + 2 * h - 1 : 2, j : j + 2 * w - 1 : 2] for i in range(4) for j in range(4)]
        pixels = jnp.concatenate(shifted, -1).reshape(-1, 16)  # as one matrix: products of batches take twice as long
        products = [
            (pixels @ jnp.pad(kernel[:, :, 0], ((i, 1 - i), (j, 1 - j), (0, 0))).reshape(16, -1)).reshape(b, -1)
            for i in range(2)
            for j in range(2)
        ]
        return larger(larger(*products[:2]), larger(*products[2:])).reshape(b, h, w, -1)

    if images.dtype == jnp.bfloat16:
        return general(images, kernel)
    return lax.platform_dependent(images, kernel, cpu=four_products, default=general)
