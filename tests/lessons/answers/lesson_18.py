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

WRONG = {
    "fixed_timer": [
        ("also compiles", WARM_UP, START),
        (
            "compiling took 5 s",
            WARM_UP,
            f"{START}\n    jax.block_until_ready(function(x))",
        ),
        ("time to dispatch", CALL, "    function(x)\n    return"),
        ("still running", WARM_UP, f"function(x)\n    {START}"),
        ("read `clock()`", "clock()", "0"),
        ("less the earlier", "clock() - start", "start - clock()"),
    ],
    "scan_flops": [
        ("counted once", ", unroll=len(weights)", ""),
        ("a multiplication and an addition", COUNT, f"{COUNT} / 2"),
        ("yours is", COUNT, f"{COUNT} * 3"),
    ],
    "least_examples": [
        ("round up", "math.ceil", "int"),
        ("only the backward pass", "2 / 3 * seconds", "seconds"),
        ("a reduce-scatter alone", "2 * (N - 1)", "(N - 1)"),
        ("are enough", "n / N / bandwidth", "n / bandwidth"),
        ("examples are whole", "math.ceil", "float"),
    ],
}

RIGHT = {
    "fixed_timer": (
        "    jax.block_until_ready(function(x))\n    return clock() - start",
        GROUP,
    ),
    "scan_flops": (COUNT, ONE_LAYER),
    "least_examples": (ROUND_UP, "max(1, -int(-ring * 3 // (2 * seconds)))"),
}
