POWER = "jnp.where(x > 0, x, 0) ** n"
LENGTH = "length = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradient)))"
CLIPPED = "leaf / jnp.maximum(length / limit, 1)"
MEAN = "jax.tree.map(lambda leaf: leaf.mean(0), jax.vmap(clipped_gradient)(x, labels))"
MEAN_FIRST = """per_example = jax.vmap(jax.grad(loss_one), in_axes=(None, 0, 0))
    gradients = per_example(parameters, x, labels)
    gradient = jax.tree.map(lambda leaf: leaf.mean(0), gradients)
    length = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradient)))
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(length / limit, 1), gradient)"""
BY_OPTAX = """clip = optax.clip_by_global_norm(limit)
        return clip.update(gradient, clip.init(gradient))[0]"""
SPLIT = "down_key, right_key = jax.random.split(key)"
DRAWN = """down = jax.random.randint(down_key, (), -2, 3)
    right = jax.random.randint(right_key, (), -2, 3)"""
CLIP = f"{LENGTH}\n        return jax.tree.map(lambda leaf: {CLIPPED}, gradient)"
BY_LOOP = """gradients = [clipped_gradient(*pair) for pair in zip(x, labels)]
    return jax.tree.map(lambda *leaves: sum(leaves) / len(x), *gradients)"""


WRONG = {
    "clipped_mean_gradient": [
        ("sum over the examples", "leaf.mean(0)", "leaf.sum(0)"),
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
        (
            "a key is used twice",
            SPLIT,
            "down_key, right_key = key, jax.random.split(key)[0]",
        ),
        ("the shift right is", SPLIT, "down_key, right_key = key, jax.random.key(0)"),
        ("split it", SPLIT, "down_key = right_key = jax.random.split(key)[0]"),
        (
            "a key is used twice",
            "    return jnp",
            "    jax.random.uniform(key)\n    return jnp",
        ),
        ("split it", SPLIT, "down_key = right_key = key"),
        (
            "a key is used twice",
            SPLIT,
            "down_key, right_key = key, jax.random.fold_in(key, 1)",
        ),
        (
            "a key is used twice",
            SPLIT,
            "down_key, right_key = jax.random.fold_in(key, 0), key",
        ),
        (
            "a key is used twice",
            SPLIT,
            "down_key, right_key = jax.random.split(key)[1], jax.random.fold_in(key, 0)",
        ),
        ("randint(-2, 3)", "-2, 3", "-1, 2"),
        ("longer than 2", "-2, 3", "-3, 4"),
        ("gives an image", "return jnp", "return image[1:]\n    return jnp"),
    ],
    "relu_power": [
        ("if x is negative the result is 0", POWER, "jnp.where(x > 0, x, 1) ** n"),
        ("the result is 0.25 and 9", POWER, "jnp.where(x > 0, x, 0) * n"),
        ("if x is negative the result is 0", POWER, "jnp.abs(x) ** n"),
        ("the shape of x", POWER, f"({POWER}).sum()"),
        ("if x is negative the result is 0", POWER, "x ** n"),
        ("jnp.where", POWER, "x**n if x[0] > 0 else jnp.zeros_like(x)"),
        ("the branch that is not chosen", POWER, "jnp.where(x > 0, x**n, 0)"),
        ("only 0 itself", POWER, "jnp.where(x > 1e-6, x, 0) ** n"),
        ("only 0 itself", POWER, "jnp.where(x > -1e-6, jnp.abs(x), 0) ** n"),
        ("only 0 itself", POWER, "jnp.where(x > 0, x + 1e-7, 0) ** n"),
        ("an infinite slope at 0", POWER, "jnp.maximum(x, 0) ** n"),
        ("an infinite slope at 0", POWER, "jnp.where(x > 0, jnp.abs(x) ** n, 0)"),
        (
            "and if x is 0, too",
            POWER,
            "jnp.where(x < 0, 0, jnp.maximum(x, 1e-9)) ** n + (x == 0)",
        ),
    ],
}

RIGHT = {
    "relu_power": [
        (POWER, "jnp.where(x > 0, jnp.exp(n * jnp.log(jnp.where(x > 0, x, 1))), 0)"),
        (POWER, "jnp.where(x > 0, jnp.where(x > 0, x, 1) ** n, 0)"),
    ],
    "clipped_mean_gradient": [
        (CLIP, BY_OPTAX),
        (f"return {MEAN}", BY_LOOP),
    ],
    "fixed_shift": [
        (f"{SPLIT}\n    {DRAWN}", "down, right = jax.random.randint(key, (2,), -2, 3)"),
        (SPLIT, "down_key, right_key = [jax.random.fold_in(key, i) for i in (0, 1)]"),
    ],
}
