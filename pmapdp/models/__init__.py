"""The networks, one file each, in Flax NNX with Flax's own layers.

`pmapdp/registry.py` has their names on the command line.
"""

from typing import Any


def axes(*names: str) -> dict[str, Any]:
    """Name the axes of a linear layer, so that a layout can split it over a mesh.

    Without a layout the names change nothing. docs/meshes.md shows a whole model.

    Args:
        names: One name for each axis of the kernel. The bias gets the last of them.

    Returns:
        Keyword arguments for `nnx.Linear`.

    Example:
        layer = nnx.Linear(784, 512, **axes("features", "hidden"), rngs=nnx.Rngs(0))
    """
    kernel = axis_names(*names)
    return {"kernel_metadata": kernel, "bias_metadata": axis_names(names[-1])}


def axis_names(*names: str) -> dict[str, Any]:
    """Return Flax's metadata for an array whose axes have these names.

    Give it to layers other than `nnx.Linear`.

    Args:
        names: One name for each axis of the array.

    Returns:
        The metadata, a dictionary.

    Example:
        tokens = nnx.Embed(
            8192, 64, rngs=nnx.Rngs(0), embedding_metadata=axis_names("words", "embed")
        )
    """
    # Eager sharding would look for these names among the axes of a mesh.
    return {"out_sharding": names, "eager_sharding": False}
