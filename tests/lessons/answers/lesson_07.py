LOCAL = "(lambda x, axis: x)"  # in place of lax.pmean
FIRST = "(weights * values).sum()"
SECOND = "(weights * values**2).sum()"
SUMS = f"weights.sum(), {FIRST}, {SECOND}"
PMEAN = 'lax.pmean(sums, "data")'
VARIANCE = "second / count - mean**2"
TWO_PASSES = """count = lax.psum(weights.sum(), "data")
    mean = lax.psum(weights @ values, "data") / count
    variance = lax.psum(weights @ jnp.square(values - mean), "data") / count
    return mean, variance"""
DEVIATION = 'jnp.sqrt(lax.pmean(jnp.square(x - mean).mean(0), "data"))'
BY_HAND = "return (g - shift - y * stretch) / deviation"
BY_AUTODIFF = f"""def standardize(x):
        mean = lax.pmean(x.mean(0), "data")
        return (x - mean) / {DEVIATION}
    return jax.vjp(standardize, x)[1](g)[0]"""
FROM_LOCAL_MOMENTS = """jnp.sqrt(
        lax.pmean(x.var(0) + jnp.square(x.mean(0) - mean), "data")
    )"""


WRONG = {
    "global_moments": [
        ("each device's own mean", PMEAN, "sums"),
        (
            "each device's own variance",
            f"return mean, {VARIANCE}",
            "return mean, values.var()",
        ),
        (
            "how far their means lie apart",
            VARIANCE,
            'lax.pmean(values.var(), "data")',
        ),
        ("the variance is its square", VARIANCE, f"jnp.sqrt({VARIANCE})"),
        ("subtract the square of the mean", VARIANCE, "second / count"),
        ("not by n - 1", VARIANCE, f"({VARIANCE}) * 24 / 23"),
        ("two numbers", f"return mean, {VARIANCE}", f"return {VARIANCE}"),
        ("one number", FIRST, "weights * values"),
        (
            "every device counts alike",
            SUMS,
            "1, weights @ values / weights.sum(), weights @ values**2 / weights.sum()",
        ),
        (
            "every device counts alike",
            "second / count",
            'lax.pmean(weights @ values**2 / weights.sum(), "data")',
        ),
        ("padding was counted", "weights.sum(), (", "len(values), ("),
        ("padding was counted", FIRST, "values.sum()"),
        ("padding was counted", SECOND, "(values**2).sum()"),
        ("padding was counted", "sums =", "weights = jnp.ones(6)\n    sums ="),
        ("without any padding the variance", "- mean**2", "- mean"),
        ("without any padding the mean", "first / count", "first"),
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
    "global_moments": [
        ("pmean", "psum"),
        (
            f"sums = {SUMS}\n    count, first, second = {PMEAN}\n"
            f"    mean = first / count\n    return mean, {VARIANCE}",
            TWO_PASSES,
        ),
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
