KEYS = "example_keys(step, indices)"
ACCUMULATED = "accumulate(jax.grad(loss_sums, has_aux=True), model, batch)"
DIVIDE = 'gradients = jax.tree.map(lambda g: g / sums["count"], gradients)'
NEW_STEP = "step + 1), sums"
TWICE = """accumulate(lambda m, b: jax.grad(loss_sums, has_aux=True)(m, b)[0], model, batch), accumulate(
        lambda m, b: loss_sums(m, b)[1], model, batch)"""
MEANS = """accumulate(
        lambda m, b: (lambda g, s: (jax.tree.map(lambda x: x / s["count"].clip(1), g), s))(
            *jax.grad(loss_sums, has_aux=True)(m, b)), model, batch)"""

PLACED = (
    "jax.make_array_from_callback(shape, sharding, lambda place: read(rows[place[0]]))"
)
PARTS = """jax.make_array_from_single_device_arrays(shape, sharding, [
        jax.device_put(read(rows[place[0]]), device)
        for device, place in sharding.addressable_devices_indices_map(shape).items()])"""

EPOCH = "epoch = checkpoints.latest_step()"
NONE = "if epoch is None:"
RESTORED = "checkpoints.restore(epoch, args=ocp.args.StandardRestore(leaves))"

CHANGED = "[name for name in names if saved.get(name, ...) != current.get(name, ...)]"
CURRENT = "json.loads(json.dumps(settings))"
FIRST = "if not file.exists():"
NAMES = "sorted(saved.keys() | current.keys())"
RAISE = 'raise ValueError(f"{file} has other values of {changed}: choose a new folder")'
PRINT = 'print(f"{file} has other values of {changed}: choose a new folder")'

WRONG = {
    "update_once": [
        ("with a key for each row", KEYS, "indices"),
        ("don't depend on the update's number", KEYS, "example_keys(0, indices)"),
        ("the next update's masks", KEYS, "example_keys(step + 1, indices)"),
        (
            "depend on the place in the batch",
            KEYS,
            "example_keys(step, np.arange(len(indices)))",
        ),
        ("calls accumulate 2 times", ACCUMULATED, TWICE),
        ("20 times the mean gradient", DIVIDE, ""),
        ("2.5 times the mean gradient", 'sums["count"]', "len(weights)"),
        ("4 times the mean gradient", 'sums["count"]', "weights.sum()"),
        (
            "the current value of parameters",
            "optimizer.update(gradients, optimizer_state, model)",
            "optimizer.update(gradients, optimizer_state)",
        ),
        ("with 2 micro-batches, the optimizer", ACCUMULATED, MEANS, DIVIDE, ""),
        ("followed by update 6", NEW_STEP, "step), sums"),
        ("the parts of the old one", NEW_STEP.partition(")")[0], ""),
        ("return two things", "), sums", ")"),
        ("isn't the old one", "optax.apply_updates(model, updates)", "model"),
        ("the sums are", NEW_STEP, 'step + 1), {"loss": sums["loss"]}'),
    ],
    "place_rows": [
        (
            "read was called with 12 rows",
            PLACED,
            "jax.device_put(read(rows), sharding)",
        ),
        ("read was called with 12 rows", "read(rows[place[0]])", "read(rows)[place]"),
        (
            "read was called with 12 rows",
            PLACED,
            "jax.make_array_from_process_local_data(sharding, read(rows), shape)",
        ),
        (
            "these are examples 0 to 11",
            "rows[place[0]]",
            "np.arange(12)[place[0]]",
        ),
        ("an array as `rows` is", "rows[place[0]]", "place[0]"),
        ("the first column should be", "rows[place[0]]", "rows[::-1][place[0]]"),
        ("asked for was", PLACED, "jax.numpy.asarray(read(rows[:3]).repeat(4, 0))"),
        ("return a jax.Array", PLACED, "read(rows)"),
        (
            "each row is read once",
            "read(rows[place[0]])",
            "read(rows[place[0]]) + 0 * read(rows[:3])",
        ),
        ("a tuple of slices, one for each axis", "place[0]", "place"),
    ],
    "resume": [
        ("The first checkpoint has the number 0", NONE, "if not epoch:"),
        ("goes on with epoch 1", "epoch + 1", "epoch"),
        ("without a checkpoint the run goes on", "return state, 0", "return state, 1"),
        ("Restore into the leaves", RESTORED, "checkpoints.restore(epoch)"),
        ("has the structure", "jax.tree.unflatten(structure, leaves)", "leaves"),
        ("each number of the state", RESTORED, "leaves"),
        (
            "each number of the state",
            "jax.tree.unflatten(structure, leaves)",
            "(jax.tree.unflatten(structure, leaves)[0], *state[1:])",
        ),
        (
            "each number of the state",
            EPOCH,
            "epoch = min(checkpoints.all_steps(), default=None)",
        ),
        ("return two things", ", epoch + 1", ""),
        ("your code raised ValueError", RESTORED, RESTORED.replace("leaves", "state")),
    ],
    "fixed_check_settings": [
        ("wasn't refused", FIRST, "if True:"),
        ("wasn't refused", RAISE, PRINT),
        ("wasn't refused", NAMES, "sorted(settings.keys() & saved.keys())"),
        ("wasn't refused", NAMES, "sorted(saved)"),
        ("wasn't refused", NAMES, "sorted(settings)"),
        ("name what differs", "{changed}", "{names}"),
        ("name what differs", "{changed}", "{changed[0]}"),
        (
            "with the first settings, after a refusal",
            "if changed:",
            "file.write_text(json.dumps(settings))\n    if changed:",
        ),
        ("yours returned True", "return settings", "return True"),
        ("of which JSON makes a list", CURRENT, "settings"),
        ("wasn't refused", "(name, ...)", "(name)"),
        ("wasn't refused", "saved.get(name, ...)", "saved.get(name)"),
        ("wasn't refused", "current.get(name, ...)", "current.get(name)"),
    ],
}

RIGHT = {
    "update_once": [
        (
            DIVIDE,
            'gradients = optax.tree.scale(1 / sums["count"], gradients)',
        ),
        (
            "batch = examples, weights, example_keys(step, indices)",
            "example_batch = batch",
            ACCUMULATED,
            """accumulate(
        lambda m, b: jax.grad(loss_sums, has_aux=True)(m, (b[0], b[1], example_keys(step, b[2]))),
        model, batch)""",
        ),
        (
            "(optax.apply_updates(model, updates), ",
            "(jax.tree.map(jax.numpy.add, model, updates), ",
        ),
    ],
    "place_rows": [
        (PLACED, PARTS),
        (
            "read(rows[place[0]])",
            "np.stack([read(rows[i : i + 1])[0] for i in range(place[0].start, place[0].stop)])",
        ),
    ],
    "resume": [
        (EPOCH, "epoch = max(checkpoints.all_steps(), default=None)"),
        (
            RESTORED,
            "checkpoints.restore(epoch, args=ocp.args.StandardRestore("
            "jax.tree.map(ocp.utils.to_shape_dtype_struct, leaves)))",
        ),
    ],
    "fixed_check_settings": [
        (FIRST, "if not (file.is_file() and file.stat().st_size):"),
        (
            CHANGED,
            "[n for n in names if n not in saved or n not in current or saved[n] != current[n]]",
        ),
        ("return settings", "return saved"),
        (
            CURRENT,
            "{k: list(v) if type(v) is tuple else v for k, v in settings.items()}",
        ),
    ],
}
