"""The arguments of `verify`: what cannot be used is said in one sentence, before anything is computed."""

import inspect
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.report import ArgumentsError

STATE = "the state as one device has it, for example a dictionary of arrays or flax.nnx.state(model)"
BATCH = "arrays that start with the same axis of examples, [B, ...], for example {'x': inputs, 'y': labels}"
KEY = "jax.random.key(0), or a function of the update's number that returns a key"


def refuse(name: str, value: Any, why: str) -> ArgumentsError:
    """The error for an argument: the value given, in one short line, why not, and one that works."""
    return ArgumentsError(f"{name}={' '.join(reprlib.repr(value).split())}{why}")


def require_list(name: str, values: Any, fits: Callable[[Any], bool], example: str) -> None:
    """A list of such values, and not empty."""
    if not isinstance(values, Sequence) or not values or not all(map(fits, values)):
        raise refuse(name, values, f": give {example}")


def require_leaves(name: str, tree: Any, fits: Callable[[Any], bool], what: str, example: str) -> None:
    """A pytree of such leaves, and not empty."""
    leaves = jax.tree.leaves_with_path(tree)
    for path, leaf in leaves or [((), tree)]:
        if not leaves or not fits(leaf):
            raise refuse(name + jax.tree_util.keystr(path), leaf, f" holds no {what}: give {example}")


def is_array(leaf: Any) -> bool:
    """Whether JAX takes this leaf as an argument."""
    try:
        return jax.eval_shape(lambda _: True, leaf) is not None
    except TypeError:
        return False


def require_batch(name: str, batch: Any) -> None:
    """A pytree of arrays with one leading axis in common, and at least one example."""
    require_leaves(name, batch, is_array, "arrays", BATCH)
    shapes = {leaf: np.shape(value) for leaf, value in trees.named(batch).items()}
    sizes = {shape[:1] for shape in shapes.values()}
    if len(sizes) > 1 or sizes & {(), (0,)}:
        found = ", ".join(f"{leaf} {list(shape)}" for leaf, shape in shapes.items())
        raise ArgumentsError(f"{name} holds {found}: give {BATCH}")


def require_function(name: str, function: Any, arguments: tuple) -> None:
    """A function of these arguments: state and batch, and perhaps a key."""
    if not callable(function):
        raise refuse(name, function, " cannot be called: give a function of (state, batch, key)")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions that are not written in Python do not tell
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        cure = f"give key={KEY}" if len(arguments) == 2 else "leave key out where both functions take (state, batch)"
        raise ArgumentsError(f"{name} is called with {len(arguments)} arguments, and {error}: {cure}") from None
