"""Solutions of lesson 18's exercises."""

import jax
import numpy as np


def mended_timer(function, x, clock):
    """The first call compiles, and may still be running when the clock starts: wait for both calls."""
    jax.block_until_ready(function(x))
    start = clock()
    jax.block_until_ready(function(x))
    return clock() - start


def all_rows(compiled, x, size):
    """A program is compiled for each shape. Padding with weight 0 gives all calls one shape and changes no sum."""
    total = 0
    for first in range(0, len(x), size):
        part = x[first : first + size]
        weights = (np.arange(size) < len(part)).astype(np.float32)[:, None]
        total = total + compiled(np.pad(part, ((0, size - len(part)), (0, 0))), weights)
    return total


def utilization(function, x, seconds, rate):
    """The compiler counts the operations of its own program."""
    flops = jax.jit(function).lower(x).compile().cost_analysis()["flops"]
    return flops / seconds / rate
