"""Reads a program of pmap and says what each line becomes under shard_map and jit: `python -m pmapdp.port PATH`."""
