"""Convolution by Winograd's F(4x4, 3x3), which multiplies less and pays on a CPU.

Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016, whose letters are used here: 4x4 pixels
of the output take 36 products instead of 144. A 6x6 kernel with stride S = 2 becomes 3x3 with stride 1 on four times
the channels: the four pixels of each 2x2 block lie side by side (space to depth).

Shapes: b examples, H x W pixels, C channels in, F out, c = S * S * C; h x w tiles of 4x4 pixels of the output, read
from tiles of 6x6 pixels of the input that overlap by two. Each transform goes over the rows, then over the columns.
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
# 2022): here a millionth of the largest value in float32, with Lavin and Gray's 0, 1, -1, 2, -2 six. As sums of few
# powers of two they make the matrices for the pixels exact.
POINTS = (0, 5 / 8, -5 / 8, 3 / 2, -3 / 2)
OTHERS = [[q for q in POINTS if q != p] for p in POINTS]
# Four pixels of the output are `A ((G g) * (B d))`. A row of B holds the coefficients of the polynomial that is zero at
# all other points. Its value at its own point divides the row of G.
B = np.array([*([*np.poly(zeros)[::-1], 0] for zeros in OTHERS), np.poly(POINTS)[::-1]])  # [6, 6], for the pixels d
DIVISORS = [np.prod(np.subtract(p, zeros)) for p, zeros in zip(POINTS, OTHERS, strict=True)]
G = np.array(
    [*([1 / d, p / d, p**2 / d] for p, d in zip(POINTS, DIVISORS, strict=True)), [0, 0, 1]]
)  # [6, 3], kernel g
A = np.array([[*(p**i for p in POINTS), i == 3] for i in range(4)])  # [4, 6]


def winograd(images: jax.Array, kernel: jax.Array, S: int) -> jax.Array | None:
    """Convolution of images that need no padding, with 3x3 at stride S = 1 or 6x6 at stride 2; None where it does not
    pay."""
    (b, H, W, C), F = images.shape, kernel.shape[3]
    height, width = H // S - 2, W // S - 2
    h, w = -(-height // 4), -(-width // 4)
    if 4 * h * w >= max(0, height) * width:
        return None
    x = jnp.pad(images, ((0, 0), (0, 4 * S * (h + 1) - H), (0, 4 * S * (w + 1) - W), (0, 0)))
    V = tiles(x.reshape(b, 4 * (h + 1), S, 4 * (w + 1), S * C))
    M = lax.dot_general(V.reshape(36, b * h * w, -1), kernel_tiles(kernel, S), (((2,), (1,)), ((0,), (0,))))
    return pixels(M.reshape(6, 6, b, h, w, F))[:, :height, :width]


def combine(matrix: np.ndarray, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """A small matrix times a vector whose elements are arrays, as sums: a product would take longer."""
    terms = [[x if c == 1 else float(c) * x for c, x in zip(row, arrays, strict=True) if c] for row in matrix]
    return [functools.reduce(jnp.add, row) for row in terms]


def along(x: jax.Array, axis: int) -> list[jax.Array]:
    """The arrays along an axis. The transpose of a split is a concatenation; that of an index would be a sum of padded
    arrays, which takes longer."""
    return [each.squeeze(axis) for each in lax.split(x, [1] * x.shape[axis], axis)]


def overlapping(x: jax.Array) -> list[jax.Array]:
    """Of each tile the first row, the second, ...: `[b, 4 (h + 1), ...]` to six times `[b, h, ...]`."""
    rows = along(x.reshape(len(x), -1, 4, *x.shape[2:]), 2)
    return [row[:, :-1] for row in rows] + [row[:, 1:] for row in rows[:2]]


def tiles(x: jax.Array) -> jax.Array:
    """V = B d B' of each tile d: `[b, 4 (h + 1), S, 4 (w + 1), S C]` to `[6, 6, b, h, w, c]`."""
    x = jnp.concatenate(along(x, 2), -1)  # as a transpose it takes XLA twice as long
    by_rows = jnp.stack(combine(B, overlapping(x)))  # [6, b, h, 4 (w + 1), c]
    columns = overlapping(by_rows.reshape(-1, *by_rows.shape[3:]))
    return jnp.stack(combine(B, [each.reshape(*by_rows.shape[:3], *each.shape[1:]) for each in columns]), 1)


def kernel_tiles(kernel: jax.Array, S: int) -> jax.Array:
    """U = G g G' of the kernel, small enough for one product: `[3 S, 3 S, C, F]` to `[36, c, F]`."""
    _, _, C, F = kernel.shape
    g = kernel.reshape(3, S, 3, S * C * F).swapaxes(1, 2).reshape(9, S * S * C * F)
    return (jnp.asarray(np.kron(G, G), kernel.dtype) @ g).reshape(36, S * S * C, F)


def pixels(M: jax.Array) -> jax.Array:
    """Y = A M A' of each tile: `[6, 6, b, h, w, F]` to `[b, 4 h, 4 w, F]`."""
    _, _, b, h, w, F = M.shape
    by_columns = [jnp.stack(combine(A, along(row, 0)), 3) for row in combine(A, along(M, 0))]
    return jnp.stack(by_columns, 2).reshape(b, 4 * h, 4 * w, F)
