"""The shapes of a state that a checkpoint holds, and of the one that it is to become."""

from typing import Any

import jax
import numpy as np

from pmapdp.errors import UserError
from pmapdp.state import Task, TrainState, initial_state


def shapes_of(state: TrainState) -> dict[str, list[int]]:
    """The shapes of the model's arrays, by their names."""
    arrays = jax.tree_util.tree_leaves_with_path((state.params, state.model_state))
    return {jax.tree_util.keystr(path[1:], simple=True, separator="."): list(leaf.shape) for path, leaf in arrays}


def require_same_model(what: str, theirs: dict[str, list[int]] | None, ours: dict[str, list[int]]) -> None:
    """Refuse a checkpoint, called `what`, of a model with other `shapes`; one of an earlier version has none."""
    theirs = ours if theirs is None else theirs
    for name in sorted(theirs.keys() | ours.keys()):
        if (then := theirs.get(name)) != (now := ours.get(name)):
            raise UserError(
                f"{what} is of another model, in which {name} has the shape {then}, now {now}: use the model as it "
                "was, or another folder"
            )


def template(task: Task, sharding: Any) -> TrainState:
    """A state without its numbers: shape, type and place of each array; `sharding` as for `Checkpoints.read`."""
    shapes = jax.eval_shape(lambda: initial_state(task))
    if sharding is None:
        return jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), shapes)
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        jax.tree.broadcast(sharding, shapes),
    )
