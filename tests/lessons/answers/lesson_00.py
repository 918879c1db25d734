"""Answers to the exercises of lesson 00; see ../test_exercises.py."""

import jax
import jax.numpy as jnp
import numpy as np


def one_after_the_other(arrays):
    rounds = [list(arrays)]
    while len(rounds[-1]) > 1:
        first, second, *others = rounds[-1]
        rounds.append([first + jax.device_put(second, *first.devices()), *others])
    return rounds


def onto_the_right(arrays):
    rounds = [list(arrays)]
    while len(rounds[-1]) > 1:
        pairs = zip(rounds[-1][::2], rounds[-1][1::2], strict=True)
        rounds.append([jax.device_put(left, *right.devices()) + right for left, right in pairs])
    return rounds


def through_the_host(device, a, b):
    return jax.device_put(np.asarray(a) + np.asarray(b), device)


def under_a_default_device(device, a, b):
    with jax.default_device(device):
        return jnp.asarray(np.asarray(a)) + jnp.asarray(np.asarray(b))


def by_index(arrays):
    rounds, distance = [arrays], 1
    while distance < len(arrays):
        last, sums = rounds[-1], []
        for i in range(0, len(last), 2):
            (home,) = last[i].devices()
            sums.append(jax.device_put(last[i + 1], home) + last[i])
        rounds.append(sums)
        distance *= 2
    return rounds


def recursively(arrays):
    if len(arrays) == 1:
        return [arrays]
    sums = [a + jax.device_put(b, a.sharding) for a, b in zip(arrays[::2], arrays[1::2], strict=True)]
    return [arrays, *recursively(sums)]


def standardize_in_numpy(x, device):
    x = np.asarray(x)
    return jax.device_put((x - x.mean()) / x.std(), device)


def standardize_and_move(x, device):
    return jax.device_put((x - x.mean()) / x.std(), device)


WRONG = {
    "add_on": [
        ("move both before you add", lambda device, a, b: a + b),
        ("not on the device that was asked for", lambda device, a, b: a + jax.device_put(b, next(iter(a.devices())))),
        ("not one of the host", lambda device, a, b: np.asarray(a) + np.asarray(b)),
    ],
    "sum_in_pairs": [
        ("need rounds of", one_after_the_other),
        ("where its first array is", onto_the_right),
        ("that of the devices 0 to 1", lambda arrays: [arrays, *one_after_the_other(arrays[::2])]),
        ("move one to the other's device", lambda arrays: [arrays, [arrays[0] + arrays[1]]]),
        ("a list of rounds", lambda arrays: sum(jax.device_get(arrays))),
    ],
    "fixed_standardize": [
        ("device_put returns a copy", lambda x, device: (x - x.mean()) / x.std()),
        ("mean 0", lambda x, device: jax.device_put(x - x.mean(), device)),
        ("must be a JAX array", lambda x, device: np.asarray((x - x.mean()) / x.std())),
    ],
}

RIGHT = {
    "add_on": [through_the_host, under_a_default_device],
    "sum_in_pairs": [by_index, recursively],
    "fixed_standardize": [standardize_in_numpy, standardize_and_move],
}
