"""Pytrees of anybody's program: names, host copies, rows of a batch, and what each device holds of a leaf."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.verify.report import ArgumentsError


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by their path, for example `params/dense/kernel`; a typed key as its integers."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/") or "the value itself": (
            jax.random.key_data(leaf) if is_key(leaf) else leaf
        )
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def values(tree: Any) -> dict[str, np.ndarray]:
    """The leaves of a pytree by their path, as numbers on the host."""
    return {name: numbers(leaf) for name, leaf in named(tree).items()}


def numbers(leaf: Any) -> np.ndarray:
    """A leaf as float64 (complex128 where it is complex) on the host."""
    leaf = np.asarray(leaf)
    return leaf.astype(np.complex128 if np.iscomplexobj(leaf) else np.float64)


def is_key(leaf: Any) -> bool:
    """Whether this leaf is a typed PRNG key."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def is_random(leaf: Any) -> bool:
    """Whether this leaf drives random numbers: a key, or uint32 as in raw keys and the counters of `nnx.Rngs`."""
    return is_key(leaf) or getattr(leaf, "dtype", None) == np.uint32


def is_float(leaf: Any) -> bool:
    """Whether this leaf holds real floating-point numbers."""
    return not is_key(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def reseed(tree: Any) -> Any:
    """The tree with other seeds in its random leaves."""

    def another(leaf: Any) -> Any:
        if is_key(leaf):
            return jax.random.fold_in(leaf, 7919)
        return np.asarray(leaf) + np.uint32(7919) if is_random(leaf) else leaf

    return jax.tree.map(another, tree)


def to_host(tree: Any, dtype: Any = None) -> Any:
    """Copies in host memory, which no donation reaches; floating-point leaves as `dtype` if given."""

    def copy(leaf: Any) -> Any:
        if is_key(leaf):
            return jnp.copy(leaf)
        if dtype is not None and is_float(leaf):
            return np.array(leaf, dtype)
        return np.array(leaf) if hasattr(leaf, "dtype") else leaf

    return jax.tree.map(copy, tree)


def number_of_examples(batch: Any) -> int:
    """B of a batch whose leaves are `[B, ...]`."""
    return np.shape(jax.tree.leaves(batch)[0])[0]


def parts_of(returned: Any, who: str, error: type[Exception] = ArgumentsError) -> dict[str, Any]:
    """The "state" and the "metrics" that `who` returned; an `error` says what else it is."""
    if isinstance(returned, tuple | list) and len(returned) == 2:
        return {"state": returned[0], "metrics": returned[1]}
    found = f"{len(returned)} values" if isinstance(returned, tuple | list) else f"a single {type(returned).__name__}"
    raise error(f"{who} must return (state, metrics), and returns {found}")


def rows(batch: Any, index: Any) -> Any:
    """The examples of a batch at `index`, a slice or integers."""
    return jax.tree.map(lambda leaf: leaf[index], batch)


def parts(batch: Any, N: int) -> list[Any]:
    """The batch cut into N runs of examples as devices take them; the last are shorter or absent where B is uneven."""
    B = number_of_examples(batch)
    b = -(-B // N)
    return [rows(batch, slice(start, start + b)) for start in range(0, B, b)]


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
    """Largest absolute difference; not-a-number equals not-a-number."""
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, a - b)
    return largest(difference)
