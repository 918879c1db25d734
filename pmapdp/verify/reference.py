"""Run the reference, and measure what rounding does to it.

The reference is a plain step for one device, or it's made from the step itself:
`one_device` shows if the result depends on the number of devices, and `old_program` if
a port does what the program did under pmap, masks and statistics of each device
included.

Three more runs tell rounding from mistakes, from numbers changed by one unit in the
last place of the narrowest type in which the reference adds. A leaf may be off by a
multiple of its largest change in these runs, plus a fraction of its own change in the
update, for formulas that differ by more than rounding, plus some units in its own last
place. Whole numbers, truth values and keys must be equal.
"""

import contextlib
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from pmapdp.verify import trees
from pmapdp.verify.report import ArgumentsError, CheckError
from pmapdp.verify.table import few
from pmapdp.verify.trees import Leaves, distance

SHOWN_NAMES = 5  # of leaves, in a message
# The groups of an old program may differ by this fraction of a leaf's largest number.
UNEQUAL = 1e-3
# Operations that add numbers, so that rounding depends on their order.
SUMS = (
    "dot_general",
    "conv_general_dilated",
    "reduce_sum",
    "cumsum",
    "psum",
    "reduce_window_sum",
    "scatter-add",
)
SEEDS = 3  # runs with nudged numbers
# By the bytes of the narrowest type: how many times the measured change a leaf may be
# off, and which fraction of its change in the update.
TOLERANCES = {8: (8, 1e-7), 4: (4, 7e-4)}
BLIND = 0.3  # tolerance as a fraction of a leaf's change: more is not compared
# A leaf stands still if it changes by less than this fraction of the largest change of
# the state, and only by rounding.
STILL = 1e-6
# What says how many devices there are, also where an axis has the size 1.
COUNTS = (
    "device_count",
    "devices",
    "local_device_count",
    "local_devices",
    "process_count",
)


class OldProgram(NamedTuple):
    """The step of one device, to be mapped over groups of the batch on one device."""

    step: Callable
    axis_name: Any
    groups: int


def one_device(step: Callable, axis_name: Any) -> Callable:
    """Make the reference of one device: the step over an axis of size 1.

    There collectives return their argument. A step that reads `jax.device_count()` is
    refused, because that isn't 1.
    """
    return partial(run_on_one_device, step, axis_name)


def run_on_one_device(step: Callable, axis_name: Any, *arguments: Any) -> Any:
    """Run a step over an axis of size 1, and refuse it if it counts the devices."""
    with refuse_counts():
        return map_over_one(step, axis_name, *arguments)


def map_over_one(step: Callable, axis_name: Any, *arguments: Any) -> Any:
    """Run a step over an axis of size 1."""
    mapped = jax.vmap(
        lambda _, arguments_of_one: step(*arguments_of_one),
        (0, None),
        axis_name=axis_name,
    )
    return jax.tree.map(lambda x: x[0], mapped(jnp.zeros(1), arguments))


@contextlib.contextmanager
def refuse_counts() -> Iterator[None]:
    """Raise an error where a step that is traced asks JAX for the number of devices."""
    originals = {name: getattr(jax, name) for name in COUNTS}

    def refuse(name: str, *_: Any, **__: Any) -> None:
        raise ArgumentsError(
            f"the step calls jax.{name}(), which says the same when one_device runs "
            "it over an axis of size 1, so it can't be its own reference: let it call "
            "lax.axis_size(axis_name), or write a reference without collectives"
        )

    for name in COUNTS:
        setattr(jax, name, partial(refuse, name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(jax, name, original)


def old_program(step: Callable, axis_name: Any, groups: int) -> OldProgram | Callable:
    """Make the reference that does on one device what pmap does on several.

    The batch `[B, ...]` is cut into groups. Leaves that `per_device` of `verify` names
    are given and returned as `[groups, ...]`; all others must come out equal in all
    groups.
    """
    if groups == 1:
        return one_device(step, axis_name)
    return OldProgram(step, axis_name, groups)


def step_arguments(state: Any, batch: Any, *key: Any) -> tuple[Any, ...]:
    """Return the arguments of a step: a batch that was not given is left out."""
    return (state, *key) if batch is None else (state, batch, *key)


def split_result(returned: Any, state: Any, who: str) -> dict[str, Any]:
    """Split what a step returned into the "state" and the "metrics".

    It returns the new state alone, or (state, metrics).
    """
    form: Any = jax.tree.structure(state)
    if form == jax.tree.structure(returned):
        return {"state": returned, "metrics": {}}
    new = returned
    if isinstance(returned, tuple | list) and len(returned) == 2:
        new, metrics = returned
        if form == jax.tree.structure(new):
            return {"state": new, "metrics": metrics}
    has = few(trees.leaves_by_name(new))
    had = few(trees.leaves_by_name(state))
    raise CheckError(
        f"{who} returns {has} in place of {had}: return the whole new state, in the "
        "structure of the old one, alone or as (state, metrics) (docs/verify.md)",
        "FAILED",
    )


class ReferenceUpdate(NamedTuple):
    """One update of the reference, in host arrays as one device has them.

    Attributes:
        number: The number of the update, from 0.
        state: Before the update.
        batch: None if there is none.
        key: With one key, or empty.
        old: The leaves of the state.
        values: What the reference returned: the new state and the metrics.
        allowed: How far each of these may be off.
        kinds: "close" and "exact" are compared; "blind" is not, because rounding hides
            it, nor "ignored", which a device owns.
        axis: The axis of the examples in the batch.
    """

    number: int
    state: Any
    batch: Any
    key: tuple[Any, ...]
    old: Leaves
    values: Leaves
    allowed: dict[str, float]
    kinds: dict[str, str]
    axis: int

    @property
    def examples(self) -> int:
        """Return the number of examples in the batch, or 0 without a batch."""
        leaves = jax.tree.leaves(self.batch)
        return np.shape(leaves[0])[self.axis] if leaves else 0

    @property
    def arguments(self) -> tuple[Any, ...]:
        """State, batch and key."""
        return self.state, self.batch, *self.key

    @property
    def compared(self) -> list[str]:
        """The leaves that are compared."""
        return [name for name in self.kinds if self.kinds[name] in ("close", "exact")]

    @property
    def blind(self) -> list[str]:
        """The leaves that rounding hides."""
        return [name for name in self.kinds if self.kinds[name] == "blind"]

    def refuse_nan(self) -> None:
        """Raise an error if a result is NaN, which nothing equals."""
        nan = [name for name in self.compared if np.isnan(self.values[name]).any()]
        if nan:
            raise ArgumentsError(
                f"{few(nan)} is NaN after update {self.number + 1}, in the reference "
                "too, and nothing equals NaN: give a state and data with which it is a "
                "number"
            )

    def rows(self, index: np.ndarray) -> Any:
        """Return the examples at these places."""
        places = (*[slice(None)] * self.axis, index)
        return jax.tree.map(lambda leaf: leaf[places], self.batch)  # keys, too


class Reference:
    """The reference as a function of (state, batch, key).

    It takes the whole batch, or one device's examples and its number.
    """

    def __init__(
        self, given: Any, form: Any, per_device: str | Sequence[str], axis: int
    ):
        self.step = given
        self.axis_name: Any = None
        self.groups = 0
        self.unseen = ""
        run_part: Callable = self.run_device
        if isinstance(given, OldProgram):
            self.step, self.axis_name, self.groups = given
            self.unseen = (
                "a sum in place of a mean, or any other factor, that is in the program "
                "of which the reference is made, too."
            )
            run_part = partial(map_over_one, self.run_device, self.axis_name)
        elif isinstance(given, partial) and given.func is run_on_one_device:
            self.unseen = (
                "what is wrong on a single device, too, because the reference is made "
                "from the step. That holds for a number of devices that was read "
                "before the step is traced, as in N = jax.device_count()."
            )
        self.form = form
        self.per_device = per_device
        if isinstance(per_device, str):
            self.per_device = [per_device]
        self.axis = axis
        self.jitted = jax.jit(self.run_all)
        self.jitted_device = jax.jit(run_part)
        self.prefix = "metrics/"
        if any(name.startswith("metrics/") for name in trees.leaves_by_name(form)):
            self.prefix = "returned metrics/"

    def is_own(self, path: str) -> bool:
        """Return True if each device has its own values of a leaf."""
        return trees.matches(path, self.per_device)

    def is_metric(self, path: str) -> bool:
        """Return True if a leaf is one of the metrics, and not of the state."""
        return path.startswith(self.prefix)

    def leaves(self, returned: dict[str, Any]) -> dict[str, Any]:
        """Return the leaves of the state by path, and the metrics as `metrics/path`."""
        by_name = trees.leaves_by_name(returned["state"])
        for path, leaf in trees.leaves_by_name(returned["metrics"]).items():
            by_name[self.prefix + path] = leaf
        return by_name

    def values(self, returned: dict[str, Any]) -> Leaves:
        """Return the same as numbers on the host."""
        leaves = self.leaves(returned)
        return {name: trees.numbers(leaf) for name, leaf in leaves.items()}

    def run_device(
        self, device: Any, state: Any, batch: Any, *key: Any
    ) -> dict[str, Any]:
        """Return the "state" and the "metrics" that one device makes.

        Of leaves of its own, it takes its row.
        """
        mine = trees.map_with_names(
            lambda path, x: x[device] if self.is_own(path) else x, state
        )
        if self.is_own("key"):
            key = tuple(x[device] for x in key)
        returned = self.step(*step_arguments(mine, batch, *key))
        return split_result(returned, self.form, "the reference")

    def run_groups(self, state: Any, batch: Any, *key: Any) -> dict[str, Any]:
        """Return the same of all groups of an old program, as `[groups, ...]`."""
        rows = trees.split_rows(batch, self.groups, self.axis)

        def run_group(device: Any, rows: Any) -> dict[str, Any]:
            return self.run_device(device, state, rows, *key)

        mapped = jax.vmap(run_group, axis_name=self.axis_name)
        return mapped(jnp.arange(self.groups), rows)

    def run_all(self, state: Any, batch: Any, *key: Any) -> dict[str, Any]:
        """Return what all devices make.

        Of an old program that is the first group's leaves, but all groups' of their
        own.
        """
        if not self.groups:
            returned = self.run_device(0, state, batch, *key)
            # A leaf of each device's own has as many rows as were given.
            new = jax.tree.map(
                lambda x, old: jnp.broadcast_to(x, old.shape), returned["state"], state
            )
            return {"state": new, "metrics": returned["metrics"]}

        def take_first(tree: Any, prefix: str) -> Any:
            return trees.map_with_names(
                lambda path, x: x if self.is_own(prefix + path) else x[0], tree
            )

        every = self.run_groups(state, batch, *key)
        return {
            "state": take_first(every["state"], ""),
            "metrics": take_first(every["metrics"], self.prefix),
        }

    def __call__(self, arguments: tuple, device: int | None = None) -> Leaves:
        """Return the new state and the metrics, of one device alone if it's given."""
        if device is None:
            return self.values(self.jitted(*arguments))
        return self.values(self.jitted_device(device, *arguments))

    def find_uses(self, names: Sequence[str], arguments: tuple) -> dict[str, list[str]]:
        """Ask if other results depend on some leaves, as they do on parameters.

        Leaves are shifted, and what moves is seen. Leaves of one kind, such as all
        kernels of the parameters, are shifted together: models have many. A leaf on
        which a used leaf depends is used, too, as momentum is.

        Returns:
            The leaves of the state among `names` by what was found: "used" or "unused",
            or "alone" if the state has no other array of fractions.
        """
        state = trees.leaves_by_name(arguments[0])
        floats = [name for name in state if trees.is_float(state[name])]
        asked = [name for name in floats if name in names]
        others = set(floats).difference(names)
        is_alone = all(np.size(state[name]) == 1 for name in others)
        usual = self(arguments)
        moved_by = []
        for group in group_by_ends(asked):
            moved = self.find_moved(group, usual, arguments) - group
            moved_by.append((group, moved))
        users = set(usual).difference(names)
        for _ in moved_by:  # the users of users
            for group, moved in moved_by:
                if moved & users:
                    users |= group
        used = [name for name in asked if name in users]
        if is_alone and not used:
            return {"alone": asked}
        return {"used": used, "unused": [name for name in asked if name not in users]}

    def find_moved(
        self, group: Collection[str], usual: Leaves, arguments: tuple
    ) -> set[str]:
        """Return the results that move if these leaves of the state are shifted."""

        def shift(path: str, leaf: Any) -> Any:
            if path not in group:
                return leaf
            return np.asarray(leaf * 1.5 + 0.1, leaf.dtype)

        shifted = trees.map_with_names(shift, arguments[0])
        results = self((shifted, *arguments[1:]))
        # A scale that is multiplied in and divided out again moves by rounding.
        return {
            name
            for name, value in usual.items()
            if distance(value, results[name]) > 1e-6 * distance(value)
        }

    def check(self, arguments: tuple) -> np.dtype:
        """Return the type that sets the tolerances.

        Raises:
            ArgumentsError: If the reference or `per_device` can't be used.
        """
        # jit returns a type of its own, and pmap a function.
        if isinstance(self.step, types.FunctionType) and hasattr(self.step, "lower"):
            raise ArgumentsError(
                "the reference is mapped by pmap: give the function in it, "
                "step.__wrapped__"
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
        if self.groups:
            self.check_groups(arguments)
        return narrowest_sum(traced, arguments[0])

    def check_groups(self, arguments: tuple) -> None:
        """Refuse an old program whose groups return different values."""
        values_by_name = self.values(jax.jit(self.run_groups)(*arguments))
        names = []
        for name, values in values_by_name.items():
            spread = distance(values, np.broadcast_to(values[:1], values.shape))
            if not self.is_own(name) and spread > UNEQUAL * distance(values):
                names.append(name)
        if not names:
            return
        own = [*self.per_device, *names[:SHOWN_NAMES]]
        raise ArgumentsError(
            f"the groups of old_program return different values of {few(names)}: if "
            f"each device is meant to have its own, give per_device={own}, in the "
            f"state as [{self.groups}, ...]; otherwise average the gradients in the "
            "old program with lax.pmean"
        )

    def make_updates(
        self, state: Any, batches: list[Any], keys: Sequence[tuple], narrowest: np.dtype
    ) -> list[ReferenceUpdate]:
        """Make one update on each batch, with the tolerance of every leaf.

        Raises:
            ArgumentsError: If a result is NaN, which nothing equals.
        """
        # Below float32, an eighth of a unit: then an eighth of the numbers is rounded
        # the other way.
        unit = float(jnp.finfo(narrowest).eps)
        if narrowest.itemsize < 4:
            unit /= 8
        updates = []
        for number, (batch, key) in enumerate(zip(batches, keys, strict=True)):
            new = trees.to_host(self.jitted(state, batch, *key))
            nudged = []
            for seed in range(SEEDS):
                near_state = nudge(state, unit, seed)
                near_batch = nudge(batch, unit, seed + SEEDS)
                nudged.append(self((near_state, near_batch, *key)))
            old = self.values({"state": state, "metrics": {}})
            values = self.values(new)
            allowed, kinds = self.measure_tolerances(old, new, nudged, narrowest)
            update = ReferenceUpdate(
                number, state, batch, key, old, values, allowed, kinds, self.axis
            )
            update.refuse_nan()
            updates.append(update)
            state = new["state"]
        return updates

    def measure_tolerances(
        self, old: Leaves, new: Any, nudged: list[Leaves], narrowest: np.dtype
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Return how far each leaf may be off, and its kind.

        `nudged` are results from numbers that were changed by rounding.
        """
        narrow = (2, 4 * float(jnp.finfo(narrowest).eps))
        times, fraction = TOLERANCES.get(narrowest.itemsize, narrow)
        allowed: dict[str, float] = {}
        kinds: dict[str, str] = {}
        changes: dict[str, float] = {}
        for name, leaf in self.leaves(new).items():
            value = trees.numbers(leaf)
            spread = max(distance(near[name], value) for near in nudged)
            allowed[name] = 0.0
            kinds[name] = "exact"
            if not self.groups and self.is_own(name):
                kinds[name] = "ignored"
            elif value.dtype.kind == "f":
                kinds[name] = "close"
            elif spread:
                kinds[name] = "blind"
            if kinds[name] == "close" and np.isfinite(value).all():
                size = distance(value)
                change = size
                if not self.is_metric(name):
                    change = distance(value, old[name])
                unit = float(jnp.finfo(leaf.dtype).eps)
                units = 4
                changes[name] = change
                # What is stored in a narrow type is rounded to that, so it's judged
                # by its size.
                if unit > 1e-6:
                    units = 2
                    changes[name] = max(size, change)
                rounded = units * unit * max(size, change)
                allowed[name] = times * spread + fraction * change + rounded
        self.hide_rounding(allowed, kinds, changes)
        return allowed, kinds

    def hide_rounding(
        self, allowed: dict[str, float], kinds: dict[str, str], changes: dict
    ) -> None:
        """Mark the leaves that rounding decides, which are not compared."""
        of_state = [
            change for name, change in changes.items() if not self.is_metric(name)
        ]
        still = STILL * max(of_state, default=0.0)
        for name, change in changes.items():
            if allowed[name] > BLIND * change > 0:
                allowed[name] = max(allowed[name], still)
                # Below `still`, rounding makes the change from a gradient of 0.
                if self.is_metric(name) or change >= still:
                    kinds[name] = "blind"


def group_by_ends(names: Sequence[str]) -> list[set[str]]:
    """Group leaves by the first and the last part of their paths."""
    groups: dict[tuple[str, str], set[str]] = {}
    for name in names:
        parts = name.removesuffix("/value").split("/")  # of a variable of Flax NNX
        groups.setdefault((parts[0], parts[-1]), set()).add(name)
    return list(groups.values())


def nudge(tree: Any, unit: float, seed: int) -> Any:
    """Change every number by up to `unit` of itself.

    Whole numbers stay: they are counts, weights and labels.
    """
    random = np.random.default_rng(seed)

    def change(leaf: Any) -> Any:
        if not trees.is_float(leaf):
            return leaf
        factor = 1 + unit * random.uniform(-1, 1, np.shape(leaf))
        return np.where(
            leaf == np.round(leaf), leaf, np.asarray(leaf * factor, leaf.dtype)
        )

    return jax.tree.map(change, tree)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield every operation of a traced program, also of the programs in it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def narrowest_sum(traced: Any, state: Any) -> np.dtype:
    """Return the narrowest type in which a program adds numbers.

    What it was given in a wider type than it returns counts, too.
    """
    dtypes = set()
    for equation in equations(traced.jaxpr.jaxpr):
        if equation.primitive.name in SUMS:
            for variable in (*equation.invars, *equation.outvars):
                dtypes.add(variable.aval.dtype)
    new_leaves = jax.tree.leaves(traced.out_info["state"])
    for old, new in zip(jax.tree.leaves(state), new_leaves, strict=True):
        if not trees.is_key(new) and new.dtype != jnp.result_type(old):
            dtypes.add(new.dtype)
    floats = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)]
    widest_unit = max(
        floats, key=lambda dtype: float(jnp.finfo(dtype).eps), default=np.float64
    )
    return np.dtype(widest_unit)
