"""Checks of lesson 19's exercises."""

import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import require

SETTINGS = {"WIDTH": 128, "PEAK_RATE": 5e-3, "DROPOUT": 0.1}


def cut_examples(answer):
    """Accept examples in which each token but the first is a target once."""
    # With a rest, without one, with one token too few for another example, and pairs.
    for tokens, length in ((36, 8), (33, 8), (32, 8), (7, 1)):
        check_examples(answer, tokens, length)


def check_examples(answer, tokens, length):
    """Check the examples of a text in which every token is different."""
    text = np.arange(tokens, dtype=np.uint8)
    examples = np.asarray(answer(text, length))
    case = f"{tokens} tokens with length {length}"
    require(
        examples.ndim == 2 and examples.shape[1] == length + 1,
        f"{case}: the shape is [n, {length + 1}], yours is {list(examples.shape)}",
    )
    n = (tokens - 1) // length
    targets = examples[:, 1:].ravel()
    times = np.bincount(targets.astype(int), minlength=tokens)
    wanted = (np.arange(tokens) >= 1) & (np.arange(tokens) <= n * length)
    for token in range(tokens):
        require(
            times[token] == wanted[token],
            f"{case}: token {token} is a target {times[token]} times, and should be "
            f"{int(wanted[token])} times. Your examples begin with the tokens "
            f"{examples[:4, 0].tolist()} ...",
        )
    require(
        np.array_equal(examples[:, :-1].ravel() + 1, targets),
        f"{case}: in an example every token is followed by the next one of the text",
    )
    require(
        np.array_equal(targets, np.arange(1, n * length + 1)),
        f"{case}: keep the examples in the order of the text",
    )


def bytes_per_device(answer):
    """Accept the bytes of a state of several dtypes that is never made."""
    made = []

    def init_state():
        # Runs when the arrays are made, and not when only their shapes are found.
        jax.debug.callback(lambda: made.append(True))
        return {
            "kernel": jnp.zeros((24, 6), jnp.float32),  # split over 8, and over 3
            "columns": jnp.zeros((6, 16), jnp.float32),  # split over 3 only
            "bias": jnp.zeros(10, jnp.float32),  # over neither
            "halves": jnp.zeros((48, 5), jnp.bfloat16),  # over both
            "step": jnp.zeros((), jnp.int32),
        }

    parts = {
        8: 24 * 6 * 4 // 8 + 6 * 16 * 4 + 10 * 4 + 48 * 5 * 2 // 8 + 4,
        3: 24 * 6 * 4 // 3 + 6 * 16 * 4 // 3 + 10 * 4 + 48 * 5 * 2 // 3 + 4,
        1: 24 * 6 * 4 + 6 * 16 * 4 + 10 * 4 + 48 * 5 * 2 + 4,
    }
    for devices, wanted in parts.items():
        found = answer(init_state, devices)
        jax.effects_barrier()
        require(
            not made,
            "your function made the arrays, and a state that is too large for a device "
            "would end it here: find the shapes with jax.eval_shape",
        )
        require(np.ndim(found) == 0, f"return one number, yours is {found}")
        require(
            float(found) == wanted,
            f"with {devices} devices each holds {wanted} bytes, you say {found}. An "
            "array is split if its first axis is divisible by the number of devices. "
            "Otherwise each device holds all of it. A float32 has 4 bytes, but not "
            "every array is float32",
        )


def fixed_check_settings(answer):
    """Accept a guard that compares with the first start, and changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.json"
        answer(file, SETTINGS)
        require(file.exists(), "the first start writes the file")
        require_accepted(answer, file, "a second start with the same settings")
        require_refused(answer, file, SETTINGS | {"PEAK_RATE": 5e-2}, ["PEAK_RATE"])
        require_accepted(
            answer, file, "a start with the first settings, after a refusal"
        )
        require_refused(answer, file, SETTINGS | {"PEAK_RATE": 5e-2}, ["PEAK_RATE"])
        changed = SETTINGS | {"WIDTH": 256, "DROPOUT": 0.0}
        require_refused(answer, file, changed, ["DROPOUT", "WIDTH"])
        require_refused(answer, file, SETTINGS | {"LAYERS": 2}, ["LAYERS"])
        fewer = {"WIDTH": 128, "PEAK_RATE": 5e-3}
        require_refused(answer, file, fewer, ["DROPOUT"])
        # A setting None that only the later start has.
        require_refused(answer, file, SETTINGS | {"CLIP": None}, ["CLIP"])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.json"
        first = SETTINGS | {"CLIP": None, "BETAS": (0.9, 0.95)}
        tuples = "with a tuple, of which JSON makes a list,"
        require_accepted(answer, file, f"the first start {tuples}", first)
        require_accepted(answer, file, f"a second start {tuples}", first)
        changed = first | {"BETAS": (0.9, 0.99)}
        require_refused(answer, file, changed, ["BETAS"], first)
        # A setting None that only the first start has.
        without_clip = SETTINGS | {"BETAS": (0.9, 0.95)}
        require_refused(answer, file, without_clip, ["CLIP"], first)


def require_accepted(answer, file, start, first=SETTINGS):
    """Check that a start with the first settings is let through."""
    try:
        found = answer(file, first)
    except ValueError as error:
        require(False, f"{start} was refused: {error}")
    from_json = json.loads(json.dumps(first))
    require(found in (first, from_json), f"return the settings, yours returned {found}")


def require_refused(answer, file, settings, names, first=SETTINGS):
    """Check that a start is refused with the names of what differs."""
    try:
        answer(file, settings)
    except ValueError as error:
        message = str(error)
    else:
        require(
            False,
            f"the first start had {first}, and a later one with {settings} wasn't "
            "refused. Compare with what the first start wrote, and leave the file as "
            "it is",
        )
    for name in first | settings:
        require(
            (name in message) == (name in names),
            f"{' and '.join(names)} changed: name what differs and nothing else. "
            f"Your message: {message}",
        )
