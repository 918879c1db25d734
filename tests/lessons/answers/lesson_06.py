SUM = 'lax.psum(jnp.where(lax.axis_index("data") == 0, x, 0), "data")'
LOOP = "while distance < N:"
RING = f"""travelling = x
    while distance < N:
        travelling = lax.ppermute(travelling, "data", [(d, (d + 1) % N) for d in range(N)])
        x = x + travelling
        distance += 1
    return x
    {LOOP}"""
LARGEST = 'lax.pmax(logits.max(), "data")'
SHARE = 'return exponentials / lax.psum(exponentials.sum(), "data")'
BY_GATHERING = """probabilities = jax.nn.softmax(lax.all_gather(logits, "data", tiled=True))
    return lax.dynamic_slice_in_dim(probabilities, lax.axis_index("data") * len(logits), len(logits))"""

WRONG = {
    "broadcast": [
        ("the others must add 0", SUM, 'lax.psum(x, "data")'),
        ("its own x", SUM, "x"),
        (
            "0 times NaN is NaN",
            SUM,
            'lax.psum(x * (lax.axis_index("data") == 0), "data")',
        ),
    ],
    "butterfly_sum": [
        ("no lax.psum", "return x", 'return lax.psum(x, "data")', LOOP, "while False:"),
        (
            "no lax.all_gather",
            "return x",
            'return lax.all_gather(x, "data").sum(0)',
            LOOP,
            "while False:",
        ),
        ("4 devices need 2 rounds of ppermute, yours has 3", LOOP, RING),
        ("do not hold the sum of all", "distance *= 2", "distance *= N"),
    ],
    "fixed_softmax": [
        ("subtract the same number", LARGEST, "logits.max()"),
        ("exp overflows", LARGEST, "0"),
        ("by themselves", SHARE, "return jax.nn.softmax(logits)"),
    ],
}

RIGHT = {
    "broadcast": (SUM, 'lax.all_gather(x, "data")[0]'),
    "butterfly_sum": ("[(d, d ^ distance)", "[(d ^ distance, d)"),
    "fixed_softmax": (SHARE, BY_GATHERING),
}
