"""Data-parallel training in JAX: the same step as pmap, jit, shard_map and on a single device."""

__version__ = "0.1.0"

from pmapdp.errors import watch_imports

watch_imports()
