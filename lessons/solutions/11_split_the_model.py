"""Solutions of lesson 11's exercises."""

from jax import P, lax


def cut_in_pairs():
    """(spec of W1, spec of W2)."""
    return P(None, "model"), P("model", None)


def product_of_parts(x, w):
    """[B, H], whole on every device."""
    return lax.psum(x @ w, "feature")


def part_shape(shape, names, sizes):
    """A tuple of as many numbers as `shape`."""
    return tuple(size // sizes.get(name, 1) for size, name in zip(shape, names, strict=True))
