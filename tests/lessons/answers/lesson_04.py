import jax
import numpy as np

CUT = "x.reshape(N, -1, *x.shape[1:])"
SUMS = "jax.pmap(eval_step, in_axes=(None, 0))(state, batch)"
TOTAL = "jax.tree.map(jnp.sum, sums)"
BY_PSUM = """jax.pmap(
        lambda *arguments: lax.psum(eval_step(*arguments), "data"),
        "data",
        in_axes=(None, 0),
        out_axes=None,
    )(state, batch)"""
STACKED = """jax.pmap(eval_step)(
        jax.tree.map(lambda x: np.stack([x] * N), state), batch
    )"""
STACK = "np.stack([np.asarray(shard.data) for shard in array.addressable_shards])"
RANGE = "(copies.max(0) - copies.min(0)).max()"
MAPPED = "jax.pmap(local_accuracy, in_axes=(None, 0, 0))(w, x, labels)"
BY_PMEAN = """jax.pmap(
        lambda *arguments: lax.pmean(local_accuracy(*arguments), "data"),
        "data",
        in_axes=(None, 0, 0),
        out_axes=None,
    )(w, x, labels)"""


BY_THE_COUNT_OF_ALL = """jax.pmap(
        lambda w, x, own: (jnp.dot(x, w).argmax(-1) == own).sum() / labels.size,
        in_axes=(None, 0, 0),
        out_axes=None,
    )(w, x, labels)"""


def accuracy_of_two(w, x, labels):
    return np.mean([(x[d] @ w).argmax(-1) == labels[d] for d in (0, len(x) - 1)])


def from_pairs(state):
    differences = []
    for array in jax.tree.leaves(state):
        copies = [np.asarray(shard.data) for shard in array.addressable_shards]
        differences += [abs(one - other).max() for one in copies for other in copies]
    return max(differences)


WRONG = {
    "sums_on_devices": [
        ("each of 8 devices must get 3", CUT, "x.reshape(-1, N, *x.shape[1:])"),
        ("each of 8 devices must get 3", CUT, "x"),
        ("each of 8 devices must get 3", CUT, "x.reshape(N, -1)"),
        ("with jax.pmap", CUT, "x", SUMS, "eval_step(state, batch)"),
        ("with jax.pmap", "jax.pmap(eval_step", "jax.vmap(eval_step"),
        ("add up the 8 numbers", f"return {TOTAL}", "return sums"),
        ("add up the 8 numbers", TOTAL, "jax.device_get(sums)"),
        ("mean of the 8", "jnp.sum", "jnp.mean"),
        ("over all 24 rows", "jnp.sum", "jnp.max"),
        ("device 0's sum alone", "(None, 0))(state", "(None, 0), out_axes=None)(state"),
        ("device 0's sum alone", "jnp.sum", "lambda x: x[0]"),
        ("a dictionary with the names", f"return {TOTAL}", 'return sums["loss"].sum()'),
        (
            "a dictionary with the names",
            f"return {TOTAL}",
            'return {"mean": sums["loss"].sum() / sums["count"].sum()}',
        ),
        (
            "has no device axis",
            "jax.pmap(eval_step, in_axes=(None, 0))",
            "jax.pmap(eval_step)",
        ),
        ("your code raised ValueError", "N, -1,", "N, 16,"),
    ],
    "largest_difference": [
        ("NumPy and jnp read one copy", STACK, "np.stack([np.asarray(array)] * 8)"),
        ("the copy of every device", "addressable_shards]", "addressable_shards[::7]]"),
        ("look at all arrays", "max(differences)", "differences[0]"),
        ("look at all arrays", "max(differences)", "differences[-1]"),
        ("compares every copy with device 0's", RANGE, "abs(copies - copies[0]).max()"),
        ("adds up the arrays' differences", "max(differences)", "sum(differences)"),
        ("differs by 0.5 from the other", RANGE, "copies.std(0).max()"),
        (
            "differs by 0.5 from the other",
            RANGE,
            "(copies.max(0) - copies.min(0)).mean()",
        ),
        ("here all copies are equal", RANGE, "copies.max() - copies.min()"),
        ("is smaller by 0.5", RANGE, "(copies - copies[0]).max()"),
        (
            "must be of the same number",
            RANGE,
            "(copies - copies[0]).max() - (copies - copies[0]).min()",
        ),
        ("subtract the smaller", "max(differences)", "-max(differences)"),
        ("one number, yours has", "max(differences)", "np.array(differences)"),
    ],
    "fixed_accuracy": [
        ("sum of the 8", f"{MAPPED}.mean()", f"{MAPPED}.sum()"),
        ("over all examples", f"{MAPPED}.mean()", f"{MAPPED}.max()"),
        ("over all examples", f"{MAPPED}.mean()", f"{MAPPED}[-1]"),
        ("over all examples", f"{MAPPED}.mean()", f"jnp.median({MAPPED})"),
        (
            "of device 0 alone",
            "in_axes=(None, 0, 0))(w, x, labels).mean()",
            "in_axes=(None, 0, 0), out_axes=None)(w, x, labels)",
        ),
        ("correct answers, divided by", f"{MAPPED}.mean()", BY_THE_COUNT_OF_ALL),
        ("one number", f"{MAPPED}.mean()", MAPPED),
        ("over all examples", accuracy_of_two),
    ],
}

RIGHT = {
    "sums_on_devices": [
        (SUMS, BY_PSUM, f"return {TOTAL}", "return sums"),
        (SUMS, STACKED),
        (TOTAL, "{name: sum(jax.device_get(sums[name])) for name in sums}"),
    ],
    "largest_difference": [
        (RANGE, "np.ptp(copies, axis=0).max()"),
        ("max(differences)", "jnp.max(jnp.array(differences))"),
        from_pairs,
    ],
    "fixed_accuracy": [
        (f"{MAPPED}.mean()", BY_PMEAN),
        (f"{MAPPED}.mean()", f"np.mean(jax.device_get({MAPPED}))"),
        (f"{MAPPED}.mean()", "(jnp.matmul(x, w).argmax(-1) == labels).mean()"),
    ],
}
