JIT = "jax.jit(step, in_shardings=(replicated, split), out_shardings=replicated)"
BY_SHARD_MAP = """jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec("data")),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    )"""
GRADIENTS = "jax.value_and_grad(loss)(params, batch)"
EVALUATION = "jax.jit(accuracy, in_shardings=(replicated, split, split), out_shardings=replicated)"
MAPPED_EVALUATION = """jax.jit(
        jax.shard_map(
            accuracy,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec("data"), PartitionSpec("data")),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    )"""

WRONG = {
    "make_trainer": [
        (
            "so it computes every example",
            "in_shardings=(replicated, split)",
            "in_shardings=replicated",
        ),
        (
            "the PartitionSpec should be P()",
            "out_shardings=replicated",
            "out_shardings=split",
        ),
        (
            "on one device it is",
            GRADIENTS,
            f"jax.tree.map(lambda each: 512 * each, {GRADIENTS})",
        ),
        ("return jax.jit", JIT, "step"),
        ("must be on every device", JIT, "jax.jit(step)"),
    ],
    "fixed_evaluation": [
        ("so it computes every example", "(replicated, split, split)", "replicated"),
        ("the accuracy is", EVALUATION, MAPPED_EVALUATION),
    ],
}

RIGHT = {
    "make_trainer": (
        JIT,
        BY_SHARD_MAP,
        GRADIENTS,
        f'jax.lax.pmean({GRADIENTS}, "data")',
    ),
    "fixed_evaluation": (
        "(replicated, split, split)",
        "(replicated, split, replicated)",
    ),
}
