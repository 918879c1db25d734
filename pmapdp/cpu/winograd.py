"""Convolution by Winograd's F(m x m, 3x3), which multiplies less and pays on a CPU.

Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016, whose letters are used here: 4x4 pixels
of the output take 36 products instead of 144.

Shapes: b examples, H x W pixels, C channels in, F out; h x w tiles of m x m pixels of the output, read from n x n
pixels of the input, n = m + 2, that overlap by two. Each transform goes over the rows, then the columns.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# Products of polynomials are taken through their values at these points and infinity, by the algorithm of Cook and Toom
# (Blahut, "Fast Algorithms for Signal Processing", Cambridge University Press, 2010, chapter 5). Rounding depends on
# the points (Alam et al., "Winograd convolution for deep neural networks: efficient point selection", ACM TECS 21(6),
# 2022): for m = 4 a millionth of the largest value in float32, six with Lavin and Gray's 0, 1, -1, 2, -2.
POINTS = {3: (0, -1, 1 / 2, 2), 4: (0, 5 / 8, -5 / 8, 3 / 2, -3 / 2)}


@functools.cache
def matrices(m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """B `[n, n]`, G `[n, 3]`, A `[m, n]`, with which m pixels of the output are `A ((G g) * (B d))`. A row of B holds
    the coefficients of the polynomial that is zero at all other points; its value at its own divides G's row."""
    points = POINTS[m]
    others = [[q for q in points if q != p] for p in points]
    B = [*([*np.poly(zeros)[::-1], 0] for zeros in others), np.poly(points)[::-1]]
    G = [*(np.power(p, range(3)) / np.prod(np.subtract(p, q)) for p, q in zip(points, others, strict=True)), [0, 0, 1]]
    A = [[*(p**i for p in points), i == m - 1] for i in range(m)]
    return np.array(B), np.array(G), np.array(A, float)


def tile_size(height: int, width: int) -> int | None:
    """m for an output of this many pixels: that with the fewest products; None where they are not fewer than 9 each."""
    products = {(m + 2) ** 2 * -(-height // m) * -(-width // m): m for m in POINTS}
    return products[min(products)] if min(products) < 9 * height * width else None


def winograd(images: jax.Array, kernel: jax.Array, m: int) -> jax.Array:
    """Convolution at stride 1 without padding in tiles of m x m: `[b, H, W, C]` by `[3, 3, C, F]`."""
    (b, H, W, C), F = images.shape, kernel.shape[3]
    height, width = H - 2, W - 2
    n, h, w = m + 2, -(-height // m), -(-width // m)
    x = jnp.pad(images, ((0, 0), (0, m * h - height), (0, m * w - width), (0, 0)))
    V = tiles(x, m)
    M = lax.dot_general(V.reshape(n * n, b * h * w, C), kernel_tiles(kernel, m), (((2,), (1,)), ((0,), (0,))))
    return pixels(M.reshape(n, n, b, h, w, F), m)[:, :height, :width]


def combine(matrix: np.ndarray, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """A small matrix times a vector whose elements are arrays, as sums: a product would take longer."""
    terms = [[x if c == 1 else float(c) * x for c, x in zip(row, arrays, strict=True) if c] for row in matrix]
    return [functools.reduce(jnp.add, row) for row in terms]


def along(x: jax.Array, axis: int) -> list[jax.Array]:
    """The arrays along an axis; the transpose of a split is a concatenation, of indices a slower sum of padded ones."""
    return [each.squeeze(axis) for each in lax.split(x, [1] * x.shape[axis], axis)]


def overlapping(x: jax.Array, m: int, axis: int) -> list[jax.Array]:
    """Of each tile the first row, the second, ...: m h + 2 rows along an axis to m + 2 times h."""
    h = x.shape[axis] // m
    own, last = lax.split(x, [m * h, 2], axis)
    rows = along(own.reshape(*x.shape[:axis], h, m, *x.shape[axis + 1 :]), axis + 1)
    behind = zip(rows, lax.split(last, [1, 1], axis), strict=False)
    return rows + [lax.concatenate([lax.slice_in_dim(row, 1, h, axis=axis), end], axis) for row, end in behind]


def tiles(x: jax.Array, m: int) -> jax.Array:
    """V = B d B' of each tile d: `[b, m h + 2, m w + 2, C]` to `[n, n, b, h, w, C]`."""
    B = matrices(m)[0]
    by_rows = jnp.stack(combine(B, overlapping(x, m, 1)))  # [n, b, h, m w + 2, C]
    return jnp.stack(combine(B, overlapping(by_rows, m, 3)), 1)


def kernel_tiles(kernel: jax.Array, m: int) -> jax.Array:
    """U = G g G' of the kernel: `[3, 3, C, F]` to `[n n, C, F]`; small enough for one product."""
    G = np.kron(matrices(m)[1], matrices(m)[1])
    U = jnp.asarray(G, kernel.dtype) @ kernel.reshape(9, -1)
    return U.reshape(len(G), *kernel.shape[2:])


def pixels(M: jax.Array, m: int) -> jax.Array:
    """Y = A M A' of each tile: `[n, n, b, h, w, F]` to `[b, m h, m w, F]`."""
    A, (_, _, b, h, w, F) = matrices(m)[2], M.shape
    by_columns = [jnp.stack(combine(A, along(row, 0)), 3) for row in combine(A, along(M, 0))]
    return jnp.stack(by_columns, 2).reshape(b, m * h, m * w, F)
