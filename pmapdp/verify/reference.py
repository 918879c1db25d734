"""Run the reference, which is a plain step for one device or made from the step itself, and measure its rounding.

`one_device` shows if the result depends on the number of devices, and `old_program` if
a port does what the program did under pmap, masks and statistics of each device
included.

Three more runs tell rounding from mistakes, from numbers changed by one unit in the
last place of the narrowest type in which the reference adds. A leaf may be off by a
multiple of its largest change in these runs, plus a fraction of its own change in the
update, for formulas that differ by more than rounding, plus some units in its own last
place. Whole numbers, truth values and keys must be equal.
"""

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from pmapdp.verify import trees
from pmapdp.verify.report import ArgumentsError, CheckError
from pmapdp.verify.trees import Leaves, few

UNEQUAL = 1e-3  # of the largest number of a leaf: how far the groups of an old program may be apart
SUMS = (
    "dot_general",
    "conv_general_dilated",
    "reduce_sum",
    "cumsum",
    "psum",
    "reduce_window_sum",
    "scatter-add",
)
SEEDS = 3
BLIND = 0.3  # tolerance as a fraction of a leaf's change: more is not compared
MOST_LEAVES = 32  # that are asked if anything depends on them
STILL = 1e-6  # of the largest change of the state: what changes less, and only by rounding, stands still


class OldProgram(NamedTuple):
    """The step of one device, to be mapped over groups of the batch on a single device."""

    step: Callable
    axis_name: Any
    groups: int


def one_device(step: Callable, axis_name: Any) -> Callable:
    """Make the reference of one device: the step over an axis of size 1, so that collectives return their argument."""

    def reference(*arguments: Any) -> Any:
        mapped = jax.vmap(lambda _, given: step(*given), (0, None), axis_name=axis_name)
        return jax.tree.map(lambda x: x[0], mapped(jnp.zeros(1), arguments))

    return reference


def old_program(step: Callable, axis_name: Any, groups: int) -> OldProgram | Callable:
    """Make the reference that does on one device what `jax.pmap(step, axis_name)` does on `groups` devices.

    The batch `[B, ...]` is cut into groups. Leaves that `per_device` of `verify` names
    are given and returned as `[groups, ...]`; all others must come out equal in all
    groups.
    """
    return (
        OldProgram(step, axis_name, groups)
        if groups > 1
        else one_device(step, axis_name)
    )


def step_arguments(state: Any, batch: Any, *key: Any) -> tuple[Any, ...]:
    """Return the arguments of a step: a batch that was not given is left out."""
    return (state, *key) if batch is None else (state, batch, *key)


def split_result(returned: Any, state: Any, who: str) -> dict[str, Any]:
    """Return the "state" and the "metrics" of what a step returned: the new state alone, or (state, metrics)."""
    form: Any = jax.tree.structure(state)
    pair = isinstance(returned, tuple | list) and len(returned) == 2
    for new, metrics in [(returned, {})] + ([tuple(returned)] if pair else []):
        if form == jax.tree.structure(new):
            return {"state": new, "metrics": metrics}
    had, has = (
        few(trees.leaves_by_name(tree))
        for tree in (state, returned[0] if pair else returned)
    )
    cure = "return the whole new state, in the structure of the old one, alone or as (state, metrics) (docs/verify.md)"
    raise CheckError(f"{who} returns {has} in place of {had}: {cure}", "FAILED")


class Update(NamedTuple):
    """One update of the reference, in host arrays as one device has them."""

    number: int  # from 0
    state: Any
    batch: Any
    key: tuple[Any, ...]  # with one key, or empty
    old: Leaves  # the leaves of the state
    values: Leaves  # what it returned: the new state and the metrics
    allowed: dict[str, float]  # how far each of these may be off
    # "close" and "exact" are compared; "blind" is not, because rounding hides it, nor
    # "ignored", which a device owns.
    kinds: dict[str, str]
    axis: int  # of the examples in the batch
    examples: int  # in the batch; 0 without one

    @property
    def arguments(self) -> tuple[Any, ...]:
        """State, batch and key."""
        return self.state, self.batch, *self.key

    def rows(self, index: Any) -> Any:
        """Return the examples at `index`, a slice or integers."""
        return jax.tree.map(
            lambda leaf: leaf[(slice(None),) * self.axis + (index,)], self.batch
        )


class Reference:
    """The reference as a function of (state, batch, key), of the whole batch or of one device's examples."""

    def __init__(self, given: Any, form: Any, per_device: Sequence[str], axis: int):
        self.step, self.axis_name, self.groups = (
            given if isinstance(given, OldProgram) else OldProgram(given, None, 0)
        )
        self.form, self.per_device, self.axis = form, per_device, axis
        device = (
            one_device(self.run_device, self.axis_name)
            if self.groups
            else self.run_device
        )
        self.jitted, self.jitted_device = jax.jit(self.run_all), jax.jit(device)
        self.prefix = (
            "returned "
            * any(name.startswith("metrics/") for name in trees.leaves_by_name(form))
            + "metrics/"
        )

    def is_own(self, path: str) -> bool:
        """Return True if each device has its own values of a leaf."""
        return trees.matches(path, self.per_device)

    def is_metric(self, path: str) -> bool:
        """Return True if a leaf is one of the metrics, and not of the state."""
        return path.startswith(self.prefix)

    def leaves(self, returned: dict[str, Any]) -> dict[str, Any]:
        """Return the leaves of the new state by their path, and the metrics as `metrics/path`."""
        metrics = {
            self.prefix + path: leaf
            for path, leaf in trees.leaves_by_name(returned["metrics"]).items()
        }
        return trees.leaves_by_name(returned["state"]) | metrics

    def values(self, returned: dict[str, Any]) -> Leaves:
        """Return the same as numbers on the host."""
        return {
            name: trees.numbers(leaf) for name, leaf in self.leaves(returned).items()
        }

    def run_device(
        self, device: Any, state: Any, batch: Any, *key: Any
    ) -> dict[str, Any]:
        """Return what one device makes, the "state" and the "metrics", from its row of each leaf of its own."""
        mine = trees.map_with_names(
            lambda path, x: x[device] if self.is_own(path) else x, state
        )
        key = tuple(x[device] if self.is_own("key") else x for x in key)
        return split_result(
            self.step(*step_arguments(mine, batch, *key)), self.form, "the reference"
        )

    def run_groups(self, state: Any, batch: Any, *key: Any) -> dict[str, Any]:
        """Return the same of all groups of an old program, each leaf `[groups, ...]`."""
        mapped = jax.vmap(
            self.run_device, (0, None, 0, *[None] * len(key)), axis_name=self.axis_name
        )
        return mapped(
            jnp.arange(self.groups),
            state,
            trees.split_rows(batch, self.groups, self.axis),
            *key,
        )

    def run_all(self, state: Any, batch: Any, *key: Any) -> dict[str, Any]:
        """Return what all devices make: of an old program the first group's leaves, but all groups' of their own."""
        if not self.groups:
            found = self.run_device(0, state, batch, *key)
            return found | {
                "state": jax.tree.map(
                    lambda x, old: jnp.broadcast_to(x, old.shape), found["state"], state
                )
            }

        def first(tree: Any, prefix: str) -> Any:
            return trees.map_with_names(
                lambda path, x: x if self.is_own(prefix + path) else x[0], tree
            )

        every = self.run_groups(state, batch, *key)
        return {
            "state": first(every["state"], ""),
            "metrics": first(every["metrics"], self.prefix),
        }

    def __call__(self, arguments: tuple, device: int | None = None) -> Leaves:
        """Return the leaves of the new state and of the metrics, of one device alone if its number is given."""
        found = (
            self.jitted(*arguments)
            if device is None
            else self.jitted_device(device, *arguments)
        )
        return self.values(found)

    def find_trained(self, names: Sequence[str], arguments: tuple) -> list[str]:
        """Return the leaves on which others depend, as on parameters. If there are none, return all."""

        def matters(name: str) -> bool:
            def shift(path: str, leaf: Any) -> Any:
                return (
                    np.asarray(leaf * 1.5 + 0.1, leaf.dtype)
                    if path == name and trees.is_float(leaf)
                    else leaf
                )

            found = self((trees.map_with_names(shift, arguments[0]), *arguments[1:]))
            return any(
                trees.distance(usual[each], found[each]) > 0
                for each in usual
                if each != name
            )

        usual, state = self(arguments), trees.leaves_by_name(arguments[0])
        names = [
            name for name in names if name in state and trees.is_float(state[name])
        ]
        others = [name for name in state if name not in names and not self.is_own(name)]
        trained = [name for name in names[:MOST_LEAVES] if matters(name)]
        return trained if trained or any(map(matters, others[:MOST_LEAVES])) else names

    def check(self, arguments: tuple) -> np.dtype:
        """Return the type that sets the tolerances, and refuse a reference or a `per_device` that cannot be used."""
        if isinstance(self.step, types.FunctionType) and hasattr(
            self.step, "lower"
        ):  # jit returns a type of its own
            raise ArgumentsError(
                "the reference is mapped by pmap: give the function in it, step.__wrapped__"
            )
        try:
            traced = self.jitted.trace(*arguments)
        except CheckError as error:
            raise ArgumentsError(str(error)) from None
        leaves = self.leaves(traced.out_info)
        for name in self.per_device:
            if not any(trees.matches(path, [name]) for path in (*leaves, "key")):
                raise ArgumentsError(
                    f"per_device: there is no leaf {name!r} among {few(leaves)} and key"
                )
        found = self.values(jax.jit(self.run_groups)(*arguments)) if self.groups else {}
        apart = {
            n: trees.distance(x, np.broadcast_to(x[:1], x.shape))
            for n, x in found.items()
            if not self.is_own(n)
        }
        names = [
            name
            for name, far in apart.items()
            if far > UNEQUAL * trees.distance(found[name])
        ]
        own = f"per_device={[*self.per_device, *names]}, in the state as [{self.groups}, ...]"
        cure = f"if each device is meant to have its own, give {own}"
        if names and (trained := self.find_trained(names, arguments)):
            names = trained
            cure = "the next update depends on them, so average the gradients in the old program with lax.pmean"
        if names:
            raise ArgumentsError(
                f"the groups of old_program return different values of {', '.join(names)}: {cure}"
            )
        return narrowest_sum(traced, arguments[0])

    def make_updates(
        self, state: Any, batches: list[Any], keys: Sequence[tuple], narrowest: np.dtype
    ) -> list[Update]:
        """Make one update on each batch, with the tolerance of every leaf. Not-a-number is refused."""
        updates = []
        # Below float32, an eighth of a unit: then an eighth of the numbers is rounded
        # the other way.
        unit = float(jnp.finfo(narrowest).eps) / (1 if narrowest.itemsize >= 4 else 8)
        for number, (batch, key) in enumerate(zip(batches, keys, strict=True)):
            new = trees.to_host(self.jitted(state, batch, *key))
            others = [
                self((nudge(state, unit, n), nudge(batch, unit, n + SEEDS), *key))
                for n in range(SEEDS)
            ]
            old, values = self.values({"state": state, "metrics": {}}), self.values(new)
            allowed, kinds = self.tolerances(old, new, others, narrowest)
            if nan := [
                n
                for n, x in values.items()
                if kinds[n] == "close" and np.isnan(x).any()
            ]:
                why = f"{few(nan)} is NaN after update {number + 1}, in the reference too, and nothing equals NaN"
                raise ArgumentsError(
                    f"{why}: give a state and data with which it is a number"
                )
            examples = next(
                (np.shape(leaf)[self.axis] for leaf in jax.tree.leaves(batch)), 0
            )
            updates.append(
                Update(
                    number,
                    state,
                    batch,
                    key,
                    old,
                    values,
                    allowed,
                    kinds,
                    self.axis,
                    examples,
                )
            )
            state = new["state"]
        return updates

    def tolerances(
        self, old: Leaves, new: Any, others: list[Leaves], narrowest: np.dtype
    ) -> tuple[dict, dict]:
        """Return how far each `new` leaf may be off, and its kind; `others` were made of nudged numbers."""
        half = (2, 4 * float(jnp.finfo(narrowest).eps))
        times, fraction = {8: (8, 1e-7), 4: (4, 7e-4)}.get(narrowest.itemsize, half)
        allowed, kinds, changes = (
            dict[str, float](),
            dict[str, str](),
            dict[str, float](),
        )
        for name, leaf in self.leaves(new).items():
            value = trees.numbers(leaf)
            spread = max(trees.distance(other[name], value) for other in others)
            is_float, allowed[name] = value.dtype.kind == "f", 0.0
            kinds[name] = "close" if is_float else "blind" if spread else "exact"
            if not self.groups and self.is_own(name):
                kinds[name] = "ignored"
            elif is_float and np.isfinite(value).all():
                size, unit = trees.distance(value), float(jnp.finfo(leaf.dtype).eps)
                change = (
                    size if self.is_metric(name) else trees.distance(value, old[name])
                )
                rounded = (4 if unit < 1e-6 else 2) * unit * max(size, change)
                allowed[name] = times * spread + fraction * change + rounded
                # What is stored in a narrow type is judged by its size, because it is
                # rounded to that.
                changes[name] = change if unit < 1e-6 else max(size, change)
        still = STILL * max(
            (change for name, change in changes.items() if not self.is_metric(name)),
            default=0.0,
        )
        for name, change in changes.items():
            if allowed[name] > BLIND * change > 0:
                allowed[name] = max(allowed[name], still)
                if (
                    self.is_metric(name) or change >= still
                ):  # otherwise rounding makes it of a gradient of 0
                    kinds[name] = "blind"
        return allowed, kinds


def nudge(tree: Any, unit: float, seed: int) -> Any:
    """Change every number by up to `unit` of itself; not whole numbers, which are counts, weights and labels."""
    random = np.random.default_rng(seed)

    def change(leaf: Any) -> Any:
        if not trees.is_float(leaf):
            return leaf
        changed = np.asarray(
            leaf * (1 + unit * random.uniform(-1, 1, np.shape(leaf))), leaf.dtype
        )
        return np.where(leaf == np.round(leaf), leaf, changed)

    return jax.tree.map(change, tree)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield every operation of a traced program, also of the programs in it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def narrowest_sum(traced: Any, state: Any) -> np.dtype:
    """Return the narrowest type in which a program adds numbers, or returns what it was given in a wider one."""
    sums = [
        each for each in equations(traced.jaxpr.jaxpr) if each.primitive.name in SUMS
    ]
    found = {
        variable.aval.dtype
        for each in sums
        for variable in (*each.invars, *each.outvars)
    }
    pairs = zip(
        jax.tree.leaves(state), jax.tree.leaves(traced.out_info["state"]), strict=True
    )
    found |= {
        new.dtype
        for old, new in pairs
        if not trees.is_key(new) and new.dtype != jnp.result_type(old)
    }
    floats = [dtype for dtype in found if jnp.issubdtype(dtype, jnp.floating)]
    return np.dtype(
        max(floats, key=lambda dtype: float(jnp.finfo(dtype).eps), default=np.float64)
    )
