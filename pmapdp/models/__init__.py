"""The networks, one file each, in plain Flax NNX. `pmapdp/registry.py` gives them their names on the command line."""
