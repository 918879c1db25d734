"""Read a pmap program, and say what it needs today: `python -m pmapdp.port FILE`.

- `__main__.py` reads the command line, and prints the report.
- `read.py` reads the files, and `names.py` follows the names in them.
- `pmaps.py` reads a call of pmap: its options, and the function that's mapped.
- `find.py` finds the constructs of the table `rows.toml`, whose fields `rows.py` names.
- `verify_step.py` writes the program that verifies your training step.
"""
