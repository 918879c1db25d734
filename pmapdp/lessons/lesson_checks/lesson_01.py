"""Checks of lesson 01's exercises."""

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import close, refuse, require


def mean_loss(parameters, x, labels):
    """The mean cross-entropy of the network with two layers."""
    (W1, b1), (W2, b2) = parameters
    logits = jnp.maximum(x @ W1 + b1, 0) @ W2 + b2
    return -jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels].mean()


def softmax_gradient(answer):
    """Probabilities minus target, divided by the number of examples."""
    random = np.random.default_rng()
    B, C = 6, 4
    probabilities = random.dirichlet(np.ones(C), B)
    labels = random.integers(0, C, B)
    given = probabilities.copy()
    found = np.asarray(answer(given, labels))
    require(
        found.shape == (B, C),
        f"the result must have the shape of the logits, {(B, C)}, yours has {found.shape}",
    )
    require(
        np.array_equal(given, probabilities),
        "`probabilities` was changed in place: subtract into a new array",
    )
    right = (probabilities - np.eye(C)[labels]) / B
    mistakes = {
        f"this is the gradient of the sum of the losses; the loss is a mean over B = {B} examples": B
        * right,
        "the sign is wrong: it is probabilities minus target": -right,
    }
    refuse(found, mistakes)
    require(
        np.allclose(found, right),
        "take the probabilities, minus 1 at the class of each example, divided by B",
    )


def standardize_backward(answer):
    """Against JAX's gradient of sum(g * y)."""
    random = np.random.default_rng()
    B, D = 5, 3
    x, g = (
        random.normal(size=(B, D)) + np.arange(B)[:, None],
        random.normal(size=(B, D)),
    )
    found = np.asarray(answer(x.copy(), g.copy()))
    require(
        found.shape == (B, D),
        f"the gradient must have the shape of x, {(B, D)}, yours has {found.shape}",
    )
    right = np.asarray(jax.grad(lambda x: (g * (x - x.mean(0)) / x.std(0)).sum())(x))
    y = (x - x.mean(0)) / x.std(0)
    only_mean = "the mean is treated right, and the standard deviation as a constant: it depends on every example, too"
    mistakes = {
        "this treats mean and standard deviation as constants; both depend on every example": g
        / x.std(0),
        only_mean: (g - g.mean(0)) / x.std(0),
        "everything is right except the division by the deviation": x.std(0) * right,
    }
    refuse(found, mistakes)
    columns = "shifting all of x changes no output, so each column of the gradient must add up to 0"
    require(
        close(found.sum(0), 0), f"{columns}; yours adds up to {found.sum(0).round(3)}"
    )
    wanted = f"JAX gives {right[0].round(4)} for the first example, yours is {found[0].round(4)}"
    along_y = f"the component along y, now {(found * y).mean(0).round(4)}, must be 0"
    require(close(found, right), f"{wanted}; {along_y}")


def fixed_update(answer):
    """One step from random parameters, with JAX's gradients."""
    random = np.random.default_rng()
    parameters = [
        (random.normal(size=(m, n)), np.zeros(n)) for m, n in ((6, 5), (5, 4))
    ]
    x, rate = random.normal(size=(7, 6)), 0.5
    (W1, _), (W2, _) = parameters
    labels = (np.maximum(x @ W1, 0) @ W2).argmin(
        1
    )  # classes that the network finds unlikely: gradients are large
    kept = [(W.copy(), b.copy()) for W, b in parameters]
    found = answer(parameters, x, labels, rate)
    require(
        isinstance(found, list | tuple) and len(found) == 2,
        "return a list of two pairs, (W1, b1) and (W2, b2)",
    )
    in_place = "the given parameters were changed in place: `W - ...` makes a new array, `W -= ...` does not"
    for (W, b), (before, bias) in zip(parameters, kept, strict=True):
        require(np.array_equal(W, before) and np.array_equal(b, bias), in_place)
    gradients = jax.grad(mean_loss)(parameters, x, labels)
    right = jax.tree.map(lambda w, gradient: w - rate * gradient, parameters, gradients)
    require(
        close(found[1], right[1]),
        "the second layer is wrong: its gradients are hidden.T @ g and g.sum(0)",
    )
    first = "only the first layer is wrong: g @ W2.T needs the W2 of the forward pass, not the new one"
    require(close(found[0], right[0]), first)
