"""Checks of lesson 01's exercises."""

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import close, refuse, require


def backward(answer):
    """The gradients of all four arrays, against JAX's."""
    rng = np.random.default_rng(0)
    B = 6
    W1, W2 = rng.normal(size=(64, 32)) / 8, rng.normal(size=(32, 10))
    model = {"W1": W1, "b1": np.zeros(32), "W2": W2, "b2": np.zeros(10)}
    inputs = rng.normal(size=(B, 64))
    labels = rng.integers(0, 10, B)
    hidden = np.maximum(inputs @ W1, 0)
    probabilities = np.asarray(jax.nn.softmax(hidden @ W2), np.float64)
    arguments = (model, inputs, labels, hidden, probabilities)
    before = jax.tree.map(np.copy, arguments)
    result = answer(*arguments)
    require(
        close(arguments, before, rtol=0, atol=0),
        "an argument was changed in place: work on a copy of `probabilities`",
    )
    require(
        isinstance(result, dict) and result.keys() == model.keys(),
        "return a dictionary with the gradients of W1, b1, W2 and b2",
    )
    for name, array in model.items():
        require(
            np.shape(result[name]) == array.shape,
            f"the gradient of {name} must have its shape, {array.shape}, yours has "
            f"{np.shape(result[name])}",
        )

    def loss(model):
        layers = [(model["W1"], model["b1"]), (model["W2"], model["b2"])]
        return mean_loss(layers, inputs, labels)

    of_the_mean = jax.tree.map(np.asarray, jax.grad(loss)(model))
    require(
        not close(result, of_the_mean),
        "this is the gradient of the mean loss: return the gradient of the summed loss",
    )
    back = (probabilities - np.eye(10)[labels]) @ W2.T
    columns = probabilities.copy()
    columns[:, labels] -= 1
    replaced = probabilities.copy()
    replaced[np.arange(B), labels] = -1
    mistakes = {
        "W2": {
            "rule 1: subtract 1 at the correct class": hidden.T @ probabilities,
            "rule 1 subtracts 1 once in each row, and g[:, labels] changes these columns "
            "in every row: index the rows, too": hidden.T @ columns,
            "rule 1 subtracts 1 from the probability, and yours replaces it by -1: "
            "write -= 1": hidden.T @ replaced,
            "the sign is wrong: g is the probabilities, minus 1 at the correct class": (
                -B * of_the_mean["W2"]
            ),
        },
        "b2": {},
        "W1": {
            "rule 3: nothing passes where the ReLU returned 0": inputs.T @ back,
            "rule 3 asks if the ReLU's output was positive, not if g is": (
                inputs.T @ np.maximum(back, 0)
            ),
            "rule 3 keeps g or sets it to 0: multiply by (hidden > 0), not by hidden": (
                inputs.T @ (back * hidden)
            ),
        },
        "b1": {},
    }
    for name, wrong in mistakes.items():
        refuse(result[name], wrong)
        require(
            close(result[name], B * of_the_mean[name]),
            f"the gradient of {name} is wrong: look at rule 2, and at the g it uses",
        )


def standardize_backward(answer):
    """Against JAX's gradient of sum(g * y)."""
    rng = np.random.default_rng(0)
    B, D = 5, 3
    x = rng.normal(size=(B, D)) + np.arange(B)[:, None]
    g = rng.normal(size=(B, D))
    result = np.asarray(answer(x.copy(), g.copy()))
    require(
        result.shape == (B, D),
        f"the gradient must have the shape of x, {(B, D)}, yours has {result.shape}",
    )

    def output(x):
        return (g * (x - x.mean(0)) / x.std(0)).sum()

    expected = np.asarray(jax.grad(output)(x))
    y = (x - x.mean(0)) / x.std(0)
    both_constant = (
        "this treats mean and standard deviation as constants; "
        "both depend on every example"
    )
    deviation_constant = (
        "the mean is treated right, and the standard deviation as a constant: "
        "it depends on every example, too"
    )
    no_deviation = "everything is right except the division by the deviation"
    late = (
        "the two means are of g before the division by the deviation: "
        "divide g first, and use the result in all three places"
    )
    mistakes = {
        both_constant: g / x.std(0),
        deviation_constant: (g - g.mean(0)) / x.std(0),
        no_deviation: x.std(0) * expected,
        "the sign is wrong": -expected,
        late: g / x.std(0) - g.mean(0) - y * (g * y).mean(0),
    }
    refuse(result, mistakes)
    require(
        close(result.sum(0), 0),
        "shifting all of x changes no output, so each column of the gradient must add "
        f"up to 0; yours adds up to {result.sum(0).round(3)}",
    )
    along_y = (result * y).mean(0).round(4)
    require(
        close(along_y, 0),
        "stretching x around its mean changes no output, so the mean of y times the "
        f"gradient must be 0; yours is {along_y}",
    )
    require(
        close(result, expected),
        f"JAX gives {expected[0].round(4)} for the first example, yours is "
        f"{result[0].round(4)}",
    )


def mean_loss(parameters, x, labels):
    """The mean cross-entropy of the network with two layers."""
    (W1, b1), (W2, b2) = parameters
    logits = jnp.maximum(x @ W1 + b1, 0) @ W2 + b2
    return -jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels].mean()


def fixed_update(answer):
    """One step from fixed parameters, with JAX's gradients."""
    rng = np.random.default_rng(0)
    W1 = rng.normal(size=(6, 5))
    W2 = rng.normal(size=(5, 4))
    parameters = [(W1, np.zeros(5)), (W2, np.zeros(4))]
    x = rng.normal(size=(7, 6))
    rate = 0.5
    hidden = np.maximum(x @ W1, 0)
    # Classes that the network finds unlikely, so that gradients are large.
    labels = (hidden @ W2).argmin(1)
    copies = [(W.copy(), b.copy()) for W, b in parameters]
    result = answer(parameters, x, labels, rate)
    require(
        isinstance(result, list | tuple) and len(result) == 2,
        "return a list of two pairs, (W1, b1) and (W2, b2)",
    )
    require(
        np.shape(result[0][0]) == W1.shape,
        f"the first pair must be (W1, b1): W1 is {W1.shape}, and yours is "
        f"{np.shape(result[0][0])}",
    )
    for (W, b), (W_before, b_before) in zip(parameters, copies, strict=True):
        require(
            np.array_equal(W, W_before) and np.array_equal(b, b_before),
            "the given parameters were changed in place: "
            "`W - ...` makes a new array, `W -= ...` does not",
        )
    gradients = jax.grad(mean_loss)(parameters, x, labels)

    def stepped(factor):
        return jax.tree.map(
            lambda w, gradient: w - factor * gradient, parameters, gradients
        )

    expected = stepped(rate)
    for layer in (0, 1):
        require(
            not close(result[layer], parameters[layer]),
            f"layer {layer + 1} did not change: subtract rate times its gradients",
        )
    summed = (
        "this follows the gradient of the summed loss: divide g by the number of "
        "examples, as the broken update does"
    )
    wrong_factors = {
        summed: rate * len(labels),
        "this step goes up: subtract the gradients": -rate,
        "the learning rate is missing": 1,
    }
    refuse(result[1], {name: stepped(wrong_factors[name])[1] for name in wrong_factors})
    require(
        close(result[1], expected[1]),
        "the second layer is wrong: its gradients are hidden.T @ g and g.sum(0)",
    )
    logits = hidden @ W2
    g = (np.asarray(jax.nn.softmax(logits)) - np.eye(4)[labels]) / len(labels)
    g_of_new_W2 = g @ np.asarray(expected[1][0]).T
    new_W2 = (
        "only the first layer is wrong: "
        "g @ W2.T needs the W2 of the forward pass, not the new one"
    )
    no_mask = (
        "only the first layer is wrong: where the ReLU gave 0 nothing passes back, "
        "so multiply by (hidden > 0)"
    )
    mistakes = {
        new_W2: W1 - rate * x.T @ (g_of_new_W2 * (hidden > 0)),
        no_mask: W1 - rate * x.T @ (g @ W2.T),
    }
    refuse(result[0][0], mistakes)
    require(
        close(result[0], expected[0]),
        "only the first layer is wrong: with g1, the gradient before its ReLU, "
        "its gradients are x.T @ g1 and g1.sum(0)",
    )
