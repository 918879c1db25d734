"""Pytrees of any program: names of leaves, host copies, rows of a batch, and the copies that devices hold."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.verify.report import CheckError

Leaves = dict[str, np.ndarray]  # the leaves of a tree by their path


def map_with_names(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """Apply `function(path, leaf)` to every leaf; a path is text, for example `params/dense/kernel`."""
    keystr = jax.tree_util.keystr

    def apply(path: Any, leaf: Any) -> Any:
        return function(
            keystr(path, simple=True, separator="/") or "the value itself", leaf
        )

    return jax.tree_util.tree_map_with_path(apply, tree)


def leaves_by_name(tree: Any) -> dict[str, Any]:
    """Return the leaves by their path; a typed key as its integers, whose type NumPy knows."""
    found: dict[str, Any] = {}
    map_with_names(found.__setitem__, tree)
    return {
        n: jax.random.key_data(x) if is_key(x) and isinstance(x, jax.Array) else x
        for n, x in found.items()
    }


def matches(path: str, names: Sequence[str]) -> bool:
    """Return True if a path holds one of these names (`key`, `opt/key`), or begins with one that has a leading `/`."""
    full = f"/{path}/"
    return any(
        full.startswith(f"{name}/") if name.startswith("/") else f"/{name}/" in full
        for name in names
    )


def few(names: Any) -> str:
    """Return the first three names, and how many more there are."""
    names = [*map(str, names)]
    return ", ".join(names[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)


def numbers(leaf: Any) -> np.ndarray:
    """Return a leaf on the host: fractions as float64, whole numbers in their own type."""
    return np.asarray(
        leaf,
        np.float64 if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) else None,
    )


def is_key(leaf: Any) -> bool:
    """Return True if this leaf is a typed PRNG key."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def is_float(leaf: Any) -> bool:
    """Return True if this leaf holds fractions."""
    return not is_key(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def to_host(tree: Any, dtype: Any = None) -> Any:
    """Copy to host memory, which no donation reaches; real numbers as `dtype`, if given and not stored narrower."""

    def copy(leaf: Any) -> Any:
        if is_key(leaf):
            return jnp.copy(leaf)
        given = jnp.result_type(leaf)
        wide = (
            dtype is not None
            and jnp.issubdtype(given, jnp.floating)
            and given.itemsize >= 4
        )
        return np.array(leaf, dtype if wide else given)

    return jax.tree.map(copy, tree)


def split_rows(tree: Any, N: int, axis: int = 0) -> Any:
    """Cut leaves `[B, ...]` into `[N, b, ...]`; B must be a multiple of N. Their examples are along `axis`."""

    def cut(x: Any) -> Any:
        if x.shape[axis] % N:
            raise CheckError(
                f"{x.shape[axis]} examples do not divide over {N} devices; your own Layout can pad them"
            )
        return jnp.moveaxis(
            x.reshape(*x.shape[:axis], N, -1, *x.shape[axis + 1 :]), axis, 0
        )

    return jax.tree.map(cut, tree)


def reseed(tree: Any) -> Any:
    """Give the keys of a tree another seed, also raw ones and the counters of `nnx.Rngs`, which are uint32."""

    def another(leaf: Any) -> Any:
        if is_key(leaf):
            return jax.random.wrap_key_data(
                jax.random.key_data(leaf) ^ 7919, impl=jax.random.key_impl(leaf)
            )
        return (
            np.asarray(leaf) ^ np.uint32(7919)
            if getattr(leaf, "dtype", None) == np.uint32
            else leaf
        )

    return jax.tree.map(another, tree)


def copies(leaf: Any, shape: tuple[int, ...], N: int) -> list[np.ndarray]:
    """Return the N copies of a leaf that is replicated or stacked `[N, *shape]`, fewer if it is sharded, else none."""
    if np.shape(leaf) == (N, *shape):
        return list(numbers(leaf))
    if np.shape(leaf) != shape:
        return []
    if not isinstance(leaf, jax.Array):
        return [numbers(leaf)]
    found: dict[int, np.ndarray] = {}
    for shard in leaf.addressable_shards:
        part = numbers(shard.data)
        found.setdefault(shard.replica_id, np.empty(shape, part.dtype))[shard.index] = (
            part
        )
    return list(found.values())


def distance(a: Any, b: Any = 0.0) -> float:
    """Return the largest absolute difference; infinity for NaN, which equals NaN alone, and for other shapes."""
    if np.shape(b) not in ((), np.shape(a)):
        return np.inf
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.asarray(a, np.result_type(a, np.float64)) - b)
        apart = np.where((a == b) | ((a != a) & (b != b)), 0, apart)
    return float(np.nan_to_num(np.max(apart, initial=0), nan=np.inf, posinf=np.inf))


def multiple(got: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """Return the factor between two arrays, and the relative error with which it explains the first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.vdot(wanted, got).real / np.vdot(wanted, wanted).real
        return float(factor), float(
            np.linalg.norm(got - factor * wanted) / np.linalg.norm(wanted)
        )
