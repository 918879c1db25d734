"""Answers to the exercises of lesson 17; see ../test_exercises.py."""

import jax
import numpy as np


def assembled_by_callback(sharding, shape, rows, mine):
    return jax.make_array_from_callback(shape, sharding, lambda index: rows[index])


def assembled_from_the_map(sharding, shape, rows, mine):
    indices = sharding.devices_indices_map(shape)
    parts = [jax.device_put(rows[indices[device]], device) for device in mine]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def assembled_from_behind(sharding, shape, rows, mine):
    parts = [jax.device_put(part, each) for part, each in zip(np.split(rows, len(mine)), reversed(mine), strict=True)]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def by_id(found, each):
    return np.array(sorted(found, key=lambda device: device.id)).reshape(-1, each)


def across_the_nodes(found, each):
    return np.array(sorted(found, key=lambda device: device.process_index)).reshape(each, -1).T


def one_node_again_and_again(found, each):
    node = sorted(found, key=lambda device: device.process_index)[:each]
    return np.array([node] * (len(found) // each))


def in_lists(found, each):
    nodes = [[device for device in found if device.process_index // each == n] for n in range(len(found) // each)]
    return nodes


def last_node_first(found, each):
    return np.array(sorted(found, key=lambda device: -device.process_index)).reshape(-1, each)


def planted(process, mean_loss, say):
    if process == 0:
        say(mean_loss())
    return 0.25


def everybody_says(process, mean_loss, say):
    value = mean_loss()
    say(value)
    return value


def computes_twice(process, mean_loss, say):
    if process == 0:
        say(mean_loss())
    return mean_loss()


def returns_on_process_0(process, mean_loss, say):
    value = mean_loss()
    if process == 0:
        say(value)
        return value
    return float("nan")


def returns_early(process, mean_loss, say):
    value = mean_loss()
    if process:
        return value
    say(value)
    return value


def says_by_table(process, mean_loss, say):
    value = mean_loss()
    {0: say}.get(process, lambda _: None)(value)
    return value


WRONG = {
    "assemble": [
        ("return a jax.Array", lambda sharding, shape, rows, mine: rows),
        ("its sharding is", lambda sharding, shape, rows, mine: jax.device_put(rows, mine[0])),
        ("that belong there", lambda sharding, shape, rows, mine: jax.device_put(rows[::-1], sharding)),
        ("that belong there", assembled_from_behind),
        ("the global shape", lambda sharding, shape, rows, mine: jax.device_put(rows[: len(mine)], sharding)),
    ],
    "by_node": [
        ("the shape is [nodes, each]", lambda found, each: np.array(found)),
        ("must stay inside a node", by_id),
        ("must stay inside a node", across_the_nodes),
        ("each device comes once", one_node_again_and_again),
    ],
    "fixed_log": [
        ("those that do wait in vain", planted),
        ("process 0 alone", everybody_says),
        ("computed the loss 2 times", computes_twice),
        ("on every process", returns_on_process_0),
    ],
}

RIGHT = {
    "assemble": [
        assembled_by_callback,
        assembled_from_the_map,
        lambda sharding, shape, rows, mine: jax.device_put(rows, sharding),
    ],
    "by_node": [in_lists, last_node_first],
    "fixed_log": [says_by_table, returns_early],
}
