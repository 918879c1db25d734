WARM_UP, START = (
    "jax.block_until_ready(function(x))\n    start = clock()",
    "start = clock()",
)
CALL = "    jax.block_until_ready(function(x))\n    return"
GROUP = """    for _ in range(3):
        function(x).block_until_ready()
    return (clock() - start) / 3"""
COUNT = 'unrolled.lower(x, weights).compile().cost_analysis()["flops"]'
ONE_LAYER = 'jax.jit(layer).lower(x, weights[0]).compile().cost_analysis()["flops"] * len(weights)'
ROUND_UP = "math.ceil(ring / (2 / 3 * seconds))"
BY_HAND = "2 * x.shape[0] * x.shape[1] ** 2 * len(weights)"
GRADIENT = "jax.jit(jax.grad(lambda x, w: unrolled(x, w).sum())).lower"
RING = "2 * (N - 1) * (latency + n / N / bandwidth)"

WRONG = {
    "fixed_timer": [
        ("compiling took 5 s", WARM_UP, START),
        (
            "compiling took 5 s",
            WARM_UP,
            f"{START}\n    jax.block_until_ready(function(x))",
        ),
        ("time to dispatch", CALL, "    function(x)\n    return"),
        ("still running", WARM_UP, f"function(x)\n    {START}"),
        (  # the mean of two calls, and the first one compiles
            "or it is counted",
            WARM_UP,
            f"{START}\n    jax.block_until_ready(function(x))",
            "clock() - start",
            "(clock() - start) / 2",
        ),
        ("is jitted already", WARM_UP, f"jax.jit(function).lower(x)\n    {START}"),
        ("read `clock()`", "clock()", "0"),
        ("less the earlier", "clock() - start", "start - clock()"),
        ("a warm call takes 0.1515 s", "clock() - start", "1.2 * (clock() - start)"),
    ],
    "scan_flops": [
        ("counted once", ", unroll=len(weights)", ""),
        ("a multiplication and an addition", COUNT, f"{COUNT} / 2"),
        ("yours is", COUNT, f"{COUNT} * 3"),
        ("may have several products", f"return {COUNT}", f"return {BY_HAND}"),
        ("yours is", COUNT, COUNT.replace("unrolled.lower", GRADIENT)),
        ("counted once", COUNT, ONE_LAYER.replace(" * len(weights)", "")),
        ("return one number", COUNT, "unrolled(x, weights)"),
    ],
    "least_examples": [
        ("round up", "math.ceil", "int"),
        ("round up", "math.ceil", "round"),
        ("only the backward pass", "2 / 3 * seconds", "seconds"),
        ("a reduce-scatter alone", "2 * (N - 1)", "(N - 1)"),
        ("has a latency", RING, "latency + 2 * (N - 1) * n / N / bandwidth"),
        ("are enough", RING, "2 * N * (latency + n / N / bandwidth)"),
        ("are enough", "n / N / bandwidth", "n / bandwidth"),
        ("4 are enough", ROUND_UP, "int(ring / (2 / 3 * seconds)) + 1"),
        ("examples are whole", "math.ceil", "float"),
        ("are enough", "2 / 3 * seconds", "seconds / 3"),
        ("one device sends nothing", f"max(1, {ROUND_UP})", ROUND_UP),
        (
            "one device sends nothing",
            "return",
            "if N == 1:\n        return 0\n    return",
        ),
    ],
}

RIGHT = {
    "fixed_timer": [
        ("    jax.block_until_ready(function(x))\n    return clock() - start", GROUP),
        (WARM_UP, f"function = function.lower(x).compile()\n    {START}"),
        (WARM_UP, f"function(x).block_until_ready()\n    {START}"),
        (CALL, "    np.asarray(function(x))\n    return"),
        (WARM_UP, f"jax.device_get(function(x))\n    {START}"),
    ],
    "scan_flops": [
        (COUNT, ONE_LAYER),
        (COUNT, f"sum({ONE_LAYER.replace(' * len(weights)', '')} for _ in weights)"),
    ],
    "least_examples": [
        (ROUND_UP, "max(1, -int(-ring * 3 // (2 * seconds)))"),
        (ROUND_UP, "int(np.ceil(1.5 * ring / seconds))"),
    ],
}
