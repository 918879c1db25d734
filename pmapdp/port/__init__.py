"""Say what a pmap program needs today, without running it.

    python -m pmapdp.port train.py

docs/porting.md in pmapdp's repository explains the report. The files of this package,
in the order in which they work:

- `__main__.py` reads the command line, and prints the report.
- `read.py` reads the files, and `names.py` follows the names in them.
- `pmaps.py` reads the uses of pmap: their options, and the functions that are mapped.
- `find.py` finds the constructs of pmap, line by line. `rows.py` has their table,
  `rows.toml`, by which most are found, and `constructs.py` recognizes the others.
- `verify_step.py` writes the program that verifies your training step.
"""
