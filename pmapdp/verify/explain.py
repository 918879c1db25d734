"""Find the cause of a difference: compute what the reference would return if the step made a known mistake.

Each function below tries one family of mistakes and returns the name of a cause and its sentence, or None.
"""

import re

import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.case import Case
from pmapdp.verify.mistakes import Cause, named
from pmapdp.verify.runs import wrong
from pmapdp.verify.sizes import CLEAR, scale, unequal_examples, weight_decay

# Leaves that are statistics of the batch rather than parameters, by a word of their path, as Flax names them.
STATISTICS = re.compile(r"stats|statistic|running|moving|(^|/|_)(mean|var|variance)(/|$)", re.IGNORECASE)


def explain_state(case: Case) -> Cause:
    """The cause of a wrong state."""
    for look in (replicas, statistics, means, scale, weight_decay, unequal_examples, order):
        try:
            if cause := look(case):
                return cause
        except Exception:  # whatever the user's functions do with other numbers of examples
            continue
    return named("unknown", case.wrong)


def replicas(case: Case) -> Cause | None:
    """Devices that hold different values."""
    differ = [name for name in case.wrong if any(not case.holds(name, copy) for copy in case.got["state"][name])]
    trained = [name for name in differ if not STATISTICS.search(name)]
    if local := [name for name in trained if is_local(case, name)]:
        return named("no all-reduce", local)
    if trained:
        return named("drift", trained)
    return named("local statistics", differ) if differ else None


def is_local(case: Case, name: str) -> bool:
    """Whether each device holds the result of its own examples: what the reference makes of them, or values whose
    mean over the devices is right."""
    copies = case.got["state"][name]
    if case.close(name, np.mean(copies, axis=0), case.want.values[name]):
        return True
    return all(case.close(name, copy, part["state"][name]) for copy, part in zip(copies, case.parts, strict=False))


def statistics(case: Case) -> Cause | None:
    """Batch statistics of one device, or averaged although they are no averages."""
    suspects = [name for name in case.wrong if STATISTICS.search(name)]
    explanations = (case.mean_of_parts, lambda name: case.parts[0]["state"][name])
    leaves = [name for name in suspects if any(case.holds(name, value(name)) for value in explanations)]
    return named("local statistics", leaves) if leaves else None


def means(case: Case) -> Cause | None:
    """The mean of what each device would do alone."""
    leaves = [name for name in case.wrong if case.holds(name, case.mean_of_parts(name))]
    if not leaves:
        return None
    if not all(np.isfinite(case.mean_of_parts(name)).all() for name in leaves):
        return named("mean of means", leaves)  # a device with padding alone divides by its own count of zero
    if not loss_depends_on_the_cut(case):
        return named("nonlinear", leaves)
    return named("same mask" if case.positional and case.draws else "mean of means", leaves)


def loss_depends_on_the_cut(case: Case) -> bool:
    """Whether a metric of the whole batch is neither mean nor sum of those of the devices' examples.

    Only those named like a loss are asked, if there are any: others, such as a gradient's norm, are not linear.
    """
    wanted = case.update.want["metrics"]
    for name in [name for name in wanted.values if "loss" in name.lower()] or list(wanted.values):
        mean = case.mean_of_parts(name, of="metrics")
        off = min(trees.distance(mean * factor, wanted.values[name]) for factor in (1, len(case.parts)))
        if off > 4 * wanted.tolerance[name]:
            return True
    return False


def order(case: Case) -> Cause | None:
    """A result that depends on the order of the examples, or on random numbers by their place."""
    if case.positional:
        return named("other random numbers", case.wrong) if case.draws else None
    got, _ = case.rerun(case.shuffled)
    if leaves := [name for name in case.wrong if not case.holds(name, got[name])]:
        return named("other random numbers" if case.draws else "order", leaves)
    return None


def explain_metrics(case: Case) -> Cause:
    """The cause of wrong metrics."""
    N, copies, want = case.trial.N, case.got["metrics"], case.update.want["metrics"]
    leaves = list(wrong(want.differences(copies)))
    if case.wrong and not all(np.isfinite(copies[name]).all() for name in leaves):
        return named("follows")
    if local := [n for n in leaves if any(trees.distance(copies[n][0], x) > want.tolerance[n] for x in copies[n])]:
        return named("one device's metrics", local)
    for device, part in enumerate(case.parts if N > 1 else []):
        own = {name: copies[name][device % len(copies[name])] for name in leaves}
        if all(trees.distance(own[n], part["metrics"][n]) <= 4 * want.tolerance[n] for n in leaves):
            return named("one device's metrics", leaves)
    for factor in (N, 1 / N) if N > 1 else ():
        if scaled := [n for n in leaves if np.allclose(copies[n][0], factor * want.values[n], rtol=CLEAR, atol=0)]:
            return named("scaled metrics", scaled, ratio=f"{factor:.3g}", N=N)
    return named("follows" if case.wrong else "unknown", leaves)
