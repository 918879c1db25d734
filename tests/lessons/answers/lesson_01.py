MINUS_ONE = "g[np.arange(len(labels)), labels] -= 1"
THROUGH = '(g @ model["W2"].T) * (hidden > 0)'
FIRST = '{"W1": inputs.T @ g, "b1": g.sum(0)}'
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
BY_JAX = """def loss(model):
        logits = jnp.maximum(inputs @ model["W1"] + model["b1"], 0) @ model["W2"]
        log_p = jax.nn.log_softmax(logits + model["b2"])
        return -log_p[np.arange(len(labels)), labels].sum()
    return jax.grad(loss)(model)"""


WRONG = {
    "backward": [
        ("rule 1", MINUS_ONE, ""),
        ("changes these columns in every row", MINUS_ONE, "g[:, labels] -= 1"),
        ("not by hidden", "(hidden > 0)", "hidden"),
        ("replaces it by -1", MINUS_ONE, MINUS_ONE.replace("-= 1", "= -1")),
        ("where the ReLU returned 0", " * (hidden > 0)", ""),
        ("not if g is", THROUGH, 'np.maximum(g @ model["W2"].T, 0)'),
        ("of the mean loss", MINUS_ONE, f"{MINUS_ONE}\n    g /= len(labels)"),
        ("the sign is wrong", MINUS_ONE, f"{MINUS_ONE}\n    g = -g"),
        ("changed in place", "probabilities.copy()", "probabilities"),
        ("W1, b1, W2 and b2", f"return gradients | {FIRST}", f"return {FIRST}"),
        ("must have its shape", "hidden.T @ g", "g.T @ hidden"),
        ("b2 is wrong", '"b2": g.sum(0)', '"b2": g.mean(0)'),
        ("b1 is wrong", '"b1": g.sum(0)', '"b1": g.mean(0)'),
        ("W1 is wrong", THROUGH, '(probabilities @ model["W2"].T) * (hidden > 0)'),
    ],
    "standardize_backward": [
        ("before the division", STANDARDIZED, LATE),
        ("as constants", STANDARDIZED, "g / x.std(0)"),
        ("standard deviation as a constant", " - y * (g * y).mean(0)", ""),
        ("must add up to 0", STANDARDIZED, "g"),
        ("must be 0", STANDARDIZED, "(g - g.mean(0)) * 2"),
        ("the sign is wrong", STANDARDIZED, f"-{STANDARDIZED}"),
        ("for the first example, yours is", STANDARDIZED, f"{STANDARDIZED} * len(x)"),
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
        ("of the summed loss", " / len(labels)", ""),
        ("goes up", UPDATES, UPDATES.replace(" - rate", " + rate")),
        ("rate is missing", UPDATES, UPDATES.replace("rate * ", "")),
        ("the first pair", UPDATES, f"{NEW}\n    return new[::-1]"),
        ("the second layer is wrong", "b2 - rate * g.sum(0)", "b2 - rate * g.mean(0)"),
    ],
}

RIGHT = {
    "backward": [
        ("g = probabilities.copy()", BY_JAX),
        (
            "g = probabilities.copy()\n    " + MINUS_ONE,
            'g = probabilities - np.eye(len(model["b2"]))[labels]',
        ),
        (THROUGH, 'np.where(hidden > 0, g @ model["W2"].T, 0)'),
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
