"""Convolution whose gradients are convolutions of the same form: `[b, H, W, C]` by `[rows, columns, C, F]`.

Only this form has a fast kernel in XLA for CPUs. XLA brings the gradients that JAX derives to it too, but only at the
top level of a program. In a loop, as around the updates of a dispatch and around accumulated micro-batches, they take
up to 20 times as long (seen with jax 0.10 and 0.12; `python -m benchmarks.convolution --in-a-loop`).
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

LAYOUT = ("NHWC", "HWIO", "NHWC")

Padding = tuple[tuple[int, int], ...]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def canonical_convolution(
    images: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Padding, precision: Any = None
) -> jax.Array:
    """`lax.conv_general_dilated` without dilation and groups.

    Args:
        images: `[b, H, W, C]`.
        kernel: `[rows, columns, C, F]`.
        strides: of rows and columns.
        padding: the pixels before and after each of the two axes.
        precision: as for `lax.conv_general_dilated`.

    Returns:
        `[b, h, w, F]`.
    """
    return lax.conv_general_dilated(images, kernel, strides, padding, dimension_numbers=LAYOUT, precision=precision)


def forward(
    images: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Padding, precision: Any
) -> tuple[jax.Array, Any]:
    """The convolution, and what its gradients need."""
    return canonical_convolution(images, kernel, strides, padding, precision), (images, kernel)


def backward(
    strides: Sequence[int], padding: Padding, precision: Any, residuals: Any, dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Between the pixels of `dy` stand stride - 1 zeros, as many as the convolution stepped over.

    The images' gradient is the convolution of `dy` with the kernel turned round, channels in and out exchanged. The
    kernel's is that of the images with `dy` as the kernel: channels in stand for examples, and examples are summed as
    channels are.
    """
    images, kernel = residuals
    options: dict[str, Any] = {"dimension_numbers": LAYOUT, "precision": precision}
    into_images, into_kernel = [], []
    for axis in (0, 1):
        size, length = images.shape[1 + axis], kernel.shape[axis]
        spread = (dy.shape[1 + axis] - 1) * strides[axis] + 1
        before = padding[axis][0]
        into_images.append((length - 1 - before, size + before - spread))
        into_kernel.append((before, spread + length - 1 - size - before))
    turned = jnp.flip(kernel, (0, 1)).swapaxes(2, 3)
    dx = lax.conv_general_dilated(dy, turned, (1, 1), into_images, lhs_dilation=strides, **options)
    by_channel, by_pixel = images.transpose(3, 1, 2, 0), dy.transpose(1, 2, 0, 3)
    dk = lax.conv_general_dilated(by_channel, by_pixel, (1, 1), into_kernel, rhs_dilation=strides, **options)
    return dx, dk.transpose(1, 2, 0, 3)


canonical_convolution.defvjp(forward, backward)
