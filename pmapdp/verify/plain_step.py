"""The reference as the user gave it, as a function of (state, batch, key) that names what it returns."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.convention import Convention, find_convention
from pmapdp.verify.reference_program import Reference
from pmapdp.verify.references import Grouped, over_groups
from pmapdp.verify.report import ArgumentsError

UNEQUAL = 1e-3  # of the largest number of a leaf: how far the groups of an old program may be apart


class PlainStep:
    """A reference with the state that it starts from, and the names of the leaves that belong to a device."""

    def __init__(self, function: Callable, state: Any, own: Sequence[str], axis: int):
        self.function, self.state, self.own, self.axis = function, state, own, axis
        self.grouped = function if isinstance(function, Grouped) else None
        self.groups = function.groups if isinstance(function, Grouped) else 0

    def mine(self, path: str) -> bool:
        """Whether a leaf belongs to a device."""
        return trees.matches(path, self.own)

    def ignored(self, path: str) -> bool:
        """Whether a leaf belongs to a device, and the reference is that of one device."""
        return self.groups <= 1 and self.mine(path)

    def convention(self, batch: Any, key: tuple) -> Convention:
        """How it takes its arguments, and returns its results."""
        inner = self.grouped.step if self.grouped else self.function
        return find_convention(inner, self.every_group, self.state, batch, key)

    def every_group(self, convention: Convention) -> Callable[..., dict[str, Any]]:
        """The function of one device, or of all groups: then all that it returns is `[groups, ...]`."""
        if not self.grouped or not self.own:
            inner = convention
        else:  # of leaves `[N, ...]` that belong to a device, the step of one device has a row
            one = trees.map_named(lambda path, x: x[0] if self.mine(path) else x, self.state)
            inner = convention._replace(state=one, key=tuple(x[0] if self.mine("key") else x for x in convention.key))
        if self.grouped and self.groups > 1:
            return over_groups(self.grouped, inner.call, self.own, self.axis)
        if inner is convention:
            return functools.partial(convention.call, self.function)

        def first(state: Any, batch: Any, *key: Any) -> dict[str, Any]:
            """Of leaves `[N, ...]` that belong to a device, one device has the first."""
            one = trees.map_named(lambda path, x: x[0] if self.mine(path) else x, state)
            batch = jax.tree.map(lambda x: x[0], batch) if self.mine("batch") else batch
            found = inner.call(self.function, one, batch, *(x[0] if self.mine("key") else x for x in key))
            return found | {
                "state": jax.tree.map(lambda new, old: jnp.broadcast_to(new, old.shape), found["state"], state)
            }

        return first

    def reference(self, convention: Convention) -> Reference:
        """The plain step: of several groups the results of the first, but for leaves that belong to a device."""
        every = self.every_group(convention)
        if self.groups <= 1:
            return Reference(every)

        def first(*arguments: Any) -> dict[str, Any]:
            found = every(*arguments)
            key = found.pop("key", None)
            one = {part: trees.map_named(self.first_group, tree) for part, tree in found.items()}
            return one if key is None else one | {"key": self.first_group("key", key)}

        return Reference(first, whole=True)

    def first_group(self, path: str, leaf: Any) -> Any:
        """A leaf of all groups where it belongs to a device, else that of the first."""
        return leaf if self.mine(path) else jax.lax.index_in_dim(leaf, 0, keepdims=False)

    def leaf_names(self, convention: Convention, batch: Any, key: tuple) -> list[str]:
        """The names of the leaves of state and metrics."""
        found = jax.eval_shape(self.every_group(convention), trees.arrays(self.state), batch, *key)
        names: list[str] = []
        for part in ("state", "metrics"):
            trees.map_named(lambda path, leaf: names.append(path), found[part])
        return names

    def require_equal_groups(self, convention: Convention, state: Any, batch: Any, key: tuple) -> None:
        """The old program must leave all groups with equal values where no leaf is said to belong to a device."""
        if self.groups <= 1:
            return
        found = jax.jit(self.every_group(convention))(state, batch, *key)
        for part in ("state", "metrics"):
            for name, x in trees.values(found[part]).items():
                apart = trees.distance(x, np.broadcast_to(x[:1], x.shape))
                if not self.mine(name) and apart > UNEQUAL * trees.largest(x):
                    raise ArgumentsError(
                        f"the groups of old_program return different values of {name} in the {part}: name every leaf "
                        f"of which each device has its own, per_device={[*self.own, name]}, and give those of the "
                        f"state as [{self.groups}, ...]"
                    )
