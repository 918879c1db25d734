"""Answers to the exercises of lesson 17; see ../test_exercises.py."""

import jax


def one_device_only(sharding, shape, mine):
    rows = sharding.devices_indices_map(shape)[mine[0]][0]
    return rows.start or 0, rows.stop


def planted(process, mean_loss, say):
    if process == 0:
        say(mean_loss())
    return 0.25


def everybody_says(process, mean_loss, say):
    value = mean_loss()
    say(value)
    return value


WRONG = {
    "rows_of": [
        ("this is the whole array", lambda sharding, shape, mine: (0, shape[0])),
        ("hold the rows", one_device_only),
        ("return two numbers", lambda sharding, shape, mine: len(mine)),
    ],
    "assemble": [
        ("return a jax.Array", lambda sharding, shape, rows, mine: rows),
        ("its sharding is", lambda sharding, shape, rows, mine: jax.device_put(rows, mine[0])),
        ("that belong there", lambda sharding, shape, rows, mine: jax.device_put(rows[::-1], sharding)),
    ],
    "mended_log": [
        ("those that do wait in vain", planted),
        ("process 0 alone", everybody_says),
    ],
}

RIGHT = {}
