"""Checks of lesson 01's exercises."""

import numpy as np

from pmapdp.lessons.checks import close, refuse, require


def finite_differences(function, array):
    """The gradient of `function()` with respect to `array`, whose entries are moved in place and put back."""
    step, gradient = 1e-6, np.empty_like(array)
    for index in np.ndindex(array.shape):
        value = array[index]
        array[index] = value + step
        above = function()
        array[index] = value - step
        gradient[index] = (above - function()) / (2 * step)
        array[index] = value
    return gradient


def mean_loss(parameters, x, labels):
    """The mean cross-entropy of the network with two layers."""
    (W1, b1), (W2, b2) = parameters
    logits = np.maximum(x @ W1 + b1, 0) @ W2 + b2
    return (np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]).mean()


def softmax_gradient(answer):
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
    mistakes = {
        f"this is the gradient of the sum of the losses; the loss is a mean over B = {B} examples": B * right,
        "the sign is wrong: it is probabilities minus target": -right,
    }
    refuse(found, mistakes)
    require(np.allclose(found, right), "take the probabilities, minus 1 at the class of each example, divided by B")


def standardize_backward(answer):
    """Against finite differences of sum(g * y)."""
    random = np.random.default_rng()
    B, D = 5, 3
    x, g = random.normal(size=(B, D)) + np.arange(B)[:, None], random.normal(size=(B, D))
    found = np.asarray(answer(x.copy(), g.copy()))
    require(found.shape == (B, D), f"the gradient must have the shape of x, {(B, D)}, yours has {found.shape}")

    right = finite_differences(lambda: (g * (x - x.mean(0)) / x.std(0)).sum(), x)
    y = (x - x.mean(0)) / x.std(0)
    only_mean = "the mean is treated right, and the standard deviation as a constant: it depends on every example, too"
    mistakes = {
        "this treats mean and standard deviation as constants; both depend on every example": g / x.std(0),
        only_mean: (g - g.mean(0)) / x.std(0),
        "everything is right except the division by the deviation": x.std(0) * right,
    }
    refuse(found, mistakes)
    columns = "shifting all of x changes no output, so each column of the gradient must add up to 0"
    require(close(found.sum(0), 0), f"{columns}; yours adds up to {found.sum(0).round(3)}")
    wanted = f"finite differences give {right[0].round(4)} for the first example, yours is {found[0].round(4)}"
    along_y = f"the component along y, now {(found * y).mean(0).round(4)}, must be 0"
    require(close(found, right, atol=1e-5), f"{wanted}; {along_y}")


def fixed_update(answer):
    """One step from random parameters, against finite differences."""
    random = np.random.default_rng()
    parameters = [(random.normal(size=(m, n)), np.zeros(n)) for m, n in ((6, 5), (5, 4))]
    x, labels, rate = random.normal(size=(7, 6)), random.integers(0, 4, 7), 0.5
    kept = [(W.copy(), b.copy()) for W, b in parameters]
    found = answer(parameters, x, labels, rate)
    require(isinstance(found, list | tuple) and len(found) == 2, "return a list of two pairs, (W1, b1) and (W2, b2)")
    in_place = "the given parameters were changed in place: `W - ...` makes a new array, `W -= ...` does not"
    for (W, b), (before, bias) in zip(parameters, kept, strict=True):
        require(np.array_equal(W, before) and np.array_equal(b, bias), in_place)

    def is_right(layer):
        """Compare a layer of the answer with gradient descent by finite differences."""
        slopes = [finite_differences(lambda: mean_loss(parameters, x, labels), old) for old in parameters[layer]]
        wanted = [old - rate * slope for old, slope in zip(parameters[layer], slopes, strict=True)]
        return all(close(*pair, atol=1e-6) for pair in zip(found[layer], wanted, strict=True))

    require(is_right(1), "the second layer is wrong: its gradients are hidden.T @ g and g.sum(0)")
    require(is_right(0), "only the first layer is wrong: g @ W2.T needs the W2 of the forward pass, not the new one")
