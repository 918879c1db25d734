"""Find the cause of a difference: compute what the reference would return if the step made a known mistake.

Each function below tries one family of mistakes and returns the name of a cause and its sentence, or None.
"""

import re

import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.case import Case
from pmapdp.verify.mistakes import Cause, named
from pmapdp.verify.rounding import program_text
from pmapdp.verify.sizes import CLEAR, scale, unequal_examples, weight_decay

# Leaves that are statistics of the batch rather than parameters, by a word of their path, as Flax names them.
STATISTICS = re.compile(r"stats|statistic|running|moving|(^|/|_)(mean|var|variance)(/|$)", re.IGNORECASE)
DRAWN = re.compile(r"random_bits\[[^\]]*shape=(\([^)]*\))")  # in a program's text


def explain_state(case: Case) -> Cause:
    """The cause of a wrong state."""
    for look in (replicas, statistics, means, scale, weight_decay, unequal_examples, order):
        try:
            if cause := look(case):
                return cause
        except Exception:  # whatever the user's functions do with other numbers of examples
            continue
    return named("unknown", list(case.wrong()))


def replicas(case: Case) -> Cause | None:
    """Devices that hold different values."""
    differ = [name for name in case.wrong() if not all(case.holds(name, copy) for copy in case.got["state"][name])]
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
    if case.close(name, np.mean(copies, axis=0), case.update.values["state"][name]):
        return True
    return all(case.close(name, copy, part["state"][name]) for copy, part in zip(copies, case.parts, strict=False))


def statistics(case: Case) -> Cause | None:
    """Batch statistics of one device, or averaged although they are no averages."""
    leaves = [
        name
        for name in filter(STATISTICS.search, case.wrong())
        if case.holds(name, case.mean_of_parts(name)) or case.holds(name, case.parts[0]["state"][name])
    ]
    return named("local statistics", leaves) if leaves else None


def means(case: Case) -> Cause | None:
    """The mean of what each device would do alone."""
    leaves = [name for name in case.wrong() if case.holds(name, case.mean_of_parts(name))]
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
    values, tolerance = case.update.values["metrics"], case.update.tolerance["metrics"]
    for name in [name for name in tolerance if "loss" in name.lower()] or list(tolerance):
        mean = case.mean_of_parts(name, of="metrics")
        off = min(trees.distance(mean * factor, values[name]) for factor in (1, len(case.parts)))
        if off > 4 * tolerance[name]:
            return True
    return False


def order(case: Case) -> Cause | None:
    """A result that depends on the order of the examples, or on random numbers by their place."""
    leaves = list(case.wrong())
    if not case.positional:
        got, _ = case.rerun(case.shuffled)
        leaves = [name for name in leaves if not case.holds(name, got[name])]
    if leaves and draws_others(case):
        return named("other random numbers", leaves)
    return named("order", leaves) if leaves and not case.positional else None


def draws_others(case: Case) -> bool:
    """Whether the step surely draws other random numbers than the reference.

    Where the reference's belong to the place in the batch, the step lacks an array that the reference draws. Where they
    belong to the example, copies of one example have other metrics, although no weight, cut or order matters to them.
    """
    if case.draws != "metrics" or not case.wrong("metrics"):
        return False
    trial, update = case.trial, case.update
    if case.positional:
        programs = (trial.reference, update.arguments), (trial.step, trial.place(update))
        wanted, got = (set(DRAWN.findall(program_text(*program))) for program in programs)
        return not wanted <= got
    copies = trees.rows(update.batch, np.zeros(update.examples, int))
    returned = trial.run(update._replace(batch=copies))["metrics"]
    held = {name: values[0] for name, values in returned.items()}
    return case.differ("metrics", held, case.reference(batch=copies)["metrics"])


def explain_metrics(case: Case) -> Cause:
    """The cause of wrong metrics."""
    N, copies, leaves, state_is_wrong = case.trial.N, case.got["metrics"], list(case.wrong("metrics")), case.wrong()
    values, tolerance = case.update.values["metrics"], case.update.tolerance["metrics"]
    if state_is_wrong and not all(np.isfinite(copies[name]).all() for name in leaves):
        return named("follows")
    if local := [n for n in leaves if any(trees.distance(copies[n][0], x) > tolerance[n] for x in copies[n])]:
        return named("one device's metrics", local)
    for part in case.parts:
        if all(trees.distance(copies[n][0], part["metrics"][n]) <= 4 * tolerance[n] for n in leaves):
            return named("one device's metrics", leaves)
    for factor in {N, 1 / N} - {1}:
        if scaled := [n for n in leaves if np.allclose(copies[n][0], factor * values[n], rtol=CLEAR, atol=0)]:
            return named("scaled metrics", scaled, ratio=f"{factor:.3g}", N=N)
    return named("follows" if state_is_wrong else "unknown", leaves)
