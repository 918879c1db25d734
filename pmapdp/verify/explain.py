"""Find the cause of a difference: compute what the reference would return if the step made a known mistake.

Each function below tries one family of mistakes and returns the name of a cause and its sentence, or None.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.case import STATISTICS, Case
from pmapdp.verify.examples import unequal_examples
from pmapdp.verify.rounding import orders
from pmapdp.verify.sentences import sentence

CLEAR = 1e-3  # relative error with which a scale must explain a difference
Cause = tuple[str, str]


def explain_state(case: Case) -> Cause:
    """The cause of a wrong state."""
    for look in (
        not_finite,
        replicas,
        statistics,
        one_device,
        means,
        scale,
        decay,
        unchanged,
        unequal_examples,
        randomness,
        order,
    ):
        if (cause := look(case)) is not None:
            return cause
    return named("unknown", list(case.wrong_state))


def named(cause: str, leaves: list[str], **found: Any) -> Cause:
    """A cause and its sentence."""
    return cause, sentence(cause, leaves, **found)


def not_finite(case: Case) -> Cause | None:
    """Infinite values, or values that are not a number, where the reference has none."""
    leaves = [
        name
        for name in case.wrong_state
        if np.isfinite(case.want_state.values[name]).all() and not np.isfinite(case.got.state[name]).all()
    ]
    return named("not finite", leaves) if leaves else None


def parameters(case: Case) -> list[str]:
    """The wrong leaves of the state that are not statistics of the batch."""
    return [name for name in case.wrong_state if not STATISTICS.search(name)]


def replicas(case: Case) -> Cause | None:
    """Devices that hold different values."""
    differ = [name for name in case.wrong_state if case.replicas_differ(name)]
    trained = [name for name in differ if name in parameters(case)]
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
    if averaged := [name for name in wrong if case.close(name, case.got.state[name][0], case.mean_of_parts(name))]:
        return named("averaged statistics", averaged)
    if local := [name for name in wrong if case.close(name, case.got.state[name][0], case.parts[0][0][name])]:
        return named("local statistics", local)
    return None


def one_device(case: Case) -> Cause | None:
    """The result of one device's examples, on all devices."""
    leaves = parameters(case)
    for device, (state, _) in enumerate(case.parts):
        if leaves and all(case.close(name, case.got.state[name][0], state[name]) for name in leaves):
            return named("one device's result", leaves, device=device)
    return None


def means(case: Case) -> Cause | None:
    """The mean of what each device would do alone."""
    found = parameters(case)
    if not (leaves := [name for name in found if case.close(name, case.got.state[name][0], case.mean_of_parts(name))]):
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


def scale(case: Case) -> Cause | None:
    """Leaves that move by a multiple. Two batches are compared, so that a weight decay does not count."""
    index = np.arange(trees.number_of_examples(case.batch)) // 2
    got, wanted = case.rerun(trees.rows(case.batch, index))
    ratios = {}
    for name, value in case.want_state.values.items():
        wanted_move, move = wanted[name] - value, got.state[name][0] - case.got.state[name][0]
        if np.linalg.norm(wanted_move) > case.want_state.tolerance[name]:
            ratio = np.vdot(wanted_move, move).real / np.vdot(wanted_move, wanted_move).real
            if np.linalg.norm(move - ratio * wanted_move) < CLEAR * np.linalg.norm(move):
                ratios[name] = ratio
    scaled = {name: ratio for name, ratio in ratios.items() if name in case.wrong_state and abs(ratio - 1) > CLEAR}
    if not scaled:
        return None
    N, shapes = case.trial.N, [np.shape(case.old[name]) for name in ratios if name not in case.wrong_state]
    cause, factor, leaves = "another scale", next(iter(scaled.values())), list(scaled)
    for name, expected in (("sum for mean", N), ("averaged twice", 1 / N)):
        if found := [leaf for leaf, ratio in scaled.items() if N > 1 and abs(ratio / expected - 1) < CLEAR]:
            cause, factor, leaves = name, expected, found
    # The moments of an optimizer have the shapes of its parameters; if they are right, so is the gradient.
    if all(np.shape(case.old[name]) in shapes and np.size(case.old[name]) > 1 for name in scaled):
        cause, leaves = "learning rate", list(scaled)
    elif cause == "sum for mean" and "check_vma=True" in program_text(case):
        cause = "check_vma"
    return named(cause, leaves, ratio=f"{factor:.3g}", N=N)


def program_text(case: Case) -> str:
    """The step's jaxpr as text; empty where it cannot be traced."""
    try:
        placed = case.trial.place(case.state, case.batch, case.key)
        return str(jax.make_jaxpr(case.trial.step)(*[x for x in placed if x is not None]))
    except Exception:  # whatever a step does that cannot be traced; only the wording of a sentence depends on it
        return ""


def decay(case: Case) -> Cause | None:
    """A difference that is a multiple of the old value."""
    found = {}
    for name in parameters(case):
        difference, old = case.got.state[name][0] - case.want_state.values[name], case.old.get(name)
        if old is not None and np.size(old) > 1 and np.linalg.norm(old) > 0:
            ratio = np.vdot(old, difference).real / np.vdot(old, old).real
            if np.linalg.norm(difference - ratio * old) < 100 * CLEAR * np.linalg.norm(difference):
                found[name] = ratio
    return named("weight decay", list(found), ratio=f"{next(iter(found.values())):.2g}") if found else None


def unchanged(case: Case) -> Cause | None:
    """Leaves that the step returns as it got them."""
    leaves = [
        name
        for name in case.wrong_state
        if name in case.old and case.close(name, case.got.state[name][0], case.old[name])
    ]
    return named("unchanged", leaves) if leaves else None


def randomness(case: Case) -> Cause | None:
    """Random numbers that differ."""
    if case.uses_key and not case.step_uses_key:
        return named("key ignored", list(case.wrong_state))
    return named("other random numbers", list(case.wrong_state)) if case.uses_key and case.positional else None


def order(case: Case) -> Cause | None:
    """A result that depends on the order of the examples, where the reference's does not."""
    if case.positional:
        return None
    got, _ = case.rerun(trees.rows(case.batch, orders(trees.number_of_examples(case.batch))[-1]))
    leaves = [name for name in case.wrong_state if not case.close(name, got.state[name][0], case.got.state[name][0])]
    return named("order", leaves) if leaves else None


def explain_metrics(case: Case) -> Cause:
    """The cause of wrong metrics."""
    leaves, held, wanted = list(case.wrong_metrics), case.got.metrics, case.want_metrics.values

    def equal(values: Callable[[str], np.ndarray], device: int) -> bool:
        return all(
            trees.distance(held[name][device % len(held[name])], values(name)) <= 4 * case.want_metrics.tolerance[name]
            for name in leaves
        )

    N = case.trial.N
    for device, (_, metrics) in enumerate(case.parts if N > 1 else []):
        if equal(metrics.__getitem__, device):
            return named("one device's metrics", leaves)
    for factor in (N, 1 / N) if N > 1 else ():
        scaled = [name for name in leaves if np.allclose(held[name][0], factor * wanted[name], rtol=CLEAR, atol=0)]
        if scaled:
            return named("scaled metrics", scaled, ratio=f"{factor:.3g}", N=N)
    if case.wrong_state:
        return named("follows", leaves)
    if equal(lambda name: case.mean_of_parts(name, of_metrics=True), 0):
        return named("averaged metrics", leaves)
    return named("unknown", leaves)
