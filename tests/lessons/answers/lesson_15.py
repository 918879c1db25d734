PAIR = 'P(None, "model"), P("model", None)'
PARTIAL = "jax.nn.relu(x @ W1) @ W2"
GATHERED = """W1 = lax.all_gather(W1, "model", axis=1, tiled=True)
    W2 = lax.all_gather(W2, "model", tiled=True)
    return jax.nn.relu(x @ W1) @ W2"""
LAYER = 'lax.psum(h @ W2, "model") + bias'

WRONG = {
    "split_in_pairs": [
        ("W1's columns and W2's rows", PAIR, 'P(None, "model"), P(None, "model")'),
        ("W1's columns and W2's rows", PAIR, 'P("model", None), P("model", None)'),
        ("W1's columns and W2's rows", PAIR, 'P("model", None), P(None, "model")'),
        ("a half is wanted", 'P(None, "model"), ', "P(), "),
        ("the mesh axis is called 'model'", '"model"', '"modle"'),
        ("one of its two axes", PAIR, 'P("model", "model"), P("model", "model")'),
        ("return two PartitionSpecs", PAIR, 'P("model")'),
        ("return two PartitionSpecs", PAIR, '"columns", "rows"'),
    ],
    "two_layers": [
        (
            "the partial sum over its own hidden units",
            f'lax.psum({PARTIAL}, "model")',
            PARTIAL,
        ),
        ("this is a quarter of it", "psum", "pmean"),
        ("without the relu", PARTIAL, "x @ W1 @ W2"),
        ("one all-reduce is enough", f'return lax.psum({PARTIAL}, "model")', GATHERED),
        (
            "the relu came last",
            f'lax.psum({PARTIAL}, "model")',
            'jax.nn.relu(lax.psum(x @ W1 @ W2, "model"))',
        ),
        ("not relu", PARTIAL, "jax.nn.tanh(x @ W1) @ W2"),
        ("has the shape (3, 5)", PARTIAL, "jax.nn.relu(x @ W1) @ W2 @ W2.T"),
    ],
    "fixed_layer": [
        ("the bias 4 times", LAYER, 'lax.psum(h @ W2 + bias, "model")'),
        ("the bias is missing", " + bias", ""),
        ("different results", LAYER, "h @ W2 + bias"),
        ("added, not averaged", LAYER, 'lax.pmean(h @ W2 + bias, "model")'),
        ("on 2 devices", LAYER, 'lax.psum(h @ W2 + bias / 4, "model")'),
        ("has the shape (3, 5)", LAYER, 'lax.psum(h @ W2, "model").sum(0) + bias'),
    ],
}

RIGHT = {
    "split_in_pairs": [
        (PAIR, 'P(None, ("model",)), P("model")'),
        (PAIR, '[P(None, "model"), P("model")]'),
    ],
    "two_layers": [
        (
            f'lax.psum({PARTIAL}, "model")',
            f'lax.pmean({PARTIAL}, "model") * lax.axis_size("model")',
        ),
        (f'lax.psum({PARTIAL}, "model")', f'lax.all_gather({PARTIAL}, "model").sum(0)'),
    ],
    "fixed_layer": [
        (LAYER, 'lax.psum(h @ W2 + bias / lax.axis_size("model"), "model")'),
        (LAYER, 'lax.psum(h @ W2 + bias * (lax.axis_index("model") == 0), "model")'),
    ],
}
