"""Read a pmap program, and say what it needs today: `python -m pmapdp.port FILE`."""
