SUM = "jax.device_put(a, device) + jax.device_put(b, device)"
UNDER_A_DEFAULT = """None
    with jax.default_device(device):
        return jnp.asarray(np.asarray(a)) + jnp.asarray(np.asarray(b))"""
PAIRS = "pairs = zip(last[::2], last[1::2], strict=True)"
ADD = "left + jax.device_put(right, *left.devices()) for left, right in pairs"
STANDARDIZED = "(x - x.mean()) / x.std()"
MOVED = "    x = jax.device_put(x, device)\n"
ADD_ELSEWHERE = "jax.device_put(a + jax.device_put(b, *a.devices()), device)"
ADD_ON_HOST = "jax.device_put(np.asarray(a) + np.asarray(b), device)"
TO_DEVICE = "(a + b.to_device(*a.devices())).to_device(device)"
BY_ASARRAY = "jnp.asarray(np.asarray(a) + np.asarray(b), device=device)"
SUM_UNDER_A_DEFAULT = """None
    with jax.default_device(device):
        return jnp.array(np.asarray(a) + np.asarray(b))"""
MOVED_LAST = f"return jax.device_put({STANDARDIZED}, device)"
MEAN_ELSEWHERE = f"    mean = jax.device_put(x.mean(), device)\n{MOVED}"


WRONG = {
    "add_on": [
        ("Move a and b first", SUM, ADD_ELSEWHERE),
        ("Move a and b first", SUM, ADD_ON_HOST),
        ("Move a and b first", SUM, TO_DEVICE),
        ("Move a and b first", SUM, BY_ASARRAY),
        ("Move a and b first", f"return {SUM}", SUM_UNDER_A_DEFAULT),
        ("not a + b", SUM, SUM.replace("+", "-")),
        ("move both before you add", SUM, "a + b"),
        (
            "not on the device that was asked for",
            SUM,
            "a + jax.device_put(b, *a.devices())",
        ),
        ("not one of the host", SUM, "np.asarray(a) + np.asarray(b)"),
    ],
    "sum_in_pairs": [
        ("need rounds of", "rounds = [list(arrays)]", "rounds = [arrays, arrays]"),
        (
            "need rounds of",
            PAIRS,
            "pairs = [last[:2]]",
            f"[{ADD}]",
            f"[{ADD}] + last[2:]",
        ),
        (
            "like its first array",
            ADD,
            "jax.device_put(left, *right.devices()) + right for left, right in pairs",
        ),
        ("add up the devices 0 to 1", ADD, "left for left, _ in pairs"),
        (
            "move one to the other's device",
            ADD,
            "left + right for left, right in pairs",
        ),
        (
            "was computed elsewhere",
            ADD,
            "jax.device_put(jax.device_put(left, *right.devices()) + right, "
            "*left.devices()) for left, right in pairs",
        ),
        (
            "was computed elsewhere",
            ADD,
            "jax.device_put(np.asarray(left) + np.asarray(right), *left.devices()) "
            "for left, right in pairs",
        ),
        ("a list of rounds", "return rounds", "return sum(jax.device_get(arrays))"),
    ],
    "fixed_standardize": [
        ("move x first", MOVED, "", f"return {STANDARDIZED}", MOVED_LAST),
        (
            "move x first",
            MOVED,
            "    x = np.asarray(x)\n",
            f"return {STANDARDIZED}",
            MOVED_LAST,
        ),
        (
            "move x first",
            MOVED,
            "",
            f"return {STANDARDIZED}",
            f"return ({STANDARDIZED}).to_device(device)",
        ),
        (
            "move x first",
            MOVED,
            "    x = np.asarray(x)\n",
            f"return {STANDARDIZED}",
            f"return jnp.array({STANDARDIZED}, device=device)",
        ),
        ("move x first", MOVED, MEAN_ELSEWHERE, "x - x.mean()", "x - mean"),
        ("device_put returns a copy", MOVED, ""),
        ("mean 0", STANDARDIZED, "x - x.mean()"),
        ("must be a JAX array", STANDARDIZED, f"np.asarray({STANDARDIZED})"),
    ],
}

RIGHT = {
    "add_on": [
        (f"return {SUM}", UNDER_A_DEFAULT),
        (SUM, "jnp.add(*jax.device_put((a, b), device))"),
        (SUM, "a.to_device(device) + b.to_device(device)"),
        (SUM, "jnp.array(0.0) + jax.device_put(a, device) + jax.device_put(b, device)"),
    ],
    "sum_in_pairs": [
        (
            ADD,
            "jnp.add(*jax.device_put((left, right), *left.devices())) "
            "for left, right in pairs",
        ),
        (ADD, "jax.device_put(right, left.sharding) + left for left, right in pairs"),
        (PAIRS, "pairs = [last[i : i + 2] for i in range(0, len(last), 2)]"),
    ],
    "fixed_standardize": [
        ("jax.device_put(x, device)", "jax.device_put(np.asarray(x), device)"),
        ("jax.device_put(x, device)", "jnp.asarray(np.asarray(x), device=device)"),
        (STANDARDIZED, "(x - jnp.mean(x)) / jnp.sqrt(jnp.var(x))"),
    ],
}
