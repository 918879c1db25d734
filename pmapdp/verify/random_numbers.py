"""Mistakes with random numbers: one set on all devices, or other ones than the reference draws."""

import re

import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.case import Case
from pmapdp.verify.mistakes import named
from pmapdp.verify.program import program_text
from pmapdp.verify.search import Found, Search

DRAWN = re.compile(r"random_bits\[[^\]]*shape=(\([^)]*\))")  # in a program's text
SEEDS = 6


def same_mask(search: Search) -> Found:
    """One set of random numbers on all devices: where all have the same examples, the step does what the reference
    makes of one device's examples, whatever else is done to the gradient."""
    case, N = search.case, search.N
    if not search.parts or not any(case.drawn.values()) or case.update.examples % N:
        return None
    got, right = case.rerun(np.tile(np.arange(case.update.examples // N), N))
    alone = search.parts[0]["state"]
    if case.differ("state", got, alone) or not case.differ("state", right, alone):
        return None
    return named("same mask", list(search.wrong)), None


def other_numbers(search: Search) -> Found:
    """Surely other random numbers than the reference's.

    Where the reference's belong to the place in the batch, the step lacks an array that the reference draws. Where they
    belong to the example, copies of a single example have the metrics of the reference whatever the weights, the cut or
    the order are: if the step's are larger with some seeds and smaller with others, the random numbers differ.
    """
    case = search.case
    names = [name for name in case.drawn["metrics"] if name in case.wrong("metrics")]
    if case.update.examples and names and (lacks_numbers(case) if case.positional else varies(case, names)):
        return named("other random numbers", list(search.wrong)), None
    return None


def lacks_numbers(case: Case) -> bool:
    """Whether the reference draws an array of random numbers that the step does not draw."""
    arguments = case.trial.convention.arguments(*case.trial.place(case.update))
    got = set(DRAWN.findall(program_text(case.trial.step, arguments)))
    return not set(DRAWN.findall(program_text(case.trial.reference.function, case.update.arguments))) <= got


def varies(case: Case, names: list[str]) -> bool:
    """Whether a metric of copies of one example is now larger and now smaller than the reference's."""
    batch = trees.rows(case.update.batch, np.zeros(case.update.examples, int), case.update.axis)
    signs: dict[str, set[float]] = {name: set() for name in names}
    update = case.update._replace(batch=batch)
    for seed in range(1, SEEDS):
        state, key = trees.reseed((case.update.state, case.update.key), seed)
        update = update._replace(state=state, key=key)
        got, right = case.trial.run(update)["metrics"], case.trial.reference(update.arguments)["metrics"]
        for name in case.differ("metrics", {name: got[name][0] for name in names}, right, names):
            signs[name].add(float(np.sign(np.sum(got[name][0] - right[name]))))
    return any(len(found) > 1 for found in signs.values())
