"""The exercises of lesson 00: wrong answers get the message that helps."""

import jax
import numpy as np
import pytest
from checks import check

LESSON = "00_meet_your_devices"


WRONG = {
    "place_rows": {
        "NumPy arrays on the host": lambda x, places: list(x),
        "device_put's second argument": lambda x, places: [jax.device_put(row) for row in x],
        "does not hold row": lambda x, places: [
            jax.device_put(row, place) for row, place in zip(x[::-1], places, strict=True)
        ],
        "has shape (4,)": lambda x, places: [jax.device_put(x, place) for place in places],
    },
    "add_on": {
        "move both before you add": lambda device, a, b: a + b,
        "not on the device that was asked for": lambda device, a, b: a + jax.device_put(b, next(iter(a.devices()))),
        "not one of the host": lambda device, a, b: np.asarray(a) + np.asarray(b),
    },
    "environment": {
        "must be a string": lambda count, cores: {"JAX_NUM_CPU_DEVICES": count, "NPROC": 2 * count},
        "may deadlock": lambda count, cores: {"JAX_NUM_CPU_DEVICES": str(count), "NPROC": str(max(cores, count))},
        "cores idle": lambda count, cores: {"JAX_NUM_CPU_DEVICES": str(count), "NPROC": str(2 * count)},
        "NPROC is missing": lambda count, cores: {"JAX_NUM_CPU_DEVICES": str(count)},
    },
}


@pytest.mark.parametrize(
    ("exercise", "message"), [(exercise, message) for exercise, answers in WRONG.items() for message in answers]
)
def test_a_wrong_answer_gets_the_message_that_helps(exercise, message):
    verdict = check(LESSON, exercise, WRONG[exercise][message])
    assert not verdict.solved
    assert message in verdict.message
