"""Read a pmap program, and say what each line becomes under shard_map and jit: `python -m pmapdp.port PATH`."""
