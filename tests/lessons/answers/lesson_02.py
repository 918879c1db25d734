STEP = 'w - rate * g / sums["count"]'
NEW_MODEL = f"jax.tree.map(lambda w, g: {STEP}, model, gradients)"
ONE_LEVEL = """{
        name: model[name] - rate * gradients[name] / sums["count"] for name in model
    }"""
BY_NAME = """{
        name: [w - rate * g / sums["count"] for w, g in zip(model[name], gradients[name])]
        for name in model
    }"""
LENGTH = "length = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradient)))"
CLIPPED = "leaf / jnp.maximum(length / limit, 1)"
MEAN = "jax.tree.map(lambda leaf: leaf.mean(0), jax.vmap(clipped_gradient)(x, labels))"
ONE_LENGTH = """per_example = jax.vmap(jax.grad(loss_one), in_axes=(None, 0, 0))
    gradients = per_example(parameters, x, labels)
    length = jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradients)))
    factor = 1 / jnp.maximum(length / limit, 1)
    return jax.tree.map(lambda leaf: factor * leaf.mean(0), gradients)"""
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
        ("one length for all examples", f"return {MEAN}", ONE_LENGTH),
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
        (
            "2500 keys gave 5 different shifts instead of 25",
            SPLIT,
            "down_key = right_key = key",
        ),
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
        (
            "must be equally likely",
            DRAWN,
            """down, right = [
        jnp.clip(jnp.round(jax.random.normal(each)), -2, 2).astype(int)
        for each in (down_key, right_key)
    ]""",
        ),
        (
            "must be equally likely",
            DRAWN,
            """down, right = [
        jnp.round(jax.random.uniform(each, (), minval=-2, maxval=2)).astype(int)
        for each in (down_key, right_key)
    ]""",
        ),
        ("gives an image", "return jnp", "return image[1:]\n    return jnp"),
    ],
    "update_model": [
        ("of the summed loss", ' / sums["count"]', ""),
        ("subtract the gradient", "w - rate", "w + rate"),
        ("the learning rate is missing", "rate * g", "g"),
        ("len(batch) is 2", 'sums["count"]', "len(batch)"),
        ("4 rows and 12 examples", 'sums["count"]', "len(batch[0])"),
        ("the model of this check is nested", NEW_MODEL, ONE_LEVEL),
        ("this is the gradient", STEP, 'g / sums["count"]'),
        ("did not change", STEP, "w"),
        ("are swapped", f"return {NEW_MODEL}, sums", f"return sums, {NEW_MODEL}"),
        ("two things", f"return {NEW_MODEL}, sums", f"return {NEW_MODEL}"),
        ("must be the sums", "gradients), sums", 'gradients), sums["loss"]'),
        ("nested like the old one", NEW_MODEL, f"jax.tree.leaves({NEW_MODEL})"),
        ("the gradient of its mean loss", "rate * g", "rate**2 * g"),
    ],
}

RIGHT = {
    "update_model": [
        (NEW_MODEL, BY_NAME),
        (
            "gradients, sums = jax.grad(loss_sums, has_aux=True)(model, batch)",
            "sums = loss_sums(model, batch)[1]\n"
            "    gradients = jax.grad(lambda model: loss_sums(model, batch)[0])(model)",
        ),
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
