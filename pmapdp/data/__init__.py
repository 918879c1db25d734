"""Data sets, one file a source, and the order in which a run visits their examples.

`pmapdp/registry.py` has their names on the command line.
"""
