import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

S_MEAN = "np.mean(small - large) / (1 / b - 1 / B)"
LARGE = "np.mean(large) - S / B"
SMALL_LINE = 'lax.pmean(optax.tree.norm(gradients, squared=True), "data")'
LARGE_LINE = 'optax.tree.norm(lax.pmean(gradients, "data"), squared=True)'
TIME = "(1 + noise_scale / (N * b)) * seconds[N]"


def quotients(small, large, b, B):
    S = (small - large) / (1 / b - 1 / B)
    return S / (large - S / B)


def mean_of_quotients(small, large, b, B):
    return np.mean(quotients(small, large, b, B))


def median_of_quotients(small, large, b, B):
    return np.median(quotients(small, large, b, B))


def sums_of_leaves(gradients):
    def squared(tree):
        return sum(jnp.vdot(x, x) for x in jax.tree.leaves(tree))

    mean = jax.tree.map(lambda x: lax.pmean(x, "data"), gradients)
    return lax.pmean(squared(gradients), "data"), squared(mean)


def gathered(gradients):
    everyone = jax.tree.map(lambda x: lax.all_gather(x, "data"), gradients)
    flat = [x.reshape(x.shape[0], -1) for x in jax.tree.leaves(everyone)]
    flat = jnp.concatenate(flat, axis=1)
    return (flat**2).sum(1).mean(), (flat.mean(0) ** 2).sum()


def in_a_loop(noise_scale, b, seconds):
    best = None
    for N, time in seconds.items():
        training = time * (N * b + noise_scale) / N
        if best is None or training < best[0]:
            best = training, N
    return best[1]


WRONG = {
    "fixed_noise_scale": [
        ("the mean of the updates' quotients", mean_of_quotients),
        ("the median of the updates' quotients", median_of_quotients),
        ("return one number", quotients),
        ("still has S / B", f"squared_G = {LARGE}", "squared_G = np.mean(large)"),
        ("not |G|² / S", "S / squared_G", "squared_G / S"),
        ("divide by (1 / b - 1 / B)", S_MEAN, "np.mean(small - large) * b"),
        ("yours is", "np.mean(large) - S / B", "np.mean(small) - S / B"),
        ("yours is", "np.mean(small - large)", "np.mean(large - small)"),
        ("yours is", "np.mean(large)", "large[-1]"),
    ],
    "squared_lengths": [
        (
            "lacks its all-reduce",
            SMALL_LINE,
            "optax.tree.norm(gradients, squared=True)",
        ),
        (
            "lacks its all-reduce",
            LARGE_LINE,
            "optax.tree.norm(gradients, squared=True)",
        ),
        ("the order", "return small, large", "return large, small"),
        ("these are lengths", ", squared=True", ""),
        (
            "the square of the mean length",
            SMALL_LINE,
            'lax.pmean(optax.tree.norm(gradients), "data") ** 2',
        ),
        (
            "the sum of the gradients",
            'lax.pmean(gradients, "data")',
            'lax.psum(gradients, "data")',
        ),
        ("so their mean is", SMALL_LINE, SMALL_LINE.replace("pmean", "psum")),
        ("the squared length", LARGE_LINE, SMALL_LINE),
        (
            "the devices' squared lengths are",
            "gradients, squared",
            'gradients["w"], squared',
        ),
        ("return two numbers", "return small, large", "return small"),
    ],
    "best_device_count": [
        (
            "the fewest updates",
            "min(seconds, key=lambda N: " + TIME + ")",
            "max(seconds)",
        ),
        ("the shortest update", TIME, "seconds[N]"),
        ("the most examples a second", TIME, "seconds[N] / (N * b)"),
        (
            "the most examples a second",
            "1 + noise_scale / (N * b)",
            "noise_scale / (N * b)",
        ),
        (
            "punishes a larger batch",
            "1 + noise_scale / (N * b)",
            "1 + N * b / noise_scale",
        ),
        ("N * b examples, not N", "1 + noise_scale / (N * b)", "1 + noise_scale / N"),
        ("a batch of N * b", "1 + noise_scale / (N * b)", "1 + noise_scale / b"),
        ("the fewest updates", ") * seconds[N]", ")"),
        ("punishes a larger batch", TIME, "seconds[N] * N"),
        ("are best", "1 + noise_scale / (N * b)", "2 + noise_scale / (N * b)"),
        ("are best", "/ (N * b)", "/ (2 * N * b)"),
        (
            "return one of the numbers",
            "min(seconds, key=lambda N: " + TIME + ")",
            f"min({TIME} for N in seconds)",
        ),
    ],
}

RIGHT = {
    "fixed_noise_scale": [
        (S_MEAN, "np.mean((small - large) / (1 / b - 1 / B))"),
        (S_MEAN, "(small.mean() - large.mean()) * b * B / (B - b)"),
        ("S / squared_G", "float(jnp.asarray(S / squared_G))"),
    ],
    "squared_lengths": [sums_of_leaves, gathered],
    "best_device_count": [
        (TIME, "(N * b + noise_scale) / (N * b) * seconds[N]"),
        (TIME, "seconds[N] + noise_scale * seconds[N] / N / b"),
        in_a_loop,
    ],
}
