"""Pytrees of anybody's program: names, host copies, rows of a batch, and what each device holds of a leaf."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Leaves = dict[str, np.ndarray]  # the leaves of a tree by their path


def path_of(path: Any) -> str:
    """A path of JAX as text, for example `params/dense/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/") or "the value itself"


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by their path, for example `params/dense/kernel`; a typed key as its integers."""
    return {path_of(path): plain(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def values(tree: Any) -> Leaves:
    """The leaves of a pytree by their path, as numbers on the host."""
    return {name: numbers(leaf) for name, leaf in named(tree).items()}


def with_key(returned: dict[str, Any]) -> dict[str, Any]:
    """The leaves of a new "state" by their path, and a new "key" that was returned beside it."""
    return named(returned["state"]) | named({"key": returned.get("key")})


def numbers(leaf: Any) -> np.ndarray:
    """A leaf on the host; fractions as float64 (or complex128), whole numbers in their own type."""
    leaf = np.asarray(leaf)
    if np.issubdtype(leaf.dtype, np.complexfloating):
        return leaf.astype(np.complex128)
    return leaf.astype(np.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def plain(leaf: Any) -> Any:
    """A typed key as its integers, whose type NumPy knows; any other leaf as it is."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def is_key(leaf: Any) -> bool:
    """Whether this leaf is a typed PRNG key."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def is_random(leaf: Any) -> bool:
    """Whether this leaf may drive random numbers: a key, or uint32 as in raw keys and the counters of `nnx.Rngs`."""
    return is_key(leaf) or getattr(leaf, "dtype", None) == np.uint32


def is_float(leaf: Any) -> bool:
    """Whether this leaf holds fractions, real or complex."""
    return not is_key(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def is_array(leaf: Any) -> bool:
    """Whether JAX takes this leaf as an argument. A Python bool is a flag of the program, as in Equinox' modules."""
    try:
        return not isinstance(leaf, bool) and jax.eval_shape(lambda _: True, leaf) is not None
    except Exception:  # JAX has several, for objects, masked arrays and numbers of more than 64 bits
        return False


def as_arrays(tree: Any) -> Any:
    """The tree with arrays for Python's numbers, so that their types stay the same from update to update."""
    return jax.tree.map(lambda x: np.asarray(x, jnp.result_type(x)) if type(x) in (int, float, complex) else x, tree)


def arrays(tree: Any) -> Any:
    """The tree with None for what is no array, such as the functions in Equinox' modules."""
    return jax.tree.map(lambda leaf: leaf if is_array(leaf) else None, tree)


def combine(arrays: Any, rest: Any) -> Any:
    """The arrays of one tree, and what is no array from another of the same structure."""
    return jax.tree.map(lambda a, b: b if a is None else a, arrays, rest, is_leaf=lambda leaf: leaf is None)


def same_structure(a: Any, b: Any) -> bool:
    """Whether two trees have the same structure."""
    first: Any = jax.tree.structure(a)
    return bool(first == jax.tree.structure(b))


def matches(path: str, names: Sequence[str]) -> bool:
    """Whether a path contains one of these names as one of its parts, or several in a row: `opt/key` or `key`. A name
    with a slash in front, `/0`, must be the beginning of the path."""
    full = f"/{path}/"
    return any(full.startswith(f"{name}/") if name.startswith("/") else f"/{name}/" in full for name in names)


def map_named(function: Any, tree: Any) -> Any:
    """`function(path, leaf)` of every leaf."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: function(path_of(path), leaf), tree)


def reseed(tree: Any, seed: int = 1) -> Any:
    """The tree with other seeds in its random leaves."""
    bits = np.uint32(7919 * seed)

    def another(leaf: Any) -> Any:
        if is_key(leaf):
            return jax.random.wrap_key_data(jax.random.key_data(leaf) ^ bits, impl=jax.random.key_impl(leaf))
        return np.asarray(leaf) ^ bits if is_random(leaf) else leaf

    return jax.tree.map(another, tree)


def to_host(tree: Any, dtype: Any = None) -> Any:
    """Copies in host memory, which no donation reaches; real numbers as `dtype` if given, but for those in a type
    narrower than float32, which their program stores so."""

    def copy(leaf: Any) -> Any:
        if is_key(leaf):
            return jnp.copy(leaf)
        given = jnp.result_type(leaf)
        if dtype is not None and jnp.issubdtype(given, jnp.floating) and given.itemsize >= 4:
            return np.array(leaf, dtype)
        return np.array(leaf) if hasattr(leaf, "dtype") else leaf

    return jax.tree.map(copy, tree)


def rows(batch: Any, index: Any, axis: int = 0) -> Any:
    """The examples of a batch at `index`, a slice or integers, along the axis of examples."""
    return jax.tree.map(lambda leaf: leaf[(slice(None),) * axis + (index,)], batch)


def parts(batch: Any, N: int, axis: int = 0) -> list[Any]:
    """The batch cut into N runs of examples as devices take them; the last are shorter or absent where B is uneven."""
    B = np.shape(jax.tree.leaves(batch)[0])[axis]
    b = -(-B // N)
    return [rows(batch, slice(start, start + b), axis) for start in range(0, B, b)]


def copies(leaf: Any, shape: tuple[int, ...], N: int) -> list[np.ndarray] | None:
    """The copies that N devices hold of a leaf that has `shape` on one device.

    Returns:
        N arrays where the leaf is replicated or stacked `[N, *shape]`; fewer where it is sharded; None where it has
        another shape.
    """
    if np.shape(leaf) == (N, *shape):
        return list(numbers(leaf))
    if np.shape(leaf) != shape:
        return None
    if not isinstance(leaf, jax.Array):
        return [numbers(leaf)]
    found: dict[int, np.ndarray] = {}
    for shard in leaf.addressable_shards:
        part = numbers(shard.data)
        found.setdefault(shard.replica_id, np.empty(shape, part.dtype))[shard.index] = part
    return list(found.values())


def largest(values: np.ndarray) -> float:
    """The largest absolute value; infinite where one is not a number."""
    with np.errstate(invalid="ignore"):
        found = float(np.max(np.abs(values), initial=0))
    return found if np.isfinite(found) else np.inf


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Largest absolute difference; not-a-number equals not-a-number; of whole numbers 0 only where all are equal."""
    if np.shape(a) != np.shape(b):
        return np.inf
    with np.errstate(invalid="ignore"):
        equal = (a == b) | ((a != a) & (b != b))
        if np.all(equal):
            return 0.0
        return largest(np.where(equal, 0, np.asarray(a).astype(np.result_type(a, np.float64)) - b))
