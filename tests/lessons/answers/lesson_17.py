ASSEMBLED = "jax.make_array_from_single_device_arrays(shape, sharding, shards)"
SORTED = "sorted(gpus, key=lambda gpu: gpu.process_index)"
ANSWER = f"np.array({SORTED}).reshape(-1, per_machine)"
IN_LISTS = "[[g for g in gpus if g.process_index // per_machine == n] for n in range(len(gpus) // per_machine)]"
FIRST_SAYS = "if process == 0:\n        say(value)"

WRONG = {
    "assemble": [
        ("return a jax.Array", ASSEMBLED, "rows"),
        ("its sharding is", ASSEMBLED, "jax.device_put(rows, local_devices[0])"),
        ("belong elsewhere", ASSEMBLED, "jax.device_put(rows[::-1], sharding)"),
        (
            "the global shape",
            ASSEMBLED,
            "jax.device_put(rows[: len(local_devices)], sharding)",
        ),
    ],
    "group_by_machine": [
        ("the shape is [machines, per_machine]", ANSWER, "np.array(gpus)"),
        ("must stay inside a machine", "process_index", "id"),
        (
            "each GPU comes once",
            ANSWER,
            f"np.array([{SORTED}[:per_machine]] * (len(gpus) // per_machine))",
        ),
    ],
    "fixed_log": [
        ("end it with a return statement", "return value", "pass"),
        (
            "wait for the others in vain",
            "value = mean_loss()",
            "value = 0.25",
            "say(value)",
            "say(mean_loss())",
        ),
        ("process 0 alone", "if process == 0:", "if True:"),
        ("computed the loss 2 times", "say(value)", "say(mean_loss())"),
        (
            "on every process",
            "return value",
            "return value if process == 0 else float('nan')",
        ),
    ],
}

RIGHT = {
    "assemble": (
        ASSEMBLED,
        "jax.make_array_from_callback(shape, sharding, lambda index: rows[index])",
    ),
    "group_by_machine": (ANSWER, IN_LISTS),
    "fixed_log": (FIRST_SAYS, "{0: say}.get(process, lambda _: None)(value)"),
}
