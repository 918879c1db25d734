GRADIENT = "gradient = x.T @ (x @ w - y) / len(y)"
STEP = 'w - 0.1 * lax.pmean(gradient, "data")'
GATHERED = 'x, y = lax.all_gather((x, y), "data", tiled=True)'
SUMS = """gradient, count = lax.psum((gradient, weights.sum()), "data")
    return gradient / count"""
MEAN, CLIPPED = (
    'lax.pmean(gradient, "data")',
    "gradient / jnp.maximum(jnp.linalg.norm(gradient), 1)",
)
OWN_LENGTH = "gradient / jnp.maximum(jnp.linalg.norm(own), 1)"
BY_AUTODIFF = "jax.grad(lambda w: (weights * (x @ w - y) ** 2).sum() / 2)(w)"
BY_OPTAX = "optax.clip_by_global_norm(1.0).update(gradient, optax.EmptyState())[0]"
CLIPPED_TWICE = f"gradient = {CLIPPED}\n    gradient = {MEAN}"


WRONG = {
    "step": [
        ("return different parameters", 'lax.pmean(gradient, "data")', "gradient"),
        ("4 times too long on 4 devices", "pmean", "psum"),
        ("subtract the gradient", "w - 0.1", "w + 0.1"),
        ("learning rate 0.1", "0.1 * ", ""),
        ("take the mean over them", " / len(y)", ""),
        ("gradient of the mean loss over all", "0.1", "0.2"),
        ("return the parameters", "w - 0.1 * ", ""),
    ],
    "global_gradient": [
        ("both go through lax.psum", SUMS, "return gradient"),
        (
            "mean of the devices' means",
            SUMS,
            'return lax.pmean(gradient / weights.sum(), "data")',
        ),
        ("divide by their number", "return gradient / count", "return gradient"),
        (
            "the other a mean",
            SUMS,
            'count = lax.psum(weights.sum(), "data")\n'
            '    return lax.pmean(gradient, "data") / count',
        ),
        (
            "the other a mean",
            SUMS,
            'count = lax.pmean(weights.sum(), "data")\n'
            '    return lax.psum(gradient, "data") / count',
        ),
        ("padding included", SUMS, 'return lax.pmean(gradient / len(y), "data")'),
        (
            "padding was counted",
            "weights * ",
            "",
            SUMS,
            'return lax.pmean(gradient / len(y), "data")',
        ),
        (
            "divides 0 by 0",
            SUMS,
            "n = weights.sum()\n"
            '    return lax.psum(gradient / n * (n / lax.psum(n, "data")), "data")',
        ),
    ],
    "fixed_clipping": [
        (
            "stretched to length 1",
            "jnp.maximum(jnp.linalg.norm(gradient), 1)",
            "jnp.linalg.norm(gradient)",
        ),
        ("the result should be", CLIPPED, "jnp.clip(gradient, -1, 1)"),
        ("average first", f"gradient = {MEAN}", CLIPPED_TWICE),
        (
            "take both the gradient and its length",
            "gradient =",
            "own, gradient = gradient,",
            CLIPPED,
            OWN_LENGTH,
        ),
        ("average first", MEAN, CLIPPED, f"return {CLIPPED}", f"return {MEAN}"),
        ("use lax.pmean", "pmean", "psum"),
        ("the result should be", CLIPPED, "gradient"),
    ],
}

RIGHT = {
    "step": [
        (GRADIENT, f"{GATHERED}\n    {GRADIENT}", STEP, "w - 0.1 * gradient"),
        (STEP, 'lax.pmean(w - 0.1 * gradient, "data")'),
    ],
    "global_gradient": [
        ("x.T @ (weights * (x @ w - y))", BY_AUTODIFF),
        ("psum", "pmean"),
    ],
    "fixed_clipping": [
        (CLIPPED, BY_OPTAX),
        (MEAN, 'lax.all_gather(gradient, "data").mean(0)'),
    ],
}
