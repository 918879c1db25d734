"""Checks of lesson 21's exercises."""

import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import on_devices, require


def fixed_noise_scale(answer):
    """Accept the quotient of the means, and no mean of quotients."""
    random = np.random.default_rng(0)
    for b, B, S, squared_G in ((16, 128, 200.0, 2.0), (8, 64, 300.0, 1.0)):
        # In some updates |G|^2 comes out negative.
        small = squared_G + S / b + random.normal(size=40)
        large = squared_G + S / B + random.normal(size=40)
        found = answer(small.copy(), large.copy(), b, B)
        require(np.shape(found) == (), "return one number for all updates")
        each_S = (small - large) / (1 / b - 1 / B)
        mean_S = np.mean(each_S)
        mean_large = np.mean(large)
        quotients = each_S / (large - each_S / B)
        wrong = {
            "this is the mean of the updates' quotients: take the means of S and |G|² "
            "first": np.mean(quotients),
            "this is the median of the updates' quotients: take the means of S and "
            "|G|² first": np.median(quotients),
            "S is divided by the squared length over B examples, which still has S / B "
            "of noise in it": mean_S / mean_large,
            "S / |G|² is wanted, not |G|² / S": (mean_large - mean_S / B) / mean_S,
            "the difference of the squared lengths is S / b - S / B: "
            "divide by (1 / b - 1 / B)": b
            * (np.mean(small) - mean_large)
            / (mean_large - b * (np.mean(small) - mean_large) / B),
        }
        for message, value in wrong.items():
            require(not np.isclose(found, value, rtol=1e-6), message)
        expected = mean_S / (mean_large - mean_S / B)
        require(
            np.isclose(found, expected, rtol=1e-4),
            f"with b = {b} and B = {B}, S is {mean_S:.1f} and |G|² is "
            f"{mean_large - mean_S / B:.3f}, so {expected:.1f} is wanted, "
            f"yours is {found:.1f}",
        )


def squared_lengths(answer):
    """Accept the mean of the squares and the square of the mean, on four devices."""
    N = 4
    random = np.random.default_rng(0)
    gradients = {
        "w": random.normal(size=(N, 3, 2)).astype(np.float32) + 1,
        "b": random.normal(size=(N, 2)).astype(np.float32),
    }

    def both(gradients):
        pair = answer(gradients)
        require(isinstance(pair, tuple | list) and len(pair) == 2, "return two numbers")
        require(
            all(jnp.shape(number) == () for number in pair),
            "return two numbers: the squares of all leaves are added up",
        )
        return jnp.stack([jnp.asarray(number, jnp.float32) for number in pair])

    found = on_devices(both, gradients, shape=(2,), N=N)
    flat = np.concatenate([x.reshape(N, -1) for x in gradients.values()], axis=1)
    own = np.square(flat).sum(1)
    small = own.mean()
    large = np.square(flat.mean(0)).sum()
    require(
        np.allclose(found, found[0]),
        "the devices return different numbers: one of the two lacks its all-reduce",
    )
    first, second = found[0]
    require(
        not np.allclose([first, second], [large, small], rtol=1e-3),
        "the order: first the mean of the squared lengths, then the squared length of "
        "the mean",
    )
    require(
        not np.isclose(first, np.sqrt(own).mean(), rtol=1e-3)
        and not np.isclose(second, np.sqrt(large), rtol=1e-3),
        "these are lengths: the squared lengths are wanted",
    )
    require(
        not np.isclose(first, np.sqrt(own).mean() ** 2, rtol=1e-3),
        "the first is the square of the mean length: square first, then take the mean",
    )
    require(
        not np.isclose(second, N**2 * large, rtol=1e-3),
        "the second belongs to the sum of the gradients: take their mean",
    )
    require(
        np.isclose(first, small, rtol=1e-3),
        f"the devices' squared lengths are {own.round(2)}, so their mean is "
        f"{small:.3f}, yours is {first:.3f}",
    )
    require(
        np.isclose(second, large, rtol=1e-3),
        f"the devices' mean gradient has the squared length {large:.3f}, "
        f"yours is {second:.3f}",
    )


def best_device_count(answer):
    """Accept the N with the least updates times seconds."""
    # Noise scale, b, seconds of an update by N, and the best N. In these cases each
    # mistake that we know gives another N.
    cases = (
        (1000, 16, {1: 1.0, 4: 1.1, 16: 1.4, 64: 3.0, 256: 9.0}, 64),
        (1000, 16, {256: 1.6, 64: 1.5, 16: 1.4, 4: 1.1, 1: 1.0}, 256),
        (100, 128, {1: 1.0, 2: 1.5, 8: 1.9, 64: 2.5}, 1),
        (4000, 8, {2: 1.0, 8: 1.5, 32: 4.0, 128: 9.0, 512: 100.0}, 128),
        (100, 16, {1: 1.0, 2: 1.0, 4: 0.9, 8: 1.2, 16: 1.7, 32: 3.2, 64: 9.3}, 8),
    )
    found = []
    wrong: dict[str, list[int]] = {}
    for noise_scale, b, seconds, _ in cases:
        answered = answer(noise_scale, b, dict(seconds))
        require(
            np.shape(answered) == () and answered in seconds,
            f"return one of the numbers of devices {list(seconds)}, "
            f"yours is {answered}",
        )
        found.append(answered)
        N = np.array(list(seconds))
        time = np.array(list(seconds.values()))
        mistakes = {
            "this is the N with the shortest update, but a small batch needs more "
            "updates, and N devices have a batch of N * b": time,
            "this is the N with the fewest updates, but they may take long: multiply "
            "by their seconds": 1 + noise_scale / (N * b),
            "this is the N with the most examples a second, but above the noise scale "
            "twice the batch doesn't halve the updates": time / (N * b),
            "this punishes a larger batch, but a larger batch needs fewer updates: the "
            "formula has noise scale / B": time * (1 + N * b / noise_scale),
            "the batch of N devices has N * b examples, not N": time
            * (1 + noise_scale / N),
        }
        for message, cost in mistakes.items():
            wrong.setdefault(message, []).append(int(N[np.argmin(cost)]))
    for message, numbers in wrong.items():
        require(found != numbers, message)
    for (noise_scale, b, seconds, best), answered in zip(cases, found, strict=True):
        times = {
            N: round((1 + noise_scale / (N * b)) * time, 2)
            for N, time in seconds.items()
        }
        require(
            answered == best,
            f"noise scale {noise_scale}, b = {b}, seconds {seconds}: updates over "
            f"their minimum, times seconds, are {times}, so {best} devices are best, "
            f"yours is {answered}",
        )
