"""Convolution by Winograd's F(2x2, 3x3): 16 products for 4 pixels instead of 36, which pays on a CPU.

Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016, whose letters are used here. A 6x6
kernel with stride 2 becomes 3x3 with stride 1 on four times the channels: the four pixels of each 2x2 block lie side
by side (space to depth).

Shapes: b examples, H x W pixels, C channels in, F out; h x w tiles of 2x2 pixels of the output, read from tiles of
4x4 pixels of the input that overlap by two.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def winograd(images: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Convolution of images that need no padding, with 3x3 at stride 1 or 6x6 at stride 2.

    The gradient is written out: of the transforms below, JAX would pad each of 16 slices to the full size and add.
    """
    return forward(images, kernel, stride)[0]


def forward(images: jax.Array, kernel: jax.Array, stride: int) -> tuple[jax.Array, Any]:
    """The convolution, and what its gradient needs."""
    V = tiles(space_to_depth(images) if stride == 2 else images)
    _, b, h, w, *_ = V.shape
    V = V.reshape(16, b * h * w, -1)
    M = jnp.einsum("tmc,tcf->tmf", V, kernel_tiles(kernel, stride))
    return pixels(M.reshape(16, b, h, w, -1)), (V, kernel)


def backward(stride: int, residuals: Any, dY: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients of images and kernel from that of the output, `[b, 2h, 2w, F]`."""
    V, kernel = residuals
    b, H, W, F = dY.shape
    U, kernel_tiles_transpose = jax.vjp(lambda kernel: kernel_tiles(kernel, stride), kernel)
    dM = pixels_transpose(dY).reshape(16, -1, F)
    (d_kernel,) = kernel_tiles_transpose(jnp.einsum("tmc,tmf->tcf", V, dM))
    dV = jnp.einsum("tmf,tcf->tmc", dM, U).reshape(16, b, H // 2, W // 2, *[stride] * (2 * (stride - 1)), -1)
    d_images = tiles_transpose(dV)
    return depth_to_space(d_images) if stride == 2 else d_images, d_kernel


winograd.defvjp(forward, backward)


def space_to_depth(x: jax.Array) -> jax.Array:
    """`[b, H, W, C]` to `[b, H / 2, W / 2, 2, 2, C]`."""
    b, H, W, C = x.shape
    return x.reshape(b, H // 2, 2, W // 2, 2, C).swapaxes(2, 3)


def depth_to_space(x: jax.Array) -> jax.Array:
    """The inverse of `space_to_depth`."""
    b, H, W, _, _, C = x.shape
    return x.swapaxes(2, 3).reshape(b, 2 * H, 2 * W, C)


def tiles(x: jax.Array) -> jax.Array:
    """V = B' d B of each tile d of 4x4 pixels: `[b, 2h + 2, 2w + 2, ...]` to `[16, b, h, w, ...]`."""

    def transform(d):
        return d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]

    rows, columns = x.shape[1] - 3, x.shape[2] - 3
    by_rows = jnp.stack(transform([x[:, i : i + rows : 2] for i in range(4)]))
    V = jnp.stack(transform([by_rows[:, :, :, j : j + columns : 2] for j in range(4)]), 1)
    return V.reshape(16, *V.shape[2:])


def tiles_transpose(V: jax.Array) -> jax.Array:
    """The transpose of the linear `tiles`: tiles that overlap are added."""

    def transform(v):
        return v[0], v[1] - v[2] + v[3], v[1] + v[2] - v[0], -v[3]

    def overlap(d, axis):
        first, last = jnp.stack(d[:2], axis + 1), jnp.stack(d[2:], axis + 1)  # two pixels of this tile, two of the next
        before, after = ([(0, 0)] * axis + [pad] + [(0, 0)] * (first.ndim - axis - 1) for pad in ((1, 0), (0, 1)))
        x = jnp.pad(first, after) + jnp.pad(last, before)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    by_rows = overlap(transform(V.reshape(4, 4, *V.shape[1:])), 2)  # [4, b, 2h + 2, w, ...]
    return overlap(transform(by_rows), 2)


def kernel_tiles(kernel: jax.Array, stride: int) -> jax.Array:
    """U = G g G' of the kernel: `[3, 3, C, F]` to `[16, C, F]`, or `[6, 6, C, F]` to `[16, 4 C, F]` at stride 2."""
    if stride == 2:
        _, _, C, F = kernel.shape
        kernel = kernel.reshape(3, 2, 3, 2, C, F).swapaxes(1, 2).reshape(3, 3, 4 * C, F)

    G = jnp.asarray([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], kernel.dtype)
    return jnp.einsum("ik,jl,klcf->ijcf", G, G, kernel).reshape(16, *kernel.shape[2:])


def pixels(M: jax.Array) -> jax.Array:
    """Y = A' m A of each tile: `[16, b, h, w, F]` to `[b, 2h, 2w, F]`."""

    def transform(m):
        return m[0] + m[1] + m[2], m[1] - m[2] - m[3]

    _, b, h, w, F = M.shape
    by_rows = transform(M.reshape(4, 4, b, h, w, F))
    return jnp.stack([jnp.stack(transform(m), 3) for m in by_rows], 2).reshape(b, 2 * h, 2 * w, F)


def pixels_transpose(dY: jax.Array) -> jax.Array:
    """The transpose of the linear `pixels`: `[b, 2h, 2w, F]` to `[16, b, h, w, F]`."""

    def transform(y):
        return y[0], y[0] + y[1], y[0] - y[1], -y[1]

    by_rows = transform([dY[:, 0::2], dY[:, 1::2]])
    return jnp.stack([m for y in by_rows for m in transform([y[:, :, 0::2], y[:, :, 1::2]])])
