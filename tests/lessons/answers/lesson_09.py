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
CONSTRAINED = """value, gradients = jax.value_and_grad(loss)(
            params, jax.lax.with_sharding_constraint(batch, split)
        )"""
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
MEAN = "((images @ W).argmax(1) == labels).mean()"

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
        ("0.10 times as long", "0.1 * g", "0.01 * g"),
        ("-1.00 times as long", "p - 0.1", "p + 0.1"),
        ("the step returns (params, loss)", ", gradients), value", ", gradients)"),
        ("JAX refuses the arguments (params, batch)", "(replicated, split)", "split"),
    ],
    "fixed_evaluation": [
        ("so it computes every example", "(replicated, split, split)", "replicated"),
        (
            "goes to every device",
            "(replicated, split, split)",
            "(replicated, replicated, split)",
        ),
        (
            "goes to every device",
            "(replicated, split, split)",
            "(replicated, split, replicated)",
        ),
        ("the accuracy is", EVALUATION, MAPPED_EVALUATION),
        (
            "JAX refuses the arguments (W, images, labels)",
            "(replicated, split, split)",
            "split",
        ),
        ("must be on every device", EVALUATION, "jax.jit(accuracy)"),
        ("return jax.jit", EVALUATION, "accuracy"),
        ("the accuracy is", ".mean()", ".sum()"),
        (
            "out_shardings is for the results",
            "out_shardings=replicated",
            "out_shardings=split",
        ),
    ],
}

RIGHT = {
    "make_trainer": [
        (
            JIT,
            BY_SHARD_MAP,
            GRADIENTS,
            f'jax.lax.pmean({GRADIENTS}, "data")',
        ),
        (JIT, "jax.jit(step, in_shardings=(replicated, split))"),
        (
            f"value, gradients = {GRADIENTS}",
            CONSTRAINED,
            JIT,
            "jax.jit(step, out_shardings=replicated)",
        ),
    ],
    "fixed_evaluation": [
        (
            "in_shardings=(replicated, split, split), out_shardings=replicated",
            "in_shardings=(replicated, split, split)",
        ),
        (EVALUATION, MAPPED_EVALUATION, MEAN, f'jax.lax.pmean({MEAN}, "data")'),
    ],
}
