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
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Matrix = Sequence[Sequence[float]]

POINTS = {3: (0, -1, 1 / 2, 2), 4: (0, 5 / 8, -5 / 8, 3 / 2, -3 / 2)}  # for each m, and infinity


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


def winograd(images: jax.Array, kernel: jax.Array, stride: int, m: int) -> jax.Array:
    """Convolution of images that need no padding, with 3x3 at stride 1 or 6x6 at stride 2."""
    V, U = tiles(images, stride, m), kernel_tiles(kernel, stride, m)
    n, b, h, w, c = V.shape
    M = lax.dot_general(V.reshape(n, b * h * w, c), U, (((2,), (1,)), ((0,), (0,))))
    return pixels(M.reshape(m + 2, m + 2, b, h, w, -1), m)


def combine(matrix: Matrix, parts: Sequence[jax.Array]) -> list[jax.Array]:
    """A small matrix times a vector whose elements are arrays, as sums: a product would take longer."""
    terms = [[part if c == 1 else c * part for c, part in zip(row, parts, strict=True) if c] for row in matrix]
    return [functools.reduce(jnp.add, row) for row in terms]


def parts(x: jax.Array, axis: int) -> list[jax.Array]:
    """The arrays along an axis. The transpose of a split is a concatenation; that of an index would be a sum of padded
    arrays, which takes longer."""
    return [each.squeeze(axis) for each in lax.split(x, [1] * x.shape[axis], axis)]


def overlapping(x: jax.Array, m: int) -> list[jax.Array]:
    """Of each tile the first row, the second, ...: `[b, m h + 2, ...]` to m + 2 times `[b, h, ...]`."""
    h = x.shape[1] // m
    x = jnp.pad(x, [(0, m - 2) if axis == 1 else (0, 0) for axis in range(x.ndim)])
    rows = parts(x.reshape(len(x), h + 1, m, *x.shape[2:]), 2)
    return [row[:, :h] for row in rows] + [row[:, 1:] for row in rows[:2]]


def tiles(x: jax.Array, stride: int, m: int) -> jax.Array:
    """V = B d B' of each tile d: `[b, S (m h + 2), S (m w + 2), C]` to `[n, b, h, w, c]`."""
    b, H, W, C = x.shape
    H, W, S = H // stride, W // stride, stride
    x = jnp.concatenate(parts(x.reshape(b, H, S, W, S * C), 2), -1)  # as a transpose it takes XLA twice as long
    by_rows = jnp.stack(combine(matrices(m).B, overlapping(x, m)))  # [m + 2, b, h, W, c]
    h = by_rows.shape[2]
    columns = [each.reshape(m + 2, b, h, -1, S * S * C) for each in overlapping(by_rows.reshape(-1, W, S * S * C), m)]
    V = jnp.stack(combine(matrices(m).B, columns), 1)
    return V.reshape(-1, *V.shape[2:])


def kernel_tiles(kernel: jax.Array, stride: int, m: int) -> jax.Array:
    """U = G g G' of the kernel: `[3 S, 3 S, C, F]` to `[n, c, F]`."""
    _, _, C, F = kernel.shape
    g = kernel.reshape(3, stride, 3, stride * C * F).swapaxes(1, 2)
    by_rows = jnp.stack(combine(matrices(m).G, parts(g, 0)))
    return jnp.stack(combine(matrices(m).G, parts(by_rows, 1)), 1).reshape(-1, stride * stride * C, F)


def pixels(M: jax.Array, m: int) -> jax.Array:
    """Y = A M A' of each tile: `[m + 2, m + 2, b, h, w, F]` to `[b, m h, m w, F]`."""
    _, _, b, h, w, F = M.shape
    by_rows = combine(matrices(m).A, parts(M, 0))
    by_columns = [jnp.stack(combine(matrices(m).A, parts(row, 0)), 3) for row in by_rows]
    return jnp.stack(by_columns, 2).reshape(b, m * h, m * w, F)
