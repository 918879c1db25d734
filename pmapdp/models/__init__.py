"""The networks, one file each, in Flax NNX with Flax's own layers.

`pmapdp/registry.py` has their names on the command line.
"""

from typing import Any


def axes(*names: str) -> dict[str, Any]:
    """Return metadata that names the axes of a linear layer's kernel and bias.

    The bias has the last of the names:
    `nnx.Linear(784, 512, **axes("features", "hidden"))`. A layout says over which
    devices an axis is split (`pmapdp/sharding/`); without one the names change nothing.
    """
    return {"kernel_metadata": named(*names), "bias_metadata": named(names[-1])}


def named(*names: str) -> dict[str, Any]:
    """Return Flax's metadata for an array whose axes have these names."""
    # Eager sharding would look for these names among the axes of a mesh.
    return {"out_sharding": names, "eager_sharding": False}
