POWER = "jnp.where(x > 0, x, 0) ** n"
LENGTH = "length = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradient)))"
CLIPPED = "leaf / jnp.maximum(length / limit, 1)"
MEAN = "jax.tree.map(lambda leaf: leaf.mean(0), jax.vmap(clipped_gradient)(x, labels))"
MEAN_FIRST = """gradient = jax.tree.map(
        lambda leaf: leaf.mean(0), jax.vmap(jax.grad(loss_one), in_axes=(None, 0, 0))(parameters, x, labels)
    )
    length = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradient)))
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(length / limit, 1), gradient)"""
BY_OPTAX = """clip = optax.clip_by_global_norm(limit)
        return clip.update(gradient, clip.init(gradient))[0]"""
SPLIT = "down_key, right_key = jax.random.split(key)"
DRAWN = "down = jax.random.randint(down_key, (), -2, 3)\n    right = jax.random.randint(right_key, (), -2, 3)"

WRONG = {
    "clipped_mean_gradient": [
        ("no gradient was clipped", CLIPPED, "leaf"),
        ("the gradient of each example first", f"return {MEAN}", MEAN_FIRST),
        (
            "only longer ones change",
            "jnp.maximum(length / limit, 1)",
            "(length / limit)",
        ),
        (
            "over all arrays of the pytree together",
            CLIPPED,
            CLIPPED.replace("length", "jnp.linalg.norm(leaf)"),
        ),
        (
            "take the mean over the examples",
            MEAN,
            "jax.vmap(clipped_gradient)(x, labels)",
        ),
    ],
    "fixed_shift": [
        ("split it", SPLIT, "down_key = right_key = key"),
        ("randint(-2, 3)", "-2, 3", "-1, 2"),
        ("longer than 2", "-2, 3", "-3, 4"),
        ("gives an image", "return jnp", "return image[1:]\n    return jnp"),
    ],
    "relu_power": [
        ("if x is negative the result is 0", POWER, "x ** n"),
        ("jnp.where", POWER, "x**n if x[0] > 0 else jnp.zeros_like(x)"),
        ("the branch that is not chosen", POWER, "jnp.where(x > 0, x**n, 0)"),
    ],
}

RIGHT = {
    "relu_power": (
        POWER,
        "jnp.where(x > 0, jnp.exp(n * jnp.log(jnp.where(x > 0, x, 1))), 0)",
    ),
    "clipped_mean_gradient": (
        f"{LENGTH}\n        return jax.tree.map(lambda leaf: {CLIPPED}, gradient)",
        BY_OPTAX,
    ),
    "fixed_shift": (
        f"{SPLIT}\n    {DRAWN}",
        "down, right = jax.random.randint(key, (2,), -2, 3)",
    ),
}
