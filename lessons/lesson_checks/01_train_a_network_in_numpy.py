"""Checks of lesson 01's exercises."""

import numpy as np
from checks import require

from pmapdp.models import numpy_mlp as numpy_network


def softmax_slope(answer):
    """Probabilities minus target, divided by the number of examples."""
    random = np.random.default_rng()
    B, C = 6, 4
    probabilities = random.dirichlet(np.ones(C), B)
    labels = random.integers(0, C, B)
    given = probabilities.copy()
    found = np.asarray(answer(given, labels))
    require(found.shape == (B, C), f"the result must have the shape of the logits, {(B, C)}, yours has {found.shape}")
    require(np.array_equal(given, probabilities), "`probabilities` was changed in place: subtract into a new array")
    right = (probabilities - np.eye(C)[labels]) / B
    require(
        not np.allclose(found, B * right),
        f"this is the slope of the sum of the losses; the loss is a mean over B = {B} examples",
    )
    require(not np.allclose(found, -right), "the sign is wrong: it is probabilities minus target")
    require(np.allclose(found, right), "take the probabilities, minus 1 at the class of each example, divided by B")


def layer_backward(answer):
    """The three slopes of a layer, against finite differences."""
    random = np.random.default_rng()
    x, W, slope = random.normal(size=(5, 4)), random.normal(size=(4, 3)), random.normal(size=(5, 3))
    found = answer(x, W, slope)
    require(isinstance(found, tuple) and len(found) == 3, "return three arrays: the slopes of x, W and b")
    for name, array, shape in zip("xWb", found, (x.shape, W.shape, (3,)), strict=True):
        require(
            np.shape(array) == shape,
            f"the slope of {name} must have the shape of {name}, {shape}, yours has {np.shape(array)}",
        )
    parameters = [(W, np.zeros(3)), (np.eye(3), np.zeros(3))]
    tried = numpy_network.finite_differences(lambda p: float((slope * (x @ p[0][0] + p[0][1])).sum()), parameters)[0]
    require(np.allclose(found[1], tried[0], atol=1e-6), "the slope of W is x, transposed, times the slope of y")
    require(
        np.allclose(found[2], tried[1], atol=1e-6),
        "the slope of b is the sum over the examples: every example adds to the same bias",
    )
    require(np.allclose(found[0], slope @ W.T), "the slope of x is the slope of y times W, transposed")


def batches(answer):
    """All examples once, in order, the last batch with what is left."""
    random = np.random.default_rng()
    size = int(random.integers(6, 9))
    n = size * int(random.integers(3, 6)) + int(random.integers(1, 3))  # a last batch of one or two
    order = random.permutation(n)
    found = answer(order, size)
    require(isinstance(found, list), "return a list of arrays")
    require(
        len(found) == -(-n // size),
        f"{n} examples in batches of {size} are {-(-n // size)} batches, the last one with the {n % size} that are left; "
        f"yours are {len(found)}",
    )
    require(all(len(batch) == size for batch in found[:-1]), f"all batches but the last hold {size} examples")
    require(np.array_equal(np.concatenate(found), order), "together the batches must be `order`, nothing twice")
