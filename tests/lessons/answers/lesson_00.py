"""Answers to the exercises of lesson 00; see ../test_exercises.py."""

import jax
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
    "mended_standardize": [
        ("device_put returns a copy", lambda x, device: (x - x.mean()) / x.std()),
        ("mean 0", lambda x, device: jax.device_put(x - x.mean(), device)),
    ],
}

RIGHT = {}
