"""How a step takes its arguments and what it returns: found by trying, so that programs need no function around them.

A step may take `(state, batch)`, `(state, batch, key)`, `(params, opt_state, rng, batch)`, `(params, opt_state, x, y)`
and the like, and may return the new state, or a tuple that holds its parts, metrics and perhaps a new key.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.errors import reason
from pmapdp.verify import trees
from pmapdp.verify.report import ArgumentsError, StepFailedError

Returned = dict[str, Any]  # what a step returned: the "state" and the "metrics", and a new "key" where it returns one


class Convention(NamedTuple):
    """The order of a step's arguments, and what is needed to find the parts of what it returns."""

    order: tuple[str, ...]  # of "state", "batch" and "key"; a part of a tuple by its place, as in "state/1"
    state: Any  # what the training starts from: the form of the new state, and what of it is no array
    key: tuple[Any, ...]  # the first key, or nothing

    def arguments(self, state: Any, batch: Any, *key: Any) -> list[Any]:
        """As the step takes them, from arrays."""
        full = {"state": trees.combine(state, self.state), "batch": batch, "key": key[0] if key else None}
        found = []
        for name in self.order:
            part, _, place = name.partition("/")
            found.append(full[part][int(place)] if place else full[part])
        return found

    def call(self, function: Callable, state: Any, batch: Any, *key: Any) -> Returned:
        """The parts of what `function` returns."""
        return self.split(function(*self.arguments(state, batch, *key)), "the step")

    def split(self, returned: Any, who: str) -> Returned:
        """The parts of what `who` returned; a `StepFailedError` says what is missing."""
        found = self.parts(returned)
        if found is None:
            what = f"{len(returned)} values" if isinstance(returned, tuple | list) else f"a {type(returned).__name__}"
            raise StepFailedError(
                f"{who} returns {what}, in which there is no new state of the form of `state` (its leaves: "
                f"{few(trees.named(trees.arrays(self.state)))}): return the new state, or (state, metrics)"
            )
        return found

    def parts(self, returned: Any) -> Returned | None:
        """The parts of what a step returned, or None where no new state is found in it.

        The new state is what has the structure and the shapes of the old; then each part of a state that is a tuple is
        looked for in turn, then a key. All else are metrics. Shapes may have a leading device axis.
        """
        if alike(returned, self.state):
            return {"state": trees.arrays(returned), "metrics": {}}
        if not isinstance(returned, tuple | list):
            return None
        left = list(returned)
        if (state := take(left, self.state)) is None and type(self.state) in (tuple, list):
            parts = [take(left, part) for part in self.state]
            state = None if any(part is None for part in parts) else type(self.state)(parts)
        if (
            state is None
            and len(returned) == 2
            and trees.same_structure(trees.arrays(returned[0]), trees.arrays(self.state))
        ):
            state, left = returned[0], [returned[1]]  # of other shapes, which `trial` says
        if state is None:
            return None
        key = take(left, self.key[0], trees.is_random) if self.key else None
        metrics = left[0] if len(left) == 1 else left
        if type(metrics) in (tuple, list):  # a name of their own: "0" is also the first part of a state that is a tuple
            metrics = {f"metric {place}": value for place, value in enumerate(metrics)}
        return {"state": trees.arrays(state), "metrics": metrics} | ({} if key is None else {"key": key})


def alike(a: Any, b: Any, loose: bool = True) -> bool:
    """Whether `a` has the structure of `b` and its shapes; `loose`: perhaps behind a device axis."""
    if not trees.same_structure(trees.arrays(a), trees.arrays(b)):
        return False
    shapes = zip(*([np.shape(leaf) for leaf in jax.tree.leaves(trees.arrays(tree))] for tree in (a, b)), strict=True)
    return all(x == y or (loose and x[1:] == y) for x, y in shapes)


def take(values: list[Any], form: Any, fits: Callable[[Any], bool] = lambda value: True) -> Any:
    """The first of the values that is like `form`, which is taken out of the list; None where there is none."""
    for loose in (False, True):
        for number, value in enumerate(values):
            if alike(value, form, loose) and fits(value):
                return values.pop(number)
    return None


def few(names: Any) -> str:
    """The first three names, and how many there are besides."""
    names = list(names)
    return ", ".join(names[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)


def orders(state: Any, batch: Any, key: tuple) -> Iterator[tuple[str, ...]]:
    """Every order in which a step may take its arguments, the usual ones first."""

    def forms(name: str, value: Any) -> list[tuple[str, ...]]:
        spread = type(value) is tuple and len(value) > 1
        return [(name,), tuple(f"{name}/{place}" for place in range(len(value)))] if spread else [(name,)]

    batches = forms("batch", batch) if batch is not None else [()]
    for of_state, of_batch in itertools.product(forms("state", state), batches):
        if not key:
            yield from dict.fromkeys([(*of_state, *of_batch), (*of_batch, *of_state)])
            continue
        plain, other = (*of_state, *of_batch), (*of_batch, *of_state)
        for place in (len(plain), len(of_state), 0, *range(1, len(of_state))):
            yield (*plain[:place], "key", *plain[place:])
        for place in (len(of_batch), len(other), 0):
            yield (*other[:place], "key", *other[place:])


def find_convention(
    function: Callable, make: Callable[[Convention], Callable], state: Any, batch: Any, key: tuple
) -> Convention:
    """The first order of the arguments in which the reference can be traced and returns a new state.

    Args:
        function: the reference as the user wrote it.
        make: the reference as a function of (state, batch, key) for a convention.

    Raises:
        ArgumentsError: there is none.
    """
    errors: list[tuple[int, Exception]] = []  # each with the number of parameters whose names fit the order
    for order in orders(state, batch, key):
        convention, fitting = Convention(order, state, key), 0
        try:
            given = inspect.signature(function).bind(*order).arguments
            fitting = sum(fits(name, value) for name, value in given.items())
        except TypeError:
            continue
        except ValueError:  # some functions that are not written in Python do not tell
            pass
        try:
            jax.eval_shape(make(convention), trees.arrays(state), batch, *key)
        except Exception as error:
            errors.append((fitting, error))
            continue
        return convention
    likely = sorted(errors, key=lambda pair: -pair[0])
    raise refused(function, state, batch, key, [error for _, error in likely])


def fits(name: str, value: Any) -> bool:
    """Whether a parameter of this name takes "state", "batch" or "key", or a part as "state/1"; `*args` are a tuple."""
    part = str(value).partition("/")[0]
    return random_name(name) if part == "key" else part in name


def random_name(name: str) -> bool:
    """Whether a parameter of this name takes a key."""
    return any(word in name for word in ("key", "rng", "seed"))


def refused(function: Callable, state: Any, batch: Any, key: tuple, errors: list[Exception]) -> Exception:
    """The error where no order fits: the user's own where the function can be called, else what it lacks."""
    for error in errors:
        if isinstance(error, StepFailedError | ArgumentsError):
            return ArgumentsError(str(error).replace("the step returns", "the reference returns"))
    if errors:
        if stacked(state):
            return ArgumentsError(
                f"the reference raises an error ({reason(errors[0])}), and every leaf of the state starts with the "
                f"same axis, as if it were replicated: give state=jax.tree.map(lambda x: x[0], state)"
            )
        return errors[0]
    names = list(inspect.signature(function).parameters)
    has = [f"state (a tuple of {len(state)})" if isinstance(state, tuple) else "state"]
    has += ["batch"] * (batch is not None) + ["key"] * len(key)
    keyed = any(map(random_name, names))
    if not key and keyed:
        advice = "give key=jax.random.key(0)"
    elif key and not keyed and len(names) < len(has):
        advice = "leave key out where both functions take none"
    elif not key and batch is None:
        advice = "give batch=, the examples"
    else:
        given = ", ".join(["state", *["batch"] * (batch is not None), *["key"] * len(key)])
        advice = (
            "give the parts of the state as a tuple, state=(params, opt_state), or a function around it that gives "
        )
        advice += f"the rest, lambda {given}: step(...)"
    return ArgumentsError(f"the reference takes ({', '.join(names)}), and verify has {', '.join(has)} for it: {advice}")


def stacked(state: Any) -> bool:
    """Whether all leaves of a state start with the axis of the devices, as after `flax.jax_utils.replicate`."""
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(trees.arrays(state))}
    return sizes == {(jax.device_count(),)}
