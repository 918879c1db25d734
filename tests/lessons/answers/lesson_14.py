COUNT = "itertools.count(first)"
SAVE = "checkpoints.save(number + 1, args=ocp.args.StandardSave(state))"
RESTORED, UPDATES = "StandardRestore(state))", 'range(int(state["updates"]), count)'
TWO = "ocp.CheckpointManagerOptions(max_to_keep=2)"
WITH = "with ocp.CheckpointManager(folder) as checkpoints:"
WAIT = "        checkpoints.wait_until_finished()"
UNCLOSED = "checkpoints = ocp.CheckpointManager(folder)\n    if True:"

WRONG = {
    "fixed_batches": [
        ("resumes at update 1", COUNT, "itertools.count()"),
        (
            "do not hold each of the",
            "-(-examples // batch_size)",
            "examples // batch_size",
        ),
        (
            "do not hold each of the 32 examples once",
            "-(-examples // batch_size)",
            "(examples // batch_size + 1)",
        ),
        ("epoch 1 repeats the order", "[seed, epoch]", "seed"),
        ("use `seed`", "[seed, epoch]", "epoch"),
        ("were added up", "[seed, epoch]", "seed + epoch"),
        ("epoch 1000 of seed 0", "[seed, epoch]", "1000 * seed + epoch"),
        ("ends after 3 batches", COUNT, "range(first, first + 3)"),
        ("do not hold each of the", "[seed, epoch]", "[seed, number]"),
        (
            "do not hold each of the",
            "position * batch_size : (position + 1) *",
            ": 1 *",
        ),
    ],
    "train_or_resume": [
        ("update 2; yours made [0, 1, 2]", "newest is not None", "False"),
        ("left no checkpoint", SAVE, "pass"),
        (
            "without a stop it is",
            RESTORED,
            RESTORED + ' | {"momentum": create()["momentum"]}',
        ),
        (
            "update 1 was asked of a state after 2",
            UPDATES,
            "range(max(0, (newest or 0) - 1), count)",
        ),
        (  # saves only at the end
            "save after every update",
            f"            {SAVE}\n",
            "",
            "        checkpoints.wait",
            f"        {SAVE.replace('number + 1', 'count')}\n        checkpoints.wait",
        ),
        ("the first start makes the updates 0 and 1", ", count)", ", count + 1)"),
        ("update 2; yours made []", ", count)", ", 2)"),
        ("save after every update", SAVE, f"(number % 2 == 0 or {SAVE})"),
        # Its first checkpoint has the number 0, which counts as False.
        ("`is not None`", "newest is not None", "newest", "number + 1", "number"),
        ("still being written", WITH, UNCLOSED, f"{WAIT}\n", ""),
    ],
}

RIGHT = {
    "fixed_batches": [
        (COUNT, "itertools.islice(itertools.count(), first, None)"),
        ("[seed, epoch]", "(epoch, seed)"),
    ],
    "train_or_resume": [
        ('range(int(state["updates"]), count)', "range(newest or 0, count)"),
        (
            "ocp.CheckpointManager(folder)",
            f"ocp.CheckpointManager(folder, options={TWO})",
        ),
        (WITH, UNCLOSED),
        ("number + 1", "number"),
        (WITH, UNCLOSED, WAIT, "        checkpoints.close()"),
    ],
}
