"""Run the reference: a plain step for one device, or one made from the step itself.

With `one_device`, `verify` shows if the result depends on the number of devices. With
`old_program`, it shows if a port does what the program did under pmap, with the masks
and statistics that each device had of its own.
"""

import contextlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.report import ArgumentsError, CheckError
from pmapdp.verify.thresholds import PREDICTION_TOLERANCE
from pmapdp.verify.trees import Leaves, distance, first_names

# Functions of JAX that count all devices, although the reference runs on one.
DEVICE_COUNTS = (
    "device_count",
    "devices",
    "host_count",
    "local_device_count",
    "local_devices",
    "process_count",
)
UNSEEN_BY_ONE_DEVICE = (
    "what is also wrong on a single device, because the reference is made from the "
    "step. If the step uses an N = jax.device_count() that was read outside of it, "
    "both have this N."
)
UNSEEN_BY_OLD_PROGRAM = (
    "what the old program also does wrong, because the reference is made from it: a "
    "sum instead of a mean, or any other factor."
)


class MappedStep(NamedTuple):
    """A step with collectives, which the reference maps over groups of the batch.

    Attributes:
        step: The step, before it is mapped.
        axis_name: The name of the axis in its collectives.
        groups: The number of groups, 1 for `one_device`.
    """

    step: Callable
    axis_name: Any
    groups: int


def one_device(step: Callable, axis_name: Any) -> MappedStep:
    """Make the reference of one device: the step over an axis of size 1.

    Over such an axis, a sum or a mean over devices is the device's own value. A step
    that calls `jax.device_count()` is refused, because the count isn't 1.

    Args:
        step: The step with its collectives, before it is mapped.
        axis_name: The name of the axis in these collectives.

    Returns:
        The `reference` for `verify`.

    Example:
        def step(w, batch):
            gradient = jax.grad(lambda w: jnp.square(batch @ w - 1).mean())(w)
            return w - 0.1 * jax.lax.pmean(gradient, "devices")


        reference = one_device(step, "devices")
    """
    return MappedStep(step, axis_name, groups=1)


def old_program(step: Callable, axis_name: Any, groups: int) -> MappedStep:
    """Make the reference that does on one device what pmap does on several.

    Take it for a step whose result depends on how the batch is split, for example
    because its batch norm sees one device's examples. The step takes and returns leaves
    that `per_device` of `verify` names as `[groups, ...]`. All other leaves must come
    out equal in all groups.

    Args:
        step: The step with its collectives, before it is mapped.
        axis_name: The name of the axis in these collectives.
        groups: The number of parts into which the batch `[B, ...]` is cut, as many as
            the old program had devices.

    Returns:
        The `reference` for `verify`.

    Example:
        def old_step(w, batch):
            gradient = jax.grad(lambda w: jnp.square(batch @ w - 1).mean())(w)
            return w - 0.1 * jax.lax.pmean(gradient, "devices")


        reference = old_program(old_step, "devices", groups=8)
    """
    return MappedStep(step, axis_name, groups)


@contextlib.contextmanager
def refuse_device_counts(step: Callable) -> Iterator[None]:
    """Raise an error if a step asks JAX for the number of devices while it's traced."""

    def refuse(name: str, *_: Any, **__: Any) -> None:
        raise ArgumentsError(
            f"the step calls jax.{name}(), which says the same when one_device runs "
            "it over an axis of size 1, so it can't be its own reference: let it call "
            "lax.axis_size(axis_name), or write a reference without collectives"
        )

    originals = {id(getattr(jax, name)): name for name in DEVICE_COUNTS}
    replaced = []
    for namespace in find_namespaces(step):
        for name, value in [*namespace.items()]:
            if id(value) in originals:
                namespace[name] = partial(refuse, originals[id(value)])
                replaced.append((namespace, name, value))
    try:
        yield
    finally:
        for namespace, name, value in replaced:
            namespace[name] = value


def find_namespaces(step: Callable) -> Iterator[dict[str, Any]]:
    """Yield the names of `jax`, of the step's file, and of all other modules.

    A module may have done `from jax import device_count`. JAX's own modules aren't
    among them, because they count devices for other reasons.
    """
    yield getattr(step, "__globals__", {})
    for name, module in [*sys.modules.items()]:
        if not name.startswith(("jax.", "jaxlib.")):
            yield getattr(module, "__dict__", {})


def split_result(returned: Any, state: Any, who: str) -> dict[str, Any]:
    """Split what a step returned into the "state" and the "metrics".

    A step returns the new state alone, or (state, metrics).
    """
    structure: Any = jax.tree.structure(state)
    if structure == jax.tree.structure(returned):
        return {"state": returned, "metrics": {}}
    new = returned
    if isinstance(returned, tuple | list) and len(returned) == 2:
        new, metrics = returned
        if structure == jax.tree.structure(new):
            return {"state": new, "metrics": metrics}
    new_names = first_names(trees.leaves_by_name(new))
    old_names = first_names(trees.leaves_by_name(state))
    raise CheckError(
        f"{who} returns {new_names} instead of {old_names}: return the whole new "
        "state, in the structure of the old one, alone or as (state, metrics) "
        "(docs/verify.md in pmapdp's repository)",
        "FAILED",
    )


class Reference:
    """The reference as a function of (state, batch, key).

    Attributes:
        step: The function that it calls.
        axis_name: The axis of the step's collectives, or None.
        groups: The number of groups into which it cuts the batch. Only an old program
            has more than 1.
        unseen: A sentence that says what this reference can't show.
        state: The state that training starts from, for its structure.
        per_device: Names in the paths of the leaves that each device has of its own.
        batch_axis: The axis of the examples in the batch.
        metric_prefix: The first part of the metrics' paths.
        jit_batch: `run_batch`, compiled.
        jit_device: `run_device`, compiled.
    """

    def __init__(
        self,
        reference: Any,
        state: Any,
        per_device: str | Sequence[str],
        batch_axis: int,
    ):
        self.step = reference
        self.axis_name = None
        self.groups = 1
        self.unseen = ""
        if isinstance(reference, MappedStep):
            self.step, self.axis_name, self.groups = reference
            self.unseen = UNSEEN_BY_ONE_DEVICE
            if self.groups > 1:
                self.unseen = UNSEEN_BY_OLD_PROGRAM
        self.state = state
        if isinstance(per_device, str):
            per_device = [per_device]
        self.per_device = per_device
        self.batch_axis = batch_axis
        # A state may also have leaves called `metrics/...`, as in Flax's examples.
        self.metric_prefix = "metrics/"
        if any(name.startswith("metrics/") for name in trees.leaves_by_name(state)):
            self.metric_prefix = "returned metrics/"
        self.jit_batch = jax.jit(self.run_batch)
        # It runs only once for each device, so the compiler's optimizations would take
        # longer than they save.
        self.jit_device = jax.jit(
            self.run_device, compiler_options={"xla_backend_optimization_level": 0}
        )

    def is_per_device(self, path: str) -> bool:
        """Return True if each device has its own values of this leaf."""
        return trees.matches(path, self.per_device)

    def leaves(self, returned: dict[str, Any]) -> dict[str, Any]:
        """Return the leaves of the state by path, and the metrics as `metrics/path`."""
        state = trees.leaves_by_name(returned["state"])
        metrics = trees.leaves_by_name(returned["metrics"], self.metric_prefix)
        return state | metrics

    def to_numpy(self, returned: dict[str, Any]) -> Leaves:
        """Return the leaves of state and metrics by path, in arrays of the host."""
        leaves = self.leaves(returned)
        return {name: trees.to_numpy(leaf) for name, leaf in leaves.items()}

    def __call__(self, arguments: tuple) -> Leaves:
        """Return the leaves of the new state and the metrics by path."""
        return self.to_numpy(self.run(arguments))

    def run(self, arguments: tuple) -> dict[str, Any]:
        """Return the new "state" and the "metrics", as one device has them."""
        returned = trees.to_host(self.jit_batch(*arguments))
        if self.groups == 1:
            return returned

        def select_first(path: str, leaf: Any) -> Any:
            if self.is_per_device(path):
                return leaf
            return leaf[0]  # all groups have the same

        return {
            "state": trees.map_with_names(select_first, returned["state"]),
            "metrics": trees.map_with_names(
                select_first, returned["metrics"], self.metric_prefix
            ),
        }

    def call_step(self, device: Any, state: Any, batch: Any, key: Any) -> Any:
        """Call the step as one device does, with its row of per-device leaves.

        Returns:
            The "state" and the "metrics".
        """

        def select_row(path: str, leaf: Any) -> Any:
            if self.is_per_device(path):
                return leaf[device]
            return leaf

        if key is not None and self.is_per_device("key"):
            key = key[device]
        local_state = trees.map_with_names(select_row, state)
        arguments = [local_state]
        arguments += [argument for argument in (batch, key) if argument is not None]
        return split_result(self.step(*arguments), self.state, "the reference")

    def run_device(self, device: Any, state: Any, batch: Any, key: Any) -> Any:
        """Call the step over an axis of size 1, where an all-reduce changes nothing.

        Returns:
            The "state" and the "metrics" of device number `device`.
        """
        if self.axis_name is None:
            return self.call_step(device, state, batch, key)
        mapped = jax.vmap(
            lambda _, arguments: self.call_step(*arguments),
            (0, None),
            axis_name=self.axis_name,
        )
        with refuse_device_counts(self.step):
            returned = mapped(jnp.zeros(1), (device, state, batch, key))
        return jax.tree.map(lambda leaf: leaf[0], returned)

    def run_batch(self, state: Any, batch: Any, key: Any) -> dict[str, Any]:
        """Return the "state" and the "metrics" of the whole batch.

        An old program's leaves are `[groups, ...]`, with a row from each group.
        """
        if self.groups > 1:
            mapped = jax.vmap(
                lambda group, rows: self.call_step(group, state, rows, key),
                axis_name=self.axis_name,
            )
            rows = trees.split_rows(batch, self.groups, self.batch_axis)
            return mapped(jnp.arange(self.groups), rows)
        returned = self.run_device(0, state, batch, key)
        # A per-device leaf comes back with as many rows as it was given.
        new_state = jax.tree.map(
            lambda leaf, old: jnp.broadcast_to(leaf, old.shape),
            returned["state"],
            state,
        )
        return returned | {"state": new_state}

    def trace(self, arguments: tuple) -> Any:
        """Trace the reference on the whole batch, and check that it can be used.

        Raises:
            ArgumentsError: The reference or `per_device` can't be used.
        """
        # A pmapped step is a function with `lower`. A jitted one isn't a function.
        if isinstance(self.step, types.FunctionType) and hasattr(self.step, "lower"):
            raise ArgumentsError(
                "the reference is mapped by pmap: give the function in it, "
                "step.__wrapped__"
            )
        try:
            traced = self.jit_batch.trace(*arguments)
        except CheckError as error:
            raise ArgumentsError(str(error)) from None
        leaves = self.leaves(traced.out_info)
        for name in self.per_device:
            if not any(trees.matches(path, [name]) for path in (*leaves, "key")):
                raise ArgumentsError(
                    f"per_device: there is no leaf {name!r} among "
                    f"{first_names(leaves)} and key"
                )
        if self.groups > 1:
            self.check_groups(self.to_numpy(self.jit_batch(*arguments)))
        return traced

    def check_groups(self, results: Leaves) -> None:
        """Refuse an old program whose groups return different values."""
        names = []
        for name, groups in results.items():
            spread = distance(groups, np.broadcast_to(groups[:1], groups.shape))
            is_equal = spread <= PREDICTION_TOLERANCE * distance(groups)
            if not is_equal and not self.is_per_device(name):
                names.append(name)
        if names:
            per_device = [*self.per_device, *names[:5]]
            raise ArgumentsError(
                "the groups of old_program return different values of "
                f"{first_names(names)}: if each device is meant to have its own, give "
                f"per_device={per_device}, in the state as [{self.groups}, ...]; "
                "otherwise average the gradients in the old program with lax.pmean"
            )
