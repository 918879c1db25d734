UNPACK = "model, optimizer_state = state"
APPLY = "optax.apply_updates(model, updates)"
RETURN = f"return ({APPLY}, optimizer_state), sums"
DIVIDE = 'lambda g: g / sums["count"]'
WEIGHTS = "(np.arange(B) < len(rows)).astype(np.float32)"
RESIZE = "np.resize(rows, B)"


WRONG = {
    "update_state": [
        ("adamw needs the model", "optimizer_state, model)", "optimizer_state)"),
        ("of the summed loss", DIVIDE, "lambda g: g"),
        ("4 rows and 12 examples", 'sums["count"]', "len(batch[0])"),
        (
            "and not the updates",
            DIVIDE,
            "lambda g: g",
            APPLY,
            f"optax.apply_updates(model, jax.tree.map({DIVIDE}, updates))",
        ),
        (
            "take jax.grad",
            UNPACK,
            f"from flax import nnx\n    {UNPACK}",
            "jax.grad",
            "nnx.grad",
        ),
        (
            "returns the updates first",
            "updates, optimizer_state = optimizer",
            "optimizer_state, updates = optimizer",
        ),
        ("the first update is wrong", DIVIDE, "jnp.sign"),
        (
            "return the optimizer's new state",
            "updates, optimizer_state =",
            "updates, _ =",
        ),
        ("what is added", APPLY, "jax.tree.map(jnp.subtract, model, updates)"),
        ("did not change", APPLY, "model"),
        ("must be a pair again", RETURN, f"return {APPLY}, sums"),
        ("must be the sums", RETURN, f"return ({APPLY}, optimizer_state), gradients"),
        (
            "must be the sums",
            RETURN,
            f'return ({APPLY}, optimizer_state), sums["loss"]',
        ),
        ("are swapped", RETURN, f"return sums, ({APPLY}, optimizer_state)"),
        ("two things", RETURN, f"return {APPLY}"),
        (
            "without jit your step changes the state",
            RETURN,
            f"from flax import nnx\n    nnx.update(model, nnx.state({APPLY}))\n"
            "    return (model, optimizer_state), sums",
        ),
        ("begin with the model", RETURN, f"return (optimizer_state, {APPLY}), sums"),
    ],
    "pad_rows": [
        ("0 for padding alone", WEIGHTS, "np.ones(B)"),
        ("0 for padding alone", "<", ">="),
        ("0 for padding alone", "<", "<="),
        (
            "0 for padding alone",
            WEIGHTS,
            "(np.pad(rows, (0, B - len(rows))) > 0).astype(np.float32)",
        ),
        ("True and False", WEIGHTS, "np.arange(B) < len(rows)"),
        ("one weight a row", WEIGHTS, "np.ones(len(rows))"),
        ("not (8,)", RESIZE, "rows"),
        ("not (8,)", RESIZE, "np.concatenate([rows, rows[: B - len(rows)]])"),
        ("whole numbers", RESIZE, "np.concatenate([rows, np.zeros(B - len(rows))])"),
        ("must begin with", RESIZE, "np.sort(np.resize(rows, B))"),
        ("0 to 49", RESIZE, "np.pad(rows, (0, B - len(rows)), constant_values=50)"),
        ("two arrays", "return np.resize(rows, B), weights", "return rows"),
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
    "update_state": [
        (APPLY, "jax.tree.map(jnp.add, model, updates)"),
        (
            "jax.grad(loss_sums, has_aux=True)",
            "(lambda *pair: jax.value_and_grad(loss_sums, has_aux=True)(*pair)[::-1])",
            "gradients, sums =",
            "gradients, (_, sums) =",
        ),
    ],
    "pad_rows": [
        (RESIZE, "np.pad(rows, (0, B - len(rows)))"),
        (WEIGHTS, "np.concatenate([np.ones(len(rows)), np.zeros(B - len(rows))])"),
        (WEIGHTS, "(np.arange(B) < len(rows)).astype(int)"),
    ],
    "fixed_loss": [
        ("predictions[:, 0] - targets", "predictions - targets[:, None]"),
        ("predictions[:, 0]", "predictions.T"),
    ],
}
