"""Find the cause of a difference: compute what the reference would return if the step made a known mistake.

Each function below tries one family of mistakes and returns the name of a cause and its sentence, or None.
"""

import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.case import STATISTICS, Case
from pmapdp.verify.examples import unequal_examples
from pmapdp.verify.rounding import orders
from pmapdp.verify.scales import decay, scale
from pmapdp.verify.sentences import Cause, named

CLEAR = 1e-3  # relative error with which a scale must explain a difference


def explain_state(case: Case) -> Cause:
    """The cause of a wrong state."""
    looks = (not_finite, replicas, statistics, means, scale, decay, unequal_examples, randomness, order)
    causes = (look(case) for look in looks)
    return next((cause for cause in causes if cause), None) or named("unknown", list(case.wrong_state))


def not_finite(case: Case) -> Cause | None:
    """Infinite values, or values that are not a number, where the reference has none."""
    leaves = [
        name
        for name in case.wrong_state
        if np.isfinite(case.want_state.values[name]).all() and not np.isfinite(case.got.state[name]).all()
    ]
    return named("not finite", leaves) if leaves else None


def replicas(case: Case) -> Cause | None:
    """Devices that hold different values."""
    differ = [name for name in case.wrong_state if case.replicas_differ(name)]
    trained = [name for name in differ if name in case.wrong_parameters]
    if not differ:
        return None
    if not trained:
        return named("local statistics", differ)
    local = [name for name in trained if is_local(case, name)]
    if not local:
        return named("drift", trained)
    changed = [
        name
        for name, value in case.want_state.values.items()
        if not STATISTICS.search(name)
        and np.size(value)
        and trees.is_float(value)
        and trees.distance(value, case.old.get(name, value)) > case.want_state.tolerance[name]
        and any(trees.distance(part[0][name], value) > case.want_state.tolerance[name] for part in case.parts)
    ]
    return named("no all-reduce" if set(changed) <= set(trained) else "left out", local)


def is_local(case: Case, name: str) -> bool:
    """Whether each device holds the result of its own examples: what the reference makes of them, or values whose
    mean over the devices is right."""
    held = case.got.state[name]
    if case.close(name, np.mean(held, axis=0), case.want_state.values[name]):
        return True
    pairs = zip(held, case.parts, strict=False)
    return len(held) > 1 and all(case.close(name, got, part[0][name]) for got, part in pairs)


def statistics(case: Case) -> Cause | None:
    """Batch statistics of one device, or averaged although they are no averages."""
    wrong = [name for name in case.wrong_state if STATISTICS.search(name)]
    if averaged := [name for name in wrong if case.holds(name, case.mean_of_parts(name))]:
        return named("averaged statistics", averaged)
    if local := [name for name in wrong if case.holds(name, case.parts[0][0][name])]:
        return named("local statistics", local)
    return None


def means(case: Case) -> Cause | None:
    """The mean of what each device would do alone."""
    leaves = [name for name in case.wrong_parameters if case.holds(name, case.mean_of_parts(name))]
    if not leaves:
        return None
    if not loss_depends_on_the_cut(case):
        return named("nonlinear", leaves)
    if case.positional and case.uses_key:
        return named("same mask", leaves)
    if trees.number_of_examples(case.batch) % case.trial.N or case.is_right_with_equal_weights():
        return named("mean of means", leaves)
    return named("local normalisation", leaves)


def loss_depends_on_the_cut(case: Case) -> bool:
    """Whether a metric of the whole batch is neither mean nor sum of those of the devices' examples.

    Only those named like a loss are asked, if there are any: others, such as a gradient's norm, are not linear.
    """
    names = [name for name in case.want_metrics.values if "loss" in name.lower()] or list(case.want_metrics.values)
    for name in names:
        mean, wanted = case.mean_of_parts(name, of_metrics=True), case.want_metrics.values[name]
        off = min(trees.distance(mean, wanted), trees.distance(mean * len(case.parts), wanted))
        if off > 4 * case.want_metrics.tolerance[name]:
            return True
    return False


def randomness(case: Case) -> Cause | None:
    """Random numbers that differ."""
    return named("other random numbers", list(case.wrong_state)) if case.uses_key and case.positional else None


def order(case: Case) -> Cause | None:
    """A result that depends on the order of the examples, where the reference's does not."""
    if case.positional:
        return None
    got, _ = case.rerun(trees.rows(case.batch, orders(trees.number_of_examples(case.batch))[-1]))
    leaves = [name for name in case.wrong_state if not case.holds(name, got.state[name][0])]
    return named("order", leaves) if leaves else None


def explain_metrics(case: Case) -> Cause:
    """The cause of wrong metrics."""
    leaves, held, wanted = list(case.wrong_metrics), case.got.metrics, case.want_metrics
    N = case.trial.N
    for device, (_, metrics) in enumerate(case.parts if N > 1 else []):
        off = {name: trees.distance(held[name][device % len(held[name])], metrics[name]) for name in leaves}
        if all(off[name] <= 4 * wanted.tolerance[name] for name in leaves):
            return named("one device's metrics", leaves)
    for factor in (N, 1 / N) if N > 1 else ():
        scaled = [
            name for name in leaves if np.allclose(held[name][0], factor * wanted.values[name], rtol=CLEAR, atol=0)
        ]
        if scaled:
            return named("scaled metrics", scaled, ratio=f"{factor:.3g}", N=N)
    if case.wrong_state:
        return named("follows", leaves)
    return named("unknown", leaves)
