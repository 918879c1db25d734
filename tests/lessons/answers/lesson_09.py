"""Answers to the exercises of lesson 09; see ../test_exercises.py."""

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
ACCURACY = "((images @ W).argmax(1) == labels).mean()"

WRONG = {
    "make_trainer": [
        ("so it computes every example", "in_shardings=(replicated, split)", "in_shardings=replicated"),
        ("so it computes every example", "in_shardings=(replicated, split), ", ""),
        ("the PartitionSpec should be P()", "out_shardings=replicated", "out_shardings=split"),
        ("on one device it is", GRADIENTS, f"jax.tree.map(lambda each: 512 * each, {GRADIENTS})"),
        ("on one device it is", JIT, BY_SHARD_MAP),
        ("return jax.jit", JIT, "step"),
        ("must be on every device", JIT, "jax.jit(step)"),
    ],
    "fixed_evaluation": [
        ("so it computes every example", "(replicated, split, split)", "replicated"),
        ("so it computes every example", "in_shardings=(replicated, split, split), ", ""),
        ("the accuracy is", EVALUATION, MAPPED_EVALUATION),
        ("the accuracy is", ACCURACY, "(images @ W).argmax(1).mean()"),
    ],
}

RIGHT = {
    "make_trainer": [
        (JIT, BY_SHARD_MAP, GRADIENTS, f'jax.lax.pmean({GRADIENTS}, "data")'),
        (
            JIT,
            "jax.jit(step, out_shardings=replicated)",
            GRADIENTS,
            GRADIENTS.replace("batch", "jax.lax.with_sharding_constraint(batch, split)"),
        ),
        ("in_shardings=(replicated, split)", "in_shardings=(None, split)"),
    ],
    "fixed_evaluation": [
        ("(replicated, split, split)", "(replicated, split, replicated)"),
        (EVALUATION, MAPPED_EVALUATION, ACCURACY, 'jax.lax.pmean(((images @ W).argmax(1) == labels).mean(), "data")'),
    ],
}
