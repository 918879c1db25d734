SOFTMAX = "return (probabilities - np.eye(C)[labels]) / B"
IN_PLACE = "probabilities[np.arange(B), labels] -= 1\n    return probabilities / B"
STANDARDIZED = "(g - g.mean(0) - y * (g * y).mean(0)) / x.std(0)"
UPDATES = """return [
        (W1 - rate * x.T @ g1, b1 - rate * g1.sum(0)),
        (W2 - rate * hidden.T @ g, b2 - rate * g.sum(0)),
    ]"""
NEW = """new = [
        (W1 - rate * x.T @ g1, b1 - rate * g1.sum(0)),
        (W2 - rate * hidden.T @ g, b2 - rate * g.sum(0)),
    ]"""
ASSIGNED = f"""{NEW}
    for pair, new_pair in zip(parameters, new):
        for array, new_array in zip(pair, new_pair):
            array[...] = new_array
    return parameters"""
BY_THE_JACOBIAN = """columns = []
    for d in range(x.shape[1]):
        outer = np.outer(y[:, d], y[:, d])
        jacobian = (np.eye(len(x)) - (1 + outer) / len(x)) / x.std(0)[d]
        columns.append(jacobian.T @ g[:, d])
    return np.stack(columns, axis=1)"""
LATE = "g / x.std(0) - g.mean(0) - y * (g * y).mean(0)"
DIVIDED_FIRST = """h = g / x.std(0)
    return h - h.mean(0) - y * (h * y).mean(0)"""
BY_JAX = """def loss(logits):
        return -jax.nn.log_softmax(logits)[np.arange(B), labels].mean()
    return jax.grad(loss)(np.log(probabilities))"""


WRONG = {
    "softmax_gradient": [
        ("the class of each example is missing", " - np.eye(C)[labels]", ""),
        ("not by the classes too", " / B", " / (B * C)"),
        ("not by the 4 classes", " / B", " / C"),
        (
            "the shape of the logits",
            SOFTMAX,
            "return (probabilities - np.eye(C)[labels]).mean(0)",
        ),
        ("the loss is a mean", " / B", ""),
        ("the sign is wrong", SOFTMAX, SOFTMAX.replace("return ", "return -")),
        ("changed in place", SOFTMAX, IN_PLACE),
    ],
    "standardize_backward": [
        ("before the division", STANDARDIZED, LATE),
        ("as constants", STANDARDIZED, "g / x.std(0)"),
        ("standard deviation as a constant", " - y * (g * y).mean(0)", ""),
        ("must add up to 0", STANDARDIZED, "g"),
        ("must be 0", STANDARDIZED, "(g - g.mean(0)) * 2"),
        ("the shape of x", STANDARDIZED, "g.sum(0)"),
    ],
    "fixed_update": [
        ("where the ReLU gave 0", " * (hidden > 0)", ""),
        (
            "layer 1 did not change",
            "W1 - rate * x.T @ g1, b1 - rate * g1.sum(0)",
            "W1, b1",
        ),
        ("its gradients are x.T @ g1", "g1.sum(0)", "g1.mean(0)"),
        ("the W2 of the forward pass", "g @ W2.T", "g @ (W2 - rate * hidden.T @ g).T"),
        ("changed in place", UPDATES, ASSIGNED),
        ("layer 1 did not change", UPDATES, "return parameters"),
        ("the second layer is wrong", "b2 - rate * g.sum(0)", "b2 - rate * g.mean(0)"),
    ],
}

RIGHT = {
    "softmax_gradient": [
        (SOFTMAX, f"probabilities = probabilities.copy()\n    {IN_PLACE}"),
        (SOFTMAX, BY_JAX),
    ],
    "standardize_backward": [
        (f"return {STANDARDIZED}", BY_THE_JACOBIAN),
        (f"return {STANDARDIZED}", DIVIDED_FIRST),
    ],
    "fixed_update": [
        (UPDATES, f"{NEW}\n    return [list(pair) for pair in new]"),
        ("(g @ W2.T) * (hidden > 0)", "np.where(x @ W1 + b1 > 0, g @ W2.T, 0)"),
    ],
}
