ASSEMBLED = "jax.make_array_from_single_device_arrays(shape, sharding, parts)"
SORTED = "sorted(found, key=lambda device: device.process_index)"
ANSWER = f"np.array({SORTED}).reshape(-1, each)"
IN_LISTS = "[[device for device in found if device.process_index // each == n] for n in range(len(found) // each)]"
FIRST_SAYS = "if process == 0:\n        say(value)"

WRONG = {
    "assemble": [
        ("return a jax.Array", ASSEMBLED, "rows"),
        ("its sharding is", ASSEMBLED, "jax.device_put(rows, mine[0])"),
        ("belong elsewhere", ASSEMBLED, "jax.device_put(rows[::-1], sharding)"),
        ("the global shape", ASSEMBLED, "jax.device_put(rows[: len(mine)], sharding)"),
    ],
    "by_node": [
        ("the shape is [nodes, each]", ANSWER, "np.array(found)"),
        ("must stay inside a node", "process_index", "id"),
        ("each device comes once", ANSWER, f"np.array([{SORTED}[:each]] * (len(found) // each))"),
    ],
    "fixed_log": [
        ("end it with a return statement", "return value", "pass"),
        ("wait for the others in vain", "value = mean_loss()", "value = 0.25", "say(value)", "say(mean_loss())"),
        ("process 0 alone", "if process == 0:", "if True:"),
        ("computed the loss 2 times", "say(value)", "say(mean_loss())"),
        ("on every process", "return value", "return value if process == 0 else float('nan')"),
    ],
}

RIGHT = {
    "assemble": (ASSEMBLED, "jax.make_array_from_callback(shape, sharding, lambda index: rows[index])"),
    "by_node": (ANSWER, IN_LISTS),
    "fixed_log": (FIRST_SAYS, "{0: say}.get(process, lambda _: None)(value)"),
}
