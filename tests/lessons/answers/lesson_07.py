LOCAL = "(lambda x, axis: x)"  # in place of lax.pmean
COUNT, MEAN = (
    'lax.pmean(weights.sum(), "data")',
    'lax.pmean(weights @ values, "data") / count',
)
SQUARES = 'lax.pmean(weights @ jnp.square(values - mean), "data") / count'
DEVIATION = 'jnp.sqrt(lax.pmean(jnp.square(x - mean).mean(0), "data"))'
BY_HAND = "return (g - shift - y * stretch) / deviation"
BY_AUTODIFF = f"""def standardize(x):
        mean = lax.pmean(x.mean(0), "data")
        return (x - mean) / {DEVIATION}
    return jax.vjp(standardize, x)[1](g)[0]"""
OF_VALID = "of the 19 valid values"
SHIFTED = """(lambda origin:
        lax.pmean(weights @ jnp.square(values - origin), "data") / count
        - jnp.square(mean - origin)
    )(lax.pmax(values[0], "data"))"""
FROM_LOCAL_MOMENTS = """jnp.sqrt(
        lax.pmean(x.var(0) + jnp.square(x.mean(0) - mean), "data")
    )"""


WRONG = {
    "global_variance": [
        (
            "every device counts alike",
            SQUARES,
            'lax.pmean(weights @ jnp.square(values - mean) / weights.sum(), "data")',
        ),
        (
            "every device counts alike",
            MEAN,
            'lax.pmean(weights @ values / weights.sum(), "data")',
        ),
        (
            "padding was counted",
            "weights @ jnp.square(values - mean)",
            "jnp.square(values - mean).sum()",
        ),
        ("padding was counted", COUNT, "len(values)"),
        (OF_VALID, "weights @ values", "values.sum()"),
        ("the variance is its square", SQUARES, f"jnp.sqrt({SQUARES})"),
        ("each device's own variance", "lax.pmean", LOCAL),
        (
            "how far their means lie apart",
            COUNT,
            "weights.sum()",
            MEAN,
            "weights @ values / count",
        ),
        (
            "padding was counted",
            "count =",
            "weights = weights + 1 - weights\n    count =",
        ),
        (
            "however few examples",
            MEAN,
            'lax.pmean(weights @ values / weights.sum(), "data")',
            SQUARES,
            'lax.pmean(weights @ jnp.square(values - mean) / weights.sum(), "data")',
        ),
        (
            "loses its digits",
            SQUARES,
            'lax.pmean(weights @ values**2, "data") / count - mean**2',
        ),
    ],
    "standardize_backward": [
        ("both averaged", "y * stretch", "0"),
        ("both averaged", BY_HAND, BY_HAND.replace(" / deviation", "")),
        ("every mean is over this device alone", "lax.pmean", LOCAL),
        ("still means of this device", "lax.pmean((g", f"{LOCAL}((g"),
        (
            "still come from this device alone",
            "lax.pmean(x",
            f"{LOCAL}(x",
            "lax.pmean(jnp",
            f"{LOCAL}(jnp",
        ),
        ("around the global mean", DEVIATION, 'lax.pmean(x.std(0), "data")'),
    ],
    "fixed_centre": [
        ("the mean of the global batch", "return x - mean", "return x - running"),
        (
            "should be 0.9 * running",
            "0.9 * running + 0.1 * mean",
            "0.1 * running + 0.9 * mean",
        ),
        ("return two arrays", ", 0.9 * running + 0.1 * mean", ""),
        ("still differ", "0.1 * mean", "0.1 * x.mean(0)"),
        ("should be 0.9 * running", "0.1 * mean", '0.1 * lax.psum(x.mean(0), "data")'),
        ("the mean of the global batch", "x - mean", "x - x.mean(0)"),
    ],
}

RIGHT = {
    "global_variance": [
        ("pmean", "psum"),
        (SQUARES, SHIFTED),
    ],
    "standardize_backward": [
        (BY_HAND, BY_AUTODIFF),
        (DEVIATION, FROM_LOCAL_MOMENTS),
    ],
    "fixed_centre": [
        (
            'lax.pmean(x.mean(0), "data")',
            'lax.psum(x.sum(0), "data") / lax.psum(len(x), "data")',
        ),
        ("0.9 * running + 0.1 * mean", "running + 0.1 * (mean - running)"),
    ],
}
