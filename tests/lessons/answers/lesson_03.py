MAP = "jax.tree.map(lambda array: array if array.ndim == 1 else factor * array, params)"
APPLY = "optax.apply_updates(model, updates)"
BY_PATH = """jax.tree_util.tree_map_with_path(
        lambda path, array: array if "bias" in jax.tree_util.keystr(path) else array * factor, params
    )"""


WRONG = {
    "decay_weights": [
        ("the bias was changed too", "array if array.ndim == 1 else ", ""),
        (
            "also one with three",
            "array if array.ndim == 1 else factor * array",
            "factor * array if array.ndim == 2 else array",
        ),
        ("nested like", MAP, "jax.tree.leaves(params)"),
    ],
    "make_step": [
        (
            "return the optimizer's new state",
            "updates, optimizer_state =",
            "updates, _ =",
        ),
        ("what is added", APPLY, "jax.tree.map(jnp.subtract, model, updates)"),
        ("did not change", APPLY, "model"),
        ("three things", f"return {APPLY}, optimizer_state, loss", "return loss"),
        ("return a function", "return step", "return optimizer, optimizer"),
    ],
    "fixed_loss": [
        ("still the broken loss", "predictions[:, 0]", "predictions"),
        ("the mean over the examples", "mean()", "sum()"),
        ("one number", ".mean()", ""),
    ],
}

RIGHT = {
    "decay_weights": (MAP, BY_PATH),
    "fixed_loss": ("predictions[:, 0] - targets", "predictions - targets[:, None]"),
}
