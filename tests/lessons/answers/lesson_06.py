SUM = 'lax.psum(jnp.where(lax.axis_index("data") == 0, x, 0), "data")'
LOOP = "while distance < N:"
RING = f"""travelling = x
    while distance < N:
        pairs = [(d, (d + 1) % N) for d in range(N)]
        travelling = lax.ppermute(travelling, "data", pairs)
        x = x + travelling
        distance += 1
    return x
    {LOOP}"""
LARGEST = 'lax.pmax(logits.max(), "data")'
SHARE = 'return exponentials / lax.psum(exponentials.sum(), "data")'
BY_GATHERING = """every_logit = lax.all_gather(logits, "data")
    return jax.nn.softmax(every_logit, axis=(0, 1))[lax.axis_index("data")]"""
SUMMED_FIRST = """distance = 1
    x = lax.psum_scatter(jnp.broadcast_to(x, (N, *x.shape)), "data")"""
INFINITE_ELSEWHERE = SUM.replace("psum", "pmin").replace("x, 0)", "x, jnp.inf)")
FARTHEST_FIRST = (
    "distance = 1",
    "distance = N // 2",
    LOOP,
    "while distance >= 1:",
    "distance *= 2",
    "distance //= 2",
)
TO_EVERYONE = """lax.all_to_all(
        jnp.broadcast_to(x, (lax.axis_size("data"), *x.shape)), "data", 0, 0
    )[0]"""


WRONG = {
    "broadcast": [
        ("divided by 4", SUM, SUM.replace("psum", "pmean")),
        (
            "don't fit the 4 devices",
            SUM,
            'lax.ppermute(x, "data", [(0, d) for d in range(4)])',
        ),
        ("should hold", SUM, 'lax.pmax(x, "data")'),
        ("the others must add 0", SUM, 'lax.psum(x, "data")'),
        ("its own x", SUM, "x"),
        (
            "0 times NaN is NaN",
            SUM,
            'lax.psum(x * (lax.axis_index("data") == 0), "data")',
        ),
        (
            "its NaN must arrive",
            SUM,
            'lax.psum(jnp.nan_to_num(x) * (lax.axis_index("data") == 0), "data")',
        ),
        (
            "its NaN must arrive",
            SUM,
            SUM.replace("== 0, x", "== 0, jnp.nan_to_num(x, posinf=jnp.inf)"),
        ),
        # The smaller of NaN and infinity is infinity here.
        ("its NaN must arrive", SUM, INFINITE_ELSEWHERE),
    ],
    "butterfly_sum": [
        ("don't fit the 2 devices", 'N = lax.axis_size("data")', "N = 8"),
        ("don't fit the 2 devices", "d ^ distance", "0"),
        ("do not hold the sum", "x = x + lax", "x = lax"),
        ("no lax.psum", "return x", 'return lax.psum(x, "data")', LOOP, "while False:"),
        (
            "no lax.all_gather",
            "return x",
            'return lax.all_gather(x, "data").sum(0)',
            LOOP,
            "while False:",
        ),
        ("4 devices need 2 rounds of ppermute, yours has 3", LOOP, RING),
        ("adds some vectors twice", "distance *= 2", "distance += 1"),
        ("do not hold the sum of all", "distance *= 2", "distance *= N"),
        # Rounds that are counted from 1, with the distance 2**r.
        (
            "don't fit the 2 devices",
            "distance = 1",
            "distance = 2",
            LOOP,
            "while distance <= N:",
        ),
        (
            "no lax.psum_scatter",
            "distance = 1",
            SUMMED_FIRST,
            "x = x + lax",
            "x = lax",
        ),
    ],
    "fixed_softmax": [
        ("lax.pmax", "pmax", "pmean"),
        ("lax.pmax", "pmax", "psum"),
        ("lax.pmax", "pmax", "pmin"),
        ("add up to", SHARE, SHARE.replace("psum", "pmean")),
        ("subtract the same number", LARGEST, "logits.max()"),
        ("exp overflows", LARGEST, "0"),
        ("by themselves", SHARE, "return jax.nn.softmax(logits)"),
    ],
}

RIGHT = {
    "broadcast": [
        (SUM, 'lax.all_gather(x, "data")[0]'),
        (SUM, TO_EVERYONE),
    ],
    "butterfly_sum": [
        ("[(d, d ^ distance)", "[(d ^ distance, d)"),
        ("d ^ distance", "(d + distance) % N"),
        FARTHEST_FIRST,
    ],
    "fixed_softmax": [
        (SHARE, BY_GATHERING),
        (LARGEST, 'lax.all_gather(logits, "data").max()'),
    ],
}
