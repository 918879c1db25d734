"""Handle pytrees of any program: names of leaves, host copies, and devices' copies."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.verify.report import CheckError

Leaves = dict[str, np.ndarray]  # the leaves of a tree by their path
OTHER_SEED = 7919  # makes another key, if combined with a key's bits by XOR


def name_path(path: Any) -> str:
    """Return a leaf's path as text, for example `params/dense/kernel`."""
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    return name or "the value itself"


def map_with_names(
    function: Callable[[str, Any], Any], tree: Any, prefix: str = ""
) -> Any:
    """Apply `function(path, leaf)` to every leaf. A path begins with the prefix."""

    def apply(path: Any, leaf: Any) -> Any:
        return function(prefix + name_path(path), leaf)

    return jax.tree_util.tree_map_with_path(apply, tree)


def leaves_by_name(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves by their path. Typed keys become arrays of integers."""
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if is_key(leaf) and isinstance(leaf, jax.Array):
            leaf = jax.random.key_data(leaf)
        leaves[prefix + name_path(path)] = leaf
    return leaves


def first_names(names: Iterable[Any]) -> str:
    """Return the first three names, and how many more there are."""
    texts = [str(name) for name in names]
    shown = ", ".join(texts[:3])
    if len(texts) > 3:
        shown += f" and {len(texts) - 3} more"
    return shown


def matches(path: str, names: str | Sequence[str]) -> bool:
    """Return True if a path has one of these names in it, such as "opt/key"."""
    if isinstance(names, str):
        names = [names]
    return any(f"/{name}/" in f"/{path}/" for name in names)


def to_numpy(leaf: Any) -> np.ndarray:
    """Return a leaf on the host: floats in float64, whole numbers as they are."""
    if jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
        return np.asarray(leaf, np.float64)
    return np.asarray(leaf)


def is_key(leaf: Any) -> bool:
    """Return True if this leaf is a typed PRNG key."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def is_float(leaf: Any) -> bool:
    """Return True if this leaf holds floats."""
    return not is_key(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def to_host(tree: Any, dtype: Any = None) -> Any:
    """Copy a tree to host memory, so that no donation deletes its arrays.

    With `dtype`, floats are converted to this type. Floats of 16 bits aren't, because
    the program means to round them.
    """

    def copy(leaf: Any) -> Any:
        if is_key(leaf):
            return jnp.copy(leaf)
        leaf_dtype = jnp.result_type(leaf)
        is_wide = is_float(leaf) and leaf_dtype.itemsize >= 4
        if dtype is not None and is_wide:
            leaf_dtype = np.promote_types(leaf_dtype, dtype)  # a complex one stays one
        return np.array(leaf, leaf_dtype)

    return jax.tree.map(copy, tree)


def split_rows(tree: Any, N: int, axis: int) -> Any:
    """Cut leaves `[B, ...]`, with the examples along `axis`, into `[N, b, ...]`."""

    def cut(x: Any) -> Any:
        parts = x.reshape(*x.shape[:axis], N, -1, *x.shape[axis + 1 :])
        return jnp.moveaxis(parts, axis, 0)

    check_divisible(tree, N, axis)
    return jax.tree.map(cut, tree)


def check_divisible(tree: Any, N: int, axis: int) -> None:
    """Check that the size of every leaf along an axis is a multiple of N."""
    for leaf in jax.tree.leaves(tree):
        if leaf.shape[axis] % N:
            raise CheckError(
                f"{leaf.shape[axis]} examples do not divide over {N} devices; your own "
                "Layout can pad them"
            )


def reseed(tree: Any) -> Any:
    """Give the keys of a tree another seed.

    Every uint32 array is taken for a raw key or a counter of `nnx.Rngs`, because few
    other numbers have this type.
    """

    def change_seed(leaf: Any) -> Any:
        if is_key(leaf):
            data = jax.random.key_data(leaf) ^ OTHER_SEED
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        if getattr(leaf, "dtype", None) == np.uint32:
            return np.asarray(leaf) ^ np.uint32(OTHER_SEED)
        return leaf

    return jax.tree.map(change_seed, tree)


def device_copies(leaf: Any, shape: tuple[int, ...], N: int) -> list[np.ndarray]:
    """Return the devices' copies of a leaf of this shape.

    A leaf `[N, *shape]` has a row for each device. Of a leaf that is sharded, several
    devices together hold one copy. The list is empty if the leaf has another shape.
    """
    if np.shape(leaf) == (N, *shape):
        return list(to_numpy(leaf))
    if np.shape(leaf) != shape:
        return []
    if not isinstance(leaf, jax.Array):
        return [to_numpy(leaf)]
    copies: dict[int, np.ndarray] = {}
    for shard in leaf.addressable_shards:
        part = to_numpy(shard.data)
        if shard.replica_id not in copies:
            copies[shard.replica_id] = np.empty(shape, part.dtype)
        copies[shard.replica_id][shard.index] = part
    return list(copies.values())


def distance(a: Any, b: Any = 0.0) -> float:
    """Return the largest absolute difference of two arrays.

    It's infinite if the shapes differ, or if only one of two numbers is NaN.
    """
    if np.shape(b) not in ((), np.shape(a)):
        return np.inf
    with np.errstate(invalid="ignore"):
        difference = np.abs(np.asarray(a, np.result_type(a, np.float64)) - b)
        are_nan = (a != a) & (b != b)  # only NaN differs from itself
        is_equal = (a == b) | are_nan
        difference = np.where(is_equal, 0, difference)
    largest = np.max(difference, initial=0)
    return float(np.nan_to_num(largest, nan=np.inf, posinf=np.inf))


def fit_factor(array: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """Fit `array = factor * reference` by least squares.

    Returns:
        The factor, and the norm of `array - factor * reference`, relative to the norm
        of `reference`.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.vdot(reference, array).real / np.vdot(reference, reference).real
        residual = np.linalg.norm(array - factor * reference)
        error = residual / np.linalg.norm(reference)
    return float(factor), float(error)
