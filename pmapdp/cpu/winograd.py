"""Convolution by Winograd's F(m x m, 3x3), which multiplies less and pays on a CPU.

Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016, whose letters are used here: for m x m
pixels of the output it takes (m + 2)^2 products instead of 9 m^2. A 6x6 kernel with stride S = 2 becomes 3x3 with
stride 1 on four times the channels: the four pixels of each 2x2 block lie side by side (space to depth).

The small matrices of the transforms follow from points, by the algorithm of Cook and Toom (Blahut, "Fast Algorithms for
Signal Processing", Cambridge University Press, 2010, chapter 5). Rounding errors grow with m and depend on the points
(Alam et al., "Winograd convolution for deep neural networks: efficient point selection", ACM TECS 21(6), 2022). With
those below the largest is about a millionth of the largest value in float32, two to four times that of XLA's
convolution; with Lavin and Gray's 0, 1, -1, 2, -2 for m = 4 it was six millionths. The fractions are sums of few powers
of two, so that the matrices for the pixels are exact.

Shapes: b examples, H x W pixels, C channels in, F out, c = S * S * C; h x w tiles of m x m pixels of the output, read
from tiles of (m + 2) x (m + 2) pixels of the input that overlap by two; n = (m + 2)^2 numbers of a tile. Each transform
goes over the rows, then over the columns.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Matrix = Sequence[Sequence[float]]

POINTS = {2: (0, 1, -1), 3: (0, -1, 1 / 2, 2), 4: (0, 5 / 8, -5 / 8, 3 / 2, -3 / 2)}  # for each m, and infinity


class Matrices(NamedTuple):
    """The small matrices of the transforms: a row of m pixels is `A ((G g) * (B d))`, n = m + 2."""

    B: Matrix  # [n, n], for the pixels d of the input
    G: Matrix  # [n, 3], for the kernel g
    A: Matrix  # [m, n], for the pixels of the output


@functools.cache
def matrices(m: int) -> Matrices:
    """Products of polynomials are taken through their values at `POINTS[m]` and infinity.

    A row of B holds the coefficients of the polynomial that is zero at all other points. Its value at its own point
    divides the row of G.
    """
    points = POINTS[m]
    others = [[q for q in points if q != p] for p in points]
    B = [[*np.poly(zeros)[::-1], 0.0] for zeros in others] + [np.poly(points)[::-1]]
    G = [[p**i / np.prod(np.subtract(p, zeros)) for i in range(3)] for p, zeros in zip(points, others, strict=True)]
    A = [[*(p**i for p in points), i == m - 1] for i in range(m)]
    return Matrices(*(np.array(rows, float).tolist() for rows in (B, [*G, [0, 0, 1]], A)))


def tile_size(height: int, width: int) -> int | None:
    """m for an output of this many pixels: the largest that divides both; None where none does."""
    fitting = (m for m in sorted(POINTS, reverse=True) if height % m == width % m == 0)
    return next(fitting, None) if height > 0 and width > 0 else None


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def winograd(images: jax.Array, kernel: jax.Array, stride: int, m: int) -> jax.Array:
    """Convolution of images that need no padding, with 3x3 at stride 1 or 6x6 at stride 2.

    The gradient is written out: of the transforms below, JAX would pad each slice to the full size and add.
    """
    return forward(images, kernel, stride, m)[0]


def forward(images: jax.Array, kernel: jax.Array, stride: int, m: int) -> tuple[jax.Array, Any]:
    """The convolution, and what its gradient needs."""
    V = tiles(images, stride, m)
    n, b, h, w, c = V.shape
    V = V.reshape(n, b * h * w, c)
    M = products(V, kernel_tiles(kernel, stride, m), 2, 1)
    return pixels(M.reshape(n, b, h, w, -1), m), (V, kernel)


def backward(stride: int, m: int, residuals: Any, dY: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients of images and kernel from that of the output, `[b, m h, m w, F]`."""
    V, kernel = residuals
    b, H, W, F = dY.shape
    n = len(V)
    dM = pixels_transpose(dY, m).reshape(n, -1, F)
    dU = products(V, dM, 1, 1)
    dV = products(dM, kernel_tiles(kernel, stride, m), 2, 2).reshape(n, b, H // m, W // m, -1)
    return tiles_transpose(dV, stride, m), kernel_tiles_transpose(dU, stride, m)


winograd.defvjp(forward, backward)


def products(x: jax.Array, y: jax.Array, x_axis: int, y_axis: int) -> jax.Array:
    """n matrix products, summed over these axes."""
    return lax.dot_general(x, y, (((x_axis,), (y_axis,)), ((0,), (0,))))


def combine(matrix: Matrix, parts: Sequence[jax.Array]) -> list[jax.Array]:
    """A small matrix times a vector whose elements are arrays, as sums: a product would take longer."""
    terms = [[part if c == 1 else c * part for c, part in zip(row, parts, strict=True) if c] for row in matrix]
    return [functools.reduce(jnp.add, row) for row in terms]


def transposed(matrix: Matrix) -> Matrix:
    """The transpose."""
    return tuple(zip(*matrix, strict=True))


def tiles(x: jax.Array, stride: int, m: int) -> jax.Array:
    """V = B d B' of each tile d: `[b, S (m h + 2), S (m w + 2), C]` to `[n, b, h, w, c]`."""
    b, H, W, C = x.shape
    H, W, S = H // stride, W // stride, stride
    x = x.reshape(b, H, S, W, S * C)
    x = jnp.concatenate([x[:, :, s] for s in range(S)], -1)  # as a transpose it takes XLA twice as long
    by_rows = jnp.stack(combine(matrices(m).B, [x[:, i : i + H - m - 1 : m] for i in range(m + 2)]))
    V = jnp.stack(combine(matrices(m).B, [by_rows[:, :, :, j : j + W - m - 1 : m] for j in range(m + 2)]), 1)
    return V.reshape(-1, *V.shape[2:])


def tiles_transpose(V: jax.Array, stride: int, m: int) -> jax.Array:
    """The transpose of the linear `tiles`: tiles that overlap are added."""

    def overlap(d, axis):
        def pad(x, before, after):
            return jnp.pad(x, [(before, after) if k == axis else (0, 0) for k in range(x.ndim)])

        # The last two pixels of a tile are the first two of the next.
        steps = [pad(d[i], 0, 1) + (pad(d[m + i], 1, 0) if i < 2 else 0) for i in range(m)]
        x = jnp.stack(steps, axis + 1)
        x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
        return lax.slice_in_dim(x, 0, m * d[0].shape[axis] + 2, axis=axis)

    _, b, h, w, c = V.shape
    S, B = stride, transposed(matrices(m).B)
    by_rows = overlap(combine(B, list(V.reshape(m + 2, m + 2, b, h, w, c))), 2)  # [m + 2, b, m h + 2, w, c]
    parts = [list(part) for part in jnp.split(by_rows, S, -1)]
    x = jnp.stack([overlap(combine(B, part), 2) for part in parts], 2)  # [b, m h + 2, S, m w + 2, c / S]
    return x.reshape(b, S * x.shape[1], S * x.shape[3], -1)


def over(axis: int, matrix: Matrix, x: jax.Array) -> jax.Array:
    """A small matrix times this axis of a small array."""
    return jnp.stack(combine(matrix, list(jnp.moveaxis(x, axis, 0))), axis)


def kernel_tiles(kernel: jax.Array, stride: int, m: int) -> jax.Array:
    """U = G g G' of the kernel: `[3 S, 3 S, C, F]` to `[n, c, F]`."""
    _, _, C, F = kernel.shape
    S, G = stride, matrices(m).G
    g = kernel.reshape(3, S, 3, S * C * F).swapaxes(1, 2)
    return over(1, G, over(0, G, g)).reshape(-1, S * S * C, F)


def kernel_tiles_transpose(U: jax.Array, stride: int, m: int) -> jax.Array:
    """The transpose of the linear `kernel_tiles`."""
    _, c, F = U.shape
    S, G = stride, transposed(matrices(m).G)
    g = over(0, G, over(1, G, U.reshape(m + 2, m + 2, c, F)))
    return g.reshape(3, 3, S, -1).swapaxes(1, 2).reshape(3 * S, 3 * S, -1, F)


def pixels(M: jax.Array, m: int) -> jax.Array:
    """Y = A M A' of each tile: `[n, b, h, w, F]` to `[b, m h, m w, F]`."""
    _, b, h, w, F = M.shape
    by_rows = combine(matrices(m).A, list(M.reshape(m + 2, m + 2, b, h, w, F)))
    by_columns = [jnp.stack(combine(matrices(m).A, list(row)), 3) for row in by_rows]
    return jnp.stack(by_columns, 2).reshape(b, m * h, m * w, F)


def pixels_transpose(dY: jax.Array, m: int) -> jax.Array:
    """The transpose of the linear `pixels`: `[b, m h, m w, F]` to `[n, b, h, w, F]`."""
    A = transposed(matrices(m).A)
    by_rows = jnp.stack(combine(A, [dY[:, i::m] for i in range(m)]))  # [m + 2, b, h, m w, F]
    dM = jnp.stack(combine(A, [by_rows[:, :, :, j::m] for j in range(m)]), 1)
    return dM.reshape(-1, *dM.shape[2:])
