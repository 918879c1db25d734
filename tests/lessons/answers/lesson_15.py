"""Answers to the exercises of lesson 15; see ../test_exercises.py."""

import jax.numpy as jnp
from jax import P, lax, nn


def gathers(x, W1, W2):
    W1, W2 = lax.all_gather(W1, "model", axis=1, tiled=True), lax.all_gather(W2, "model", tiled=True)
    return nn.relu(x @ W1) @ W2


WRONG = {
    "split_in_pairs": [
        ("W1's columns and W2's rows", lambda: (P(None, "model"), P(None, "model"))),
        ("a half is wanted", lambda: (P(), P("model", None))),
        ("the mesh axis is called 'model'", lambda: (P(None, "modle"), P("modle", None))),
        ("return two PartitionSpecs", lambda: P("model")),
    ],
    "two_layers": [
        ("the partial sum over its own hidden units", lambda x, W1, W2: nn.relu(x @ W1) @ W2),
        ("this is a quarter of it", lambda x, W1, W2: lax.pmean(nn.relu(x @ W1) @ W2, "model")),
        ("the result is not relu", lambda x, W1, W2: lax.psum(x @ W1 @ W2, "model")),
        ("one all-reduce is enough", gathers),
        ("not relu", lambda x, W1, W2: nn.relu(lax.psum(x @ W1 @ W2, "model"))),
    ],
    "fixed_layer": [
        ("the bias 4 times", lambda h, W2, bias: lax.psum(h @ W2 + bias, "model")),
        ("the bias is missing", lambda h, W2, bias: lax.psum(h @ W2, "model")),
        ("different results", lambda h, W2, bias: h @ W2 + bias),
        ("is not h @ W2 + bias", lambda h, W2, bias: lax.pmean(h @ W2 + bias, "model")),
        ("on 2 devices", lambda h, W2, bias: lax.psum(h @ W2 + bias / 4, "model")),
    ],
}


def bias_of_the_first_device(h, W2, bias):
    return lax.psum(h @ W2 + jnp.where(lax.axis_index("model") == 0, bias, 0), "model")


def gathers_the_partial_sums(x, W1, W2):
    return lax.all_gather(nn.relu(x @ W1) @ W2, "model").sum(0)


def as_a_list():
    """Of specs that are built from the names of the axes."""
    specs = {"D": None, "H": "model", "C": None}
    return [P(*(specs[axis] for axis in axes)) for axes in ("DH", "HC")]


RIGHT = {
    "split_in_pairs": [lambda: (P(None, ("model",)), P("model")), as_a_list],
    "two_layers": [
        lambda x, W1, W2: lax.pmean(nn.relu(x @ W1) @ W2, "model") * lax.axis_size("model"),
        gathers_the_partial_sums,
    ],
    "fixed_layer": [
        lambda h, W2, bias: lax.psum(h @ W2 + bias / lax.axis_size("model"), "model"),
        bias_of_the_first_device,
    ],
}
