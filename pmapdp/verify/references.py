"""Two ready references, made from the step itself: the program on one device, and the old program over N groups.

    step = ...  # what pmap or shard_map maps: one device's part of the work, with collectives
    verify(step=jax.pmap(step, "batch"), reference=one_device(step, "batch"), ...)
    verify(step=ported, reference=old_program(step, "batch", groups=8), per_device=["dropout_rng", "batch_stats"], ...)

`one_device` shows whether the result depends on the number of devices. It cannot see a mistake that is made on a single
device too: a wrong learning rate, or a key that stands still. `old_program` shows whether a port does what the program
did under pmap, masks and statistics of each device included. It cannot see a mistake that the old program made.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.report import ArgumentsError


class Grouped(NamedTuple):
    """The step of one device, mapped over groups of the batch on a single device."""

    step: Callable
    axis_name: Any
    groups: int

    def __call__(self, *arguments: Any) -> Any:
        """The step's result where there is one group; `verify` calls those of several, because it can cut the batch."""
        if self.groups != 1:
            raise ArgumentsError("give old_program(...) to verify as its reference, which cuts state and batch for it")
        returned: list[Any] = []  # what of the result is no array, which vmap does not take

        def inner(_: Any, given: tuple[Any, ...]) -> Any:
            returned.append(self.step(*trees.combine(given, arguments)))
            return trees.arrays(returned[0])

        mapped = jax.vmap(inner, (0, None), axis_name=self.axis_name, axis_size=1)
        found = jax.tree.map(lambda x: jax.lax.squeeze(x, (0,)), mapped(jnp.zeros(1), trees.arrays(arguments)))
        return trees.combine(found, returned[0])


def one_device(step: Callable, axis_name: Any) -> Grouped:
    """The reference of one device: the step over an axis of size 1, so that every collective returns its argument."""
    return Grouped(step, axis_name, 1)


def old_program(step: Callable, axis_name: Any, groups: int) -> Grouped:
    """The reference that does what `jax.pmap(step, axis_name)` does on `groups` devices, on one.

    The batch `[B, ...]` is cut into groups. Leaves that `per_device` of `verify` names are given and returned as
    `[groups, ...]`; all others must come out equal in all groups.
    """
    if not isinstance(groups, int) or groups < 1:
        raise ArgumentsError(f"groups={groups!r}: give the number of devices of the old program, for example 8")
    return Grouped(step, axis_name, groups)


def over_groups(
    given: Grouped, call: Callable[..., Any], per_device: Sequence[str], batch_axis: int
) -> Callable[..., Any]:
    """The function of (state, batch, key) that maps `call(step, state, batch, key)` over the groups.

    Every leaf that it returns has the axis of groups: `[groups, ...]`.
    """
    groups = given.groups

    def cut(leaf: Any) -> Any:
        shape = np.shape(leaf)
        if shape[batch_axis] % groups:
            raise ArgumentsError(
                f"{shape[batch_axis]} examples do not divide over the {groups} groups of old_program: give a multiple"
            )
        rows = jnp.reshape(leaf, (*shape[:batch_axis], groups, -1, *shape[batch_axis + 1 :]))
        return jnp.moveaxis(rows, batch_axis, 0)

    def reference(state: Any, batch: Any, *key: Any) -> Any:
        axes = trees.map_named(lambda path, leaf: 0 if trees.matches(path, per_device) else None, state)
        key_axis = 0 if trees.matches("key", per_device) else None
        mapped = jax.vmap(
            lambda _, *arguments: call(given.step, *arguments),
            in_axes=(0, axes, 0, *(key_axis for _ in key)),
            axis_name=given.axis_name,
            axis_size=groups,
        )
        batches = batch if trees.matches("batch", per_device) else jax.tree.map(cut, batch)
        return mapped(jnp.zeros(groups), state, batches, *key)

    return reference
