"""Convolution by Winograd's F(2x2, 3x3): 16 products for 4 pixels instead of 36, which pays on a CPU.

Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016, whose letters are used here. A 6x6
kernel with stride S = 2 becomes 3x3 with stride 1 on four times the channels: the four pixels of each 2x2 block lie
side by side (space to depth).

Shapes: b examples, H x W pixels, C channels in, F out, c = S * S * C; h x w tiles of 2x2 pixels of the output, read
from tiles of 4x4 pixels of the input that overlap by two. Each transform goes over the rows, then over the columns.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def winograd(images: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Convolution of images that need no padding, with 3x3 at stride 1 or 6x6 at stride 2.

    The gradient is written out: of the transforms below, JAX would pad each of 16 slices to the full size and add.
    """
    return forward(images, kernel, stride)[0]


def forward(images: jax.Array, kernel: jax.Array, stride: int) -> tuple[jax.Array, Any]:
    """The convolution, and what its gradient needs."""
    V = tiles(images, stride)
    _, b, h, w, c = V.shape
    V = V.reshape(16, b * h * w, c)
    M = products(V, kernel_tiles(kernel, stride), 2, 1)
    return pixels(M.reshape(16, b, h, w, -1)), (V, kernel)


def backward(stride: int, residuals: Any, dY: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients of images and kernel from that of the output, `[b, 2h, 2w, F]`."""
    V, kernel = residuals
    b, H, W, F = dY.shape
    dM = pixels_transpose(dY).reshape(16, -1, F)
    # In the order [F, c] this product takes less time than in [c, F]; the small result is transposed later.
    dU = products(dM, V, 1, 1)
    dV = products(dM, kernel_tiles(kernel, stride), 2, 2).reshape(16, b, H // 2, W // 2, -1)
    return tiles_transpose(dV, stride), kernel_tiles_transpose(dU, stride)


winograd.defvjp(forward, backward)


def products(x: jax.Array, y: jax.Array, x_axis: int, y_axis: int) -> jax.Array:
    """16 matrix products, summed over these axes."""
    return lax.dot_general(x, y, (((x_axis,), (y_axis,)), ((0,), (0,))))


def over_rows(transform, x: jax.Array) -> jax.Array:
    """Apply to the first axis."""
    return jnp.stack(transform(list(x)))


def over_columns(transform, x: jax.Array) -> jax.Array:
    """Apply to the second axis."""
    return jnp.stack(transform([x[:, j] for j in range(x.shape[1])]), 1)


def tiles(x: jax.Array, stride: int) -> jax.Array:
    """V = B' d B of each tile d: `[b, S (2h + 2), S (2w + 2), C]` to `[16, b, h, w, c]`."""

    def transform(d):
        return d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]

    b, H, W, C = x.shape
    H, W, S = H // stride, W // stride, stride
    x = x.reshape(b, H, S, W, S * C).swapaxes(2, 3).reshape(b, H, W, S * S * C)
    by_rows = jnp.stack(transform([x[:, i : i + H - 3 : 2] for i in range(4)]))
    V = jnp.stack(transform([by_rows[:, :, :, j : j + W - 3 : 2] for j in range(4)]), 1)
    return V.reshape(16, *V.shape[2:])


def tiles_transpose(V: jax.Array, stride: int) -> jax.Array:
    """The transpose of the linear `tiles`: tiles that overlap are added."""

    def transform(v):
        return v[0], v[1] - v[2] + v[3], v[1] + v[2] - v[0], -v[3]

    def overlap(d, axis):
        first, last = jnp.stack(d[:2], axis + 1), jnp.stack(d[2:], axis + 1)  # two pixels of this tile, two of the next
        before, after = ([(0, 0)] * axis + [pad] + [(0, 0)] * (first.ndim - axis - 1) for pad in ((1, 0), (0, 1)))
        x = jnp.pad(first, after) + jnp.pad(last, before)
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    _, b, h, w, c = V.shape
    S = stride
    by_rows = overlap(transform(V.reshape(4, 4, b, h, w, S, c // S)), 2)  # [4, b, 2h + 2, w, S, c / S]
    x = overlap(transform(by_rows.swapaxes(3, 4)), 3)  # [b, 2h + 2, S, 2w + 2, c / S]
    return x.reshape(b, S * x.shape[1], S * x.shape[3], -1)


def kernel_tiles(kernel: jax.Array, stride: int) -> jax.Array:
    """U = G g G' of the kernel: `[3 S, 3 S, C, F]` to `[16, c, F]`."""

    def transform(g):
        half_sum, half = (g[0] + g[2]) / 2, g[1] / 2
        return g[0], half_sum + half, half_sum - half, g[2]

    _, _, C, F = kernel.shape
    S = stride
    g = kernel.reshape(3, S, 3, S * C * F).swapaxes(1, 2)
    return over_columns(transform, over_rows(transform, g)).reshape(16, S * S * C, F)


def kernel_tiles_transpose(U: jax.Array, stride: int) -> jax.Array:
    """The transpose of the linear `kernel_tiles`, from `[16, F, c]`."""

    def transform(u):
        half_sum = (u[1] + u[2]) / 2
        return u[0] + half_sum, (u[1] - u[2]) / 2, half_sum + u[3]

    _, F, c = U.shape
    S = stride
    g = over_rows(transform, over_columns(transform, U.reshape(4, 4, F, c)))
    return g.reshape(3, 3, F, S, S, -1).transpose(0, 3, 1, 4, 5, 2).reshape(3 * S, 3 * S, -1, F)


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

    by_rows = jnp.stack(transform([dY[:, 0::2], dY[:, 1::2]]))  # [4, b, h, 2w, F]
    dM = jnp.stack(transform([by_rows[:, :, :, 0::2], by_rows[:, :, :, 1::2]]), 1)
    return dM.reshape(16, *dM.shape[2:])
