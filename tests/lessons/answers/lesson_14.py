COUNT = "itertools.count(first)"
SAVE = "checkpoints.save(number + 1, args=ocp.args.StandardSave(state))"
RESTORED, UPDATES = "StandardRestore(state))", 'range(int(state["updates"]), last)'


WRONG = {
    "fixed_batches": [
        ("resumes at update 1", COUNT, "itertools.count()"),
        (
            "do not hold each of the",
            "-(-examples // batch_size)",
            "examples // batch_size",
        ),
        ("epoch 1 repeats the order", "[seed, epoch]", "seed"),
        ("ends after 3 batches", COUNT, "range(first, first + 3)"),
    ],
    "train_or_resume": [
        (
            "makes the updates 3 and 4",
            "newest is not None",
            "False",
            SAVE,
            f"newest is None and {SAVE}",
        ),
        ("left no checkpoint", SAVE, "pass"),
        (
            "without a stop it is",
            RESTORED,
            RESTORED + ' | {"momentum": create()["momentum"]}',
        ),
        (
            "update 2 was asked of a state after 3",
            UPDATES,
            "range(max(0, (newest or 0) - 1), last)",
        ),
    ],
    "export_bytes": [
        ("takes only 5 rows", "(n, 4)", "(5, 4)"),
        ("return bytes", ".serialize()", ""),
        (
            "the program returns something else",
            "jax.jit(function)",
            "jax.jit(lambda x: x.sum(1))",
        ),
    ],
}

RIGHT = {
    "fixed_batches": (COUNT, "itertools.islice(itertools.count(), first, None)"),
    "export_bytes": (
        "jax.jit(function)",
        'jax.jit(function), platforms=["cpu", "tpu"]',
    ),
}
