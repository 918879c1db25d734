PAIR = 'P(None, "model"), P("model", None)'
PARTIAL = "jax.nn.relu(x @ W1) @ W2"
GATHERED = """W1 = lax.all_gather(W1, "model", axis=1, tiled=True)
    W2 = lax.all_gather(W2, "model", tiled=True)
    return jax.nn.relu(x @ W1) @ W2"""
LAYER = 'lax.psum(h @ W2, "model") + bias'

WRONG = {
    "split_in_pairs": [
        ("W1's columns and W2's rows", PAIR, 'P(None, "model"), P(None, "model")'),
        ("a half is wanted", 'P(None, "model"), ', "P(), "),
        ("the mesh axis is called 'model'", '"model"', '"modle"'),
        ("return two PartitionSpecs", PAIR, 'P("model")'),
    ],
    "two_layers": [
        (
            "the partial sum over its own hidden units",
            f'lax.psum({PARTIAL}, "model")',
            PARTIAL,
        ),
        ("this is a quarter of it", "psum", "pmean"),
        ("the result is not relu", PARTIAL, "x @ W1 @ W2"),
        ("one all-reduce is enough", f'return lax.psum({PARTIAL}, "model")', GATHERED),
        (
            "not relu",
            f'lax.psum({PARTIAL}, "model")',
            'jax.nn.relu(lax.psum(x @ W1 @ W2, "model"))',
        ),
    ],
    "fixed_layer": [
        ("the bias 4 times", LAYER, 'lax.psum(h @ W2 + bias, "model")'),
        ("the bias is missing", " + bias", ""),
        ("different results", LAYER, "h @ W2 + bias"),
        ("is not h @ W2 + bias", LAYER, 'lax.pmean(h @ W2 + bias, "model")'),
        ("on 2 devices", LAYER, 'lax.psum(h @ W2 + bias / 4, "model")'),
    ],
}

RIGHT = {
    "split_in_pairs": (PAIR, 'P(None, ("model",)), P("model")'),
    "two_layers": (
        f'lax.psum({PARTIAL}, "model")',
        f'lax.pmean({PARTIAL}, "model") * lax.axis_size("model")',
    ),
    "fixed_layer": (LAYER, 'lax.psum(h @ W2 + bias / lax.axis_size("model"), "model")'),
}
