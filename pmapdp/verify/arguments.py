"""The arguments of `verify`: what cannot be used is said in one sentence, before anything is computed."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pmapdp.errors import shown
from pmapdp.verify import trees
from pmapdp.verify.convention import few
from pmapdp.verify.report import ArgumentsError

STATE = "the state as one device has it, for example a dictionary of arrays or flax.nnx.state(model)"
BATCH = "arrays that start with the same axis of examples, [B, ...], for example {'x': inputs, 'y': labels}"
KEY = "jax.random.key(0), or a function of the update's number that returns a key"


def refuse(name: str, value: Any, why: str) -> ArgumentsError:
    """The error for an argument: the value given, in one short line, why not, and one that works."""
    return ArgumentsError(f"{name}={shown(value)}{why}")


def require_list(name: str, values: Any, fits: Callable[[Any], bool], example: str, empty: bool = False) -> None:
    """A list of such values, and not empty unless it may be."""
    if not isinstance(values, Sequence) or not (values or empty) or not all(map(fits, values)):
        raise refuse(name, values, f": give {example}")


def require_state(state: Any) -> None:
    """A pytree with arrays in it; what is no array in it is given to both functions as it is."""
    leaves = jax.tree.leaves_with_path(state)
    if not any(trees.is_array(leaf) for _, leaf in leaves):
        path, leaf = leaves[0] if leaves else ((), state)
        raise refuse("state" + jax.tree_util.keystr(path), leaf, f" holds no arrays: give {STATE}")


def require_key(key: Any) -> None:
    """A key, typed or raw."""
    leaves = jax.tree.leaves(key)
    if not leaves or not all(map(trees.is_random, leaves)):
        raise refuse("key", key, f" holds no key: give {KEY}")


def require_batch(name: str, batch: Any, axis: int, own: bool) -> None:
    """A pytree of arrays with one axis of examples in common, and at least one example."""
    leaves = jax.tree.leaves_with_path(batch)
    for path, leaf in leaves or [((), batch)]:
        if not leaves or not trees.is_array(leaf):
            is_dataclass = hasattr(leaf, "__dataclass_fields__")
            more = "; make a dataclass a pytree with jax.tree_util.register_dataclass" * is_dataclass
            raise refuse(name + jax.tree_util.keystr(path), leaf, f" holds no arrays: give {BATCH}{more}")
    axis = 0 if own else axis
    shapes = {leaf: np.shape(value) for leaf, value in trees.named(batch).items()}
    sizes = {shape[axis : axis + 1] for shape in shapes.values()}
    if len(sizes) > 1 or sizes & {(), (0,)}:
        found = few(f"{leaf} {list(shape)}" for leaf, shape in shapes.items())
        where = f"arrays whose axis {axis} is that of the examples, as batch_axis={axis} says" if axis else BATCH
        raise ArgumentsError(f"{name} holds {found}: give {where}")


def require_names(per_device: Any, names: Sequence[str]) -> None:
    """Names of leaves of the state or of the metrics, `batch` or `key`."""
    for name in per_device:
        if not any(trees.matches(path, [name]) for path in [*names, "batch", "key"]):
            raise refuse(
                "per_device", list(per_device), f": there is no leaf {name!r} among {few(names)}, batch and key"
            )
