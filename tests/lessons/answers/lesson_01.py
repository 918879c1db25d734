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
        jacobian = (np.eye(len(x)) - 1 / len(x) - np.outer(y[:, d], y[:, d]) / len(x)) / x.std(0)[d]
        columns.append(jacobian.T @ g[:, d])
    return np.stack(columns, axis=1)"""

WRONG = {
    "softmax_gradient": [
        ("the loss is a mean", " / B", ""),
        ("the sign is wrong", SOFTMAX, SOFTMAX.replace("return ", "return -")),
        ("changed in place", SOFTMAX, IN_PLACE),
    ],
    "standardize_backward": [
        ("as constants", STANDARDIZED, "g / x.std(0)"),
        ("standard deviation as a constant", " - y * (g * y).mean(0)", ""),
        ("must add up to 0", STANDARDIZED, "g"),
        ("must be 0", STANDARDIZED, "(g - g.mean(0)) * 2"),
        ("the shape of x", STANDARDIZED, "g.sum(0)"),
    ],
    "fixed_update": [
        ("the W2 of the forward pass", "g @ W2.T", "g @ (W2 - rate * hidden.T @ g).T"),
        ("changed in place", UPDATES, ASSIGNED),
        ("the second layer is wrong", UPDATES, "return parameters"),
    ],
}

RIGHT = {
    "softmax_gradient": (
        SOFTMAX,
        f"probabilities = probabilities.copy()\n    {IN_PLACE}",
    ),
    "standardize_backward": (f"return {STANDARDIZED}", BY_THE_JACOBIAN),
    "fixed_update": (UPDATES, f"{NEW}\n    return [list(pair) for pair in new]"),
}
