"""The reference: a plain step for one device, or one of the two that are made from the step itself.

    step = ...  # what pmap or shard_map maps: one device's part of the work, with collectives
    verify(step=jax.pmap(step, "batch"), reference=one_device(step, "batch"), ...)
    verify(step=ported, reference=old_program(step, "batch", groups=8), per_device=["dropout_rng", "batch_stats"], ...)

`one_device` shows if the result depends on the number of devices. It can't see a mistake that is made on a single
device too: a wrong learning rate, or a key that stands still. `old_program` shows if a port does what the program did
under pmap, masks and statistics of each device included. It can't see a mistake that the old program made.
"""

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.report import FAILED, ArgumentsError, CheckError
from pmapdp.verify.trees import Leaves, few

UNEQUAL = 1e-3  # of the largest number of a leaf: how far the groups of an old program may be apart


class Grouped(NamedTuple):
    """The step of one device, mapped over groups of the batch on a single device."""

    step: Callable
    axis_name: Any
    groups: int

    def __call__(self, *arguments: Any) -> Any:
        """Run the step of one device over an axis of size 1."""
        mapped = jax.vmap(lambda _, given: self.step(*given), (0, None), axis_name=self.axis_name)
        return jax.tree.map(lambda x: x[0], mapped(jnp.zeros(1), arguments))


def one_device(step: Callable, axis_name: Any) -> Grouped:
    """Make the reference of one device: the step over an axis of size 1, so that collectives return their argument."""
    return Grouped(step, axis_name, 1)


def old_program(step: Callable, axis_name: Any, groups: int) -> Grouped:
    """Make the reference that does on one device what `jax.pmap(step, axis_name)` does on `groups` devices.

    The batch `[B, ...]` is cut into groups. Leaves that `per_device` of `verify` names are given and returned as
    `[groups, ...]`; all others must come out equal in all groups.
    """
    return Grouped(step, axis_name, groups)


def present(state: Any, batch: Any, *key: Any) -> tuple[Any, ...]:
    """Return the arguments of a step: a batch that was not given is left out."""
    return (state, *key) if batch is None else (state, batch, *key)


def split_result(returned: Any, state: Any, who: str) -> dict[str, Any]:
    """Return the "state" and the "metrics" of what a step returned: the new state alone, or (state, metrics)."""
    form: Any = jax.tree.structure(state)
    pair = isinstance(returned, tuple | list) and len(returned) == 2
    for new, metrics in [(returned, {})] + ([tuple(returned)] if pair else []):
        if form == jax.tree.structure(new):
            return {"state": new, "metrics": metrics}
    had, has = trees.named(state), trees.named(returned[0] if pair else returned)
    if pair and has and set(has) < set(had):
        what = f"no new {few(name for name in had if name not in has)}: return the whole state"
    else:
        what = f"{len(returned)} values" if isinstance(returned, tuple | list) else f"a {type(returned).__name__}"
        what += f": return the new state, in the form of `state` (its leaves: {few(had)}), or (state, metrics)"
    raise CheckError(f"{who} returns {what}, in a function around your step (docs/verify.md)", FAILED, "error")


class Reference:
    """The reference as a function of (state, batch, key), of the whole batch or of one device's examples."""

    def __init__(self, given: Any, form: Any, per_device: Sequence[str], axis: int):
        self.given, self.form, self.per_device, self.axis = given, form, per_device, axis
        self.groups = given.groups if isinstance(given, Grouped) else 0
        self.jitted, self.jitted_alone = jax.jit(self.whole), jax.jit(self.alone)
        self.prefix = "returned " * any(name.startswith("metrics/") for name in trees.named(form)) + "metrics/"

    def is_own(self, path: str) -> bool:
        """Return True if each device has its own values of a leaf."""
        return trees.matches(path, self.per_device)

    def is_metric(self, path: str) -> bool:
        """Return True if a leaf is one of the metrics, and not of the state."""
        return path.startswith(self.prefix)

    def leaves(self, returned: dict[str, Any]) -> dict[str, Any]:
        """Return the leaves of the new state by their path, and the metrics as `metrics/path`."""
        metrics = {self.prefix + path: leaf for path, leaf in trees.named(returned["metrics"]).items()}
        return trees.named(returned["state"]) | metrics

    def values(self, returned: dict[str, Any]) -> Leaves:
        """Return the same as numbers on the host."""
        return {name: trees.numbers(leaf) for name, leaf in self.leaves(returned).items()}

    def alone(self, device: Any, state: Any, batch: Any, *key: Any) -> dict[str, Any]:
        """Do what one device does alone, with its row of each leaf `[N, ...]` that belongs to a device."""
        if self.groups:
            state = trees.map_named(lambda path, x: x[device] if self.is_own(path) else x, state)
            batch = jax.tree.map(lambda x: x[device], batch) if self.is_own("batch") else batch
            key = tuple(x[device] if self.is_own("key") else x for x in key)
        return split_result(self.given(*present(state, batch, *key)), self.form, "the reference")

    def every_group(self, state: Any, batch: Any, *key: Any) -> dict[str, Any]:
        """Do what all groups of an old program do: all that is returned is `[groups, ...]`."""

        def cut(leaf: Any) -> Any:
            shape, axis = np.shape(leaf), self.axis
            if shape[axis] % self.groups:
                raise ArgumentsError(f"{shape[axis]} examples do not divide over {self.groups} groups of old_program")
            return jnp.moveaxis(leaf.reshape(*shape[:axis], self.groups, -1, *shape[axis + 1 :]), axis, 0)

        def step(_: Any, *arguments: Any) -> dict[str, Any]:
            return split_result(self.given.step(*present(*arguments)), self.form, "the reference")

        axes = trees.map_named(lambda path, leaf: 0 if self.is_own(path) else None, state)
        in_axes = (0, axes, 0, *[0 if self.is_own("key") else None] * len(key))
        batch = batch if self.is_own("batch") else jax.tree.map(cut, batch)
        return jax.vmap(step, in_axes, axis_name=self.given.axis_name)(jnp.zeros(self.groups), state, batch, *key)

    def whole(self, state: Any, batch: Any, *key: Any) -> dict[str, Any]:
        """Return the new "state" and the "metrics". An old program gives its first group's, or each group's own."""
        if self.groups <= 1:
            found = self.alone(0, state, batch, *key)
            return found | {"state": jax.tree.map(lambda x, old: jnp.broadcast_to(x, old.shape), found["state"], state)}

        def first(tree: Any, prefix: str) -> Any:
            return trees.map_named(lambda path, x: x if self.is_own(prefix + path) else x[0], tree)

        every = self.every_group(state, batch, *key)
        return {"state": first(every["state"], ""), "metrics": first(every["metrics"], self.prefix)}

    def __call__(self, arguments: tuple, device: int | None = None) -> Leaves:
        """Return the leaves of the new state and of the metrics, of one device alone if its number is given."""
        found = self.jitted(*arguments) if device is None else self.jitted_alone(device, *arguments)
        return self.values(found)

    def matters(self, name: str, arguments: tuple) -> bool:
        """Return True if other leaves change with the old value of this one: with a parameter, not with a statistic."""

        def shift(path: str, leaf: Any) -> Any:
            return np.asarray(leaf * 1.5 + 0.1, leaf.dtype) if path == name and trees.is_float(leaf) else leaf

        usual, other = self(arguments), self((trees.map_named(shift, arguments[0]), *arguments[1:]))
        return any(trees.distance(usual[each], other[each]) > 0 for each in usual if each != name)

    def check(self, arguments: tuple) -> None:
        """Refuse a reference that takes other arguments, returns no new state, or lacks a leaf of `per_device`."""
        names = [name for name, given in zip(("state", "batch", "key"), arguments, strict=False) if given is not None]
        function: Any = self.given.step if self.groups else self.given
        if isinstance(function, types.FunctionType) and hasattr(
            function, "lower"
        ):  # pmap returns one, jit its own type
            raise ArgumentsError("the reference is mapped by pmap: give the function in it, step.__wrapped__")
        try:
            inspect.signature(function).bind(*names)
        except TypeError:
            raise ArgumentsError(
                f"the reference takes {inspect.signature(function)}, and verify calls it with ({', '.join(names)}): "
                f"give what is missing, or put a function around step and reference (docs/verify.md)"
            ) from None
        try:
            leaves = self.leaves(jax.eval_shape(self.whole, *arguments))
        except CheckError as error:
            raise ArgumentsError(str(error)) from None
        for name in self.per_device:
            if not any(trees.matches(path, [name]) for path in (*leaves, "batch", "key")):
                raise ArgumentsError(f"per_device: there is no leaf {name!r} among {few(leaves)}, batch and key")

    def require_equal_groups(self, arguments: tuple) -> None:
        """Refuse an old program whose groups end with different values of a leaf that `per_device` does not name."""
        if self.groups <= 1:
            return
        found = self.values(jax.jit(self.every_group)(*arguments))
        names = [
            name
            for name, x in found.items()
            if trees.distance(x, np.broadcast_to(x[:1], x.shape)) > UNEQUAL * trees.distance(x)
            and not self.is_own(name)
        ]
        others = [name for name in trees.named(arguments[0]) if name not in names and not self.is_own(name)]
        is_alone = not any(self.matters(name, arguments) for name in others)  # then a parameter looks like a statistic
        floats = [name for name in names if not self.is_metric(name) and found[name].dtype.kind == "f"]
        if trained := [name for name in floats if is_alone or self.matters(name, arguments)]:
            raise ArgumentsError(
                f"the groups of old_program return different values of {few(trained)}, on which the next update "
                f"depends: an all-reduce is missing in the old program. Average the gradients with lax.pmean"
            )
        if names:
            raise ArgumentsError(
                f"the groups of old_program return different values of {', '.join(names)}: if each device is meant to "
                f"have its own, give per_device={[*self.per_device, *names]}, in the state as [{self.groups}, ...]"
            )
