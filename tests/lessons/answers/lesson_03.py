MAP = "jax.tree.map(lambda array: array if array.ndim == 1 else factor * array, params)"
APPLY = "optax.apply_updates(model, updates)"
BY_PATH = """jax.tree_util.tree_map_with_path(
        lambda path, array: array if "bias" in str(path) else array * factor, params
    )"""
BY_NAME = """jax.tree_util.tree_map_with_path(
        lambda path, array: factor * array if "kernel" in str(path) else array, params
    )"""
IN_PLACE = """for array in jax.tree.leaves(params):
        if array.ndim > 1:
            array *= factor
    return params"""


WRONG = {
    "decay_weights": [
        ("whatever its name", MAP, BY_NAME),
        (
            "the bias must stay",
            "array if array.ndim == 1 else",
            "0 * array if array.ndim == 1 else",
        ),
        ("changed in place", f"return {MAP}", IN_PLACE),
        ("with two axes", "factor * array", "array"),
        ("the bias was changed too", "array if array.ndim == 1 else ", ""),
        (
            "also one with three",
            "array if array.ndim == 1 else factor * array",
            "factor * array if array.ndim == 2 else array",
        ),
        ("nested like", MAP, "jax.tree.leaves(params)"),
        ("with two axes", "factor * array", "(1 - factor) * array"),
    ],
    "make_step": [
        ("adamw needs the model", "optimizer_state, model)", "optimizer_state)"),
        (
            "the mean of all squared errors",
            "(model(x) - y) ** 2",
            "(model(x) - y) ** 2 / 2",
        ),
        (
            "the first update is wrong",
            "optimizer.update(gradients",
            "optimizer.update(jax.tree.map(jnp.sign, gradients)",
        ),
        (
            "return the optimizer's new state",
            "updates, optimizer_state =",
            "updates, _ =",
        ),
        ("what is added", APPLY, "jax.tree.map(jnp.subtract, model, updates)"),
        ("did not change", APPLY, "model"),
        (
            "must be the loss",
            f"return {APPLY}, optimizer_state, loss",
            f"return {APPLY}, loss, optimizer_state",
        ),
        ("three things", f"return {APPLY}, optimizer_state, loss", "return loss"),
        ("return a function", "return step", "return optimizer, optimizer"),
    ],
    "fixed_loss": [
        ("square each error", "** 2).mean()", ").mean() ** 2"),
        (
            "mean of the absolute",
            "(predictions[:, 0] - targets) ** 2",
            "jnp.abs(predictions[:, 0] - targets)",
        ),
        ("still the broken loss", "predictions[:, 0]", "predictions"),
        ("sum over the examples", "mean()", "sum()"),
        ("one number", ".mean()", ""),
    ],
}

RIGHT = {
    "decay_weights": [
        (MAP, BY_PATH),
        ("array.ndim == 1", "len(array.shape) < 2"),
    ],
    "make_step": [
        (f"return {APPLY}", "return jax.tree.map(jnp.add, model, updates)"),
        ("    def step", "    @jax.jit\n    def step"),
    ],
    "fixed_loss": [
        ("predictions[:, 0] - targets", "predictions - targets[:, None]"),
        ("predictions[:, 0]", "predictions.T"),
    ],
}
