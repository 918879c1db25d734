"""Several updates in a row: by the reference, with what rounding allows, and by the step on N devices."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.rounding import Expected, epsilon, expected, orders
from pmapdp.verify.runs import Outcome, Trial

COMPILED = "/jax/core/compile/backend_compile_duration"


class Update(NamedTuple):
    """One update of the reference: its arguments, what it returned, and that by leaf with tolerances."""

    state: Any
    batch: Any
    key: Any
    like: tuple[Any, Any]
    want_state: Expected
    want_metrics: Expected


class Wanted(NamedTuple):
    """The reference's updates, one after the other, and whether the order of its examples matters to it."""

    updates: list[Update]
    positional: bool


class Ran(NamedTuple):
    """The step's updates on N devices."""

    trial: Trial
    outcomes: list[Outcome]  # what each returned
    compilations: list[int]  # programs compiled in each
    changed_types: list[str]  # leaves of the state whose type or sharding the last update changed, in words
    placed: tuple[Any, Any, Any]  # state, batch and key after the last update


def reference_updates(trial: Trial, state: Any, batches: Sequence[Any], key_of: Callable[[int], Any]) -> Wanted:
    """The reference's updates, one on each batch, and the tolerance after each."""

    def run(state: Any, batches: Sequence[Any]) -> list[tuple[Any, tuple[Any, Any]]]:
        done = []
        for number, batch in enumerate(batches):
            new = trial.run_reference(state, batch, key_of(number))
            done.append((state, new))
            state = new[0]
        return done

    plain = run(state, batches)
    reordered = zip(
        *([trees.rows(b, order) for order in orders(trees.number_of_examples(b))] for b in batches), strict=True
    )
    others = [run(state, each) for each in reordered]
    positional = any(depends(plain[0], other[0]) for other in others)
    if positional:  # then the last place of the parameters is changed in place of the order
        others = [run(nudge(state, seed), batches) for seed in range(len(others))]
    updates = []
    for number, (before, new) in enumerate(plain):
        after = [other[number][1] for other in others]
        want_state = expected(before, new[0], [state for state, _ in after])
        want_metrics = expected(None, new[1], [metrics for _, metrics in after])
        updates.append(Update(before, batches[number], key_of(number), new, want_state, want_metrics))
    return Wanted(updates, positional)


def depends(plain: tuple[Any, tuple[Any, Any]], other: tuple[Any, tuple[Any, Any]]) -> bool:
    """Whether two results of an update differ by far more than rounding, in at least half of the leaves."""
    old, new = trees.named(plain[0]), trees.named(plain[1][0])
    changed = trees.named(other[1][0])
    relative = []
    for name, leaf in new.items():
        if trees.is_float(leaf):
            change = trees.distance(trees.numbers(leaf), trees.numbers(old[name]) if name in old else np.zeros(1))
            if change > 0:
                relative.append(trees.distance(trees.numbers(changed[name]), trees.numbers(leaf)) / change)
    return bool(relative) and float(np.median(relative)) > epsilon(plain[1][0]) ** 0.3


def nudge(state: Any, seed: int) -> Any:
    """The state with every floating-point number changed by a rounding unit, up or down."""
    random = np.random.default_rng(seed)

    def change(leaf: Any) -> Any:
        if not trees.is_float(leaf):
            return leaf
        unit = float(jax.numpy.finfo(jax.numpy.result_type(leaf)).eps)
        return (np.asarray(leaf) * (1 + unit * random.choice([-1, 1], np.shape(leaf)))).astype(np.asarray(leaf).dtype)

    return jax.tree.map(change, state)


def step_updates(trial: Trial, wanted: Wanted) -> Ran:
    """The step's updates, each on the state that the one before returned."""
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == COMPILED:
            compiled.append(event)

    first = wanted.updates[0]
    placed = trial.place_state(trees.to_host(first.state))
    outcomes, compilations, types = [], [], [leaf_types(placed)]
    for update in wanted.updates:
        batch, key = trial.place_rest(update.batch, update.key)
        jax.monitoring.register_event_duration_secs_listener(listen)
        before = len(compiled)
        try:
            placed, metrics = trial.call(placed, batch, key)
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        compilations.append(len(compiled) - before)
        outcomes.append(trial.read(placed, metrics, update.like))
        types.append(leaf_types(placed))
    changed = [
        f"{name} from {was} to {types[-1].get(name)}" for name, was in types[-2].items() if was != types[-1].get(name)
    ]
    return Ran(trial, outcomes, compilations, changed, (placed, *trial.place_rest(first.batch, first.key)))


def leaf_types(tree: Any) -> dict[str, str]:
    """What the compiler distinguishes in each leaf, in words."""
    return {
        name: f"{leaf.dtype}{list(leaf.shape)}{' (weak)' * leaf.weak_type} on {leaf.sharding}"
        for name, leaf in trees.named(tree).items()
        if isinstance(leaf, jax.Array)
    }
