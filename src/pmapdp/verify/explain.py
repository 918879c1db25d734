"""Find the cause of a difference: compute what the reference would return if the step made a known mistake.

A hypothesis is accepted only where it explains nearly all of the difference, on every leaf that clearly differs, and
where it predicts nothing for the leaves that are right. Each function below tries one family of mistakes and returns
the name of a cause and its sentence, or None. The user's functions may fail for other batches: then a family is not
tried, and the report says what else is sure.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.case import Case, excess
from pmapdp.verify.cuts import Cut, Gradient
from pmapdp.verify.examples import unequal_examples
from pmapdp.verify.mistakes import Cause, named
from pmapdp.verify.trees import Leaves

CLEAR = 10  # times its tolerance: how far a leaf must be off to show a cause
REST = 0.05  # of the difference: how much a cause may leave unexplained

Prediction = dict[str, Any]  # by leaf: a value, or one for each device in a list


class Search:
    """The search for the cause of one wrong update: what is asked more than once is computed once."""

    def __init__(self, case: Case, alike: bool):
        self.case, self.N, self.alike = case, case.trial.N, alike
        self.wrong = case.wrong("state")
        self.clear = [name for name, pair in self.wrong.items() if excess(*pair) > CLEAR]
        self.gradient: Gradient | None = attempt(lambda: Gradient(case.trial.reference, case.update))
        self.found: dict[str, Any] = {}

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """What `compute` returns, computed at the first call; None where it fails."""
        if name not in self.found:
            self.found[name] = attempt(compute)
        return self.found[name]

    @property
    def parts(self) -> list[dict[str, Leaves]] | None:
        """What the reference makes of each device's examples alone; None where it takes only the whole batch."""

        def compute() -> list[dict[str, Leaves]]:
            batches = trees.parts(self.case.update.batch, self.N, self.case.update.axis)
            return [self.case.reference(batch=part) for part in batches]

        return None if self.case.update.examples < self.N else self.once("parts", compute)

    @property
    def at_parts(self) -> list[list[list[np.ndarray]]] | None:
        """The values at the cuts of each device's examples alone."""

        def compute() -> Any:
            batches = trees.parts(self.case.update.batch, self.N, self.case.update.axis)
            return [self.gradient.at(part) for part in batches] if self.gradient else None

        return self.once("at parts", compute)

    @property
    def at_whole(self) -> list[list[np.ndarray]] | None:
        """The values at the cuts of the whole batch."""
        return self.once("at whole", lambda: self.gradient.at(self.case.update.batch) if self.gradient else None)

    @property
    def trained(self) -> set[str]:
        """The leaves of the state that take part in the training; all of them where that is not known."""
        names = list(trees.named(self.case.update.state))
        found = self.once(
            "trained", lambda: self.gradient.trained(names) if self.gradient and self.gradient.cuts else None
        )
        return set(names) if found is None else found

    def explains(self, predicted: Prediction, names: Iterable[str] | None = None) -> float | None:
        """The least part of the difference of a clearly wrong leaf that a prediction explains; None where it fails.

        Args:
            predicted: by leaf, at least those of `names`.
            names: the leaves that the cause is about; None: all, and the right ones must be predicted right.
        """
        chosen = [name for name in self.wrong if names is None or name in set(names)]
        clear = [name for name in chosen if name in self.clear]
        if not clear:
            return None
        least = 1.0
        for name in chosen:
            far, tolerance = self.wrong[name]
            copies = self.case.got["state"][name]
            values = predicted[name] if isinstance(predicted[name], list) else [predicted[name]] * len(copies)
            rest = max(trees.distance(copy, value) for copy, value in zip(copies, values, strict=False))
            if not rest <= max(tolerance, REST * far):
                return None
            if name in clear:
                least = min(least, 1 - rest / far)
        if names is None:
            reference = self.case.update.values["state"]
            for name, most in self.case.update.allowed["state"].items():
                if name not in self.wrong and most.kind in ("close", "loose"):
                    value = predicted[name][0] if isinstance(predicted[name], list) else predicted[name]
                    if trees.distance(value, reference[name]) > CLEAR * most.tolerance:
                        return None
        return least

    def through(self, cut: Cut, values: list[np.ndarray]) -> Prediction:
        """The new state of the reference where the gradient at a cut has these values."""
        assert self.gradient
        return trees.values(self.gradient.state(cut, values))


def attempt(compute: Callable[[], Any]) -> Any:
    """What `compute` returns, or None where the user's functions or the traced program do not take the arguments."""
    try:
        return compute()
    except Exception:
        return None


def explain_state(case: Case, alike: bool, facts: str = "") -> Cause:
    """The cause of a wrong state.

    Args:
        alike: whether one device is off in the same way, so that no cause which needs several devices is possible.
        facts: what else is sure, for where no cause is.
    """
    search = Search(case, alike)
    families = (replicas, statistics, same_mask, scale, means, rate, weight_decay, padding, examples, other_numbers)
    for look in families[3:] if alike else families:
        found = attempt(lambda look=look: look(search))
        if found:
            (cause, sentence), part = found
            more = "" if part is None else f" This explains {100 * part:.3g} % of the difference."
            return cause, sentence + more
    return named("unknown", list(search.wrong), facts=f"{sure(search)} {facts}".strip())


Found = tuple[Cause, float | None] | None  # a cause, and how much of the difference it explains


def replicas(search: Search) -> Found:
    """Devices that hold different values."""
    case = search.case
    differ = []
    for name in search.clear:
        copies, tolerance = case.got["state"][name], search.wrong[name][1]
        if max(trees.distance(copy, copies[0]) for copy in copies) > max(tolerance, REST * search.wrong[name][0]):
            differ.append(name)
    if not differ:
        return None
    local = {name: part for name in differ if (part := is_local(search, name)) is not None}
    trained = [name for name in differ if name in search.trained]
    if found := [name for name in trained if name in local]:
        return named("no all-reduce", found), min(local[name] for name in found)
    if trained:
        return named("drift", trained), None
    return named("local statistics", differ), min(local.values(), default=None)


def is_local(search: Search, name: str) -> float | None:
    """How surely each device holds the result of its own examples: what the reference makes of them, or values whose
    mean over the devices is right. None where it does not."""
    case, (far, tolerance) = search.case, search.wrong[name]
    if case.update.values["state"][name].dtype.kind not in "fc":
        return None
    copies = case.got["state"][name]
    rest = trees.distance(np.mean(copies, axis=0), case.update.values["state"][name])
    if len(copies) == search.N and rest <= max(tolerance, REST * far):
        return 1 - rest / far
    return search.explains({name: [part["state"][name] for part in search.parts]}, [name]) if search.parts else None


def statistics(search: Search) -> Found:
    """Batch statistics of one device, or averaged although they are no averages."""
    parts, names = search.parts, [name for name in search.clear if name not in search.trained]
    if not parts or not names:
        return None
    for values in (
        lambda name: np.mean([p["state"][name] for p in parts], axis=0),
        lambda name: parts[0]["state"][name],
    ):
        if (part := search.explains({name: values(name) for name in names}, names)) is not None:
            return named("local statistics", names), part
    return None


def scale(search: Search) -> Found:
    """The update of a multiple of the gradient."""
    if not search.gradient or not search.at_whole:
        return None
    N = search.N
    ratios = [] if search.alike else [N, 1 / N, N * N]
    usual = len(ratios)
    for name in search.clear[:3]:  # the multiple that a leaf shows by itself
        old = trees.values(search.case.update.state)[name]
        if old.size > 1 and old.dtype.kind in "fc":
            ratio, _ = multiple(search.case.got["state"][name][0] - old, search.case.update.values["state"][name] - old)
            ratios.append(ratio)
    for place, ratio in enumerate(ratios):
        for cut, values in zip(search.gradient.cuts, search.at_whole, strict=True):
            if abs(ratio - 1) < 1e-3:
                continue
            part = None
            for numbers in (False, True) if not all(cut.arrays) else (True,):  # a number is a count, or a gradient
                scaled = [x * ratio if array or numbers else x for x, array in zip(values, cut.arrays, strict=True)]
                part = part or search.explains(search.through(cut, scaled))
            if part is not None:
                cause = ("sum for mean", "averaged twice", "another scale")[place] if place < usual else "another scale"
                if place in (0, 2) and place < usual and "check_vma=True" in text(search.case):
                    cause = "check_vma"
                return named(cause, list(search.wrong), ratio=f"{ratio:.3g}", N=N), part
    return None


def multiple(got: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """The factor between two arrays, and the relative error with which it explains the first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.vdot(wanted, got).real / np.vdot(wanted, wanted).real
        return factor, float(np.linalg.norm(got - factor * wanted) / np.linalg.norm(wanted))


def text(case: Case) -> str:
    """The step's program as JAX prints it; empty where it cannot be traced."""
    import jax

    arguments = case.trial.convention.arguments(*case.trial.place(case.update))
    return attempt(lambda: str(jax.make_jaxpr(lambda: case.trial.step(*arguments))())) or ""


def means(search: Search) -> Found:
    """The mean of what each device computes, at one of the cuts or of the results."""
    if not search.parts:
        return None
    if search.gradient and search.at_parts:
        mean = [
            [
                np.mean(values, axis=0) if np.asarray(values[0]).dtype.kind == "f" else values[0]
                for values in zip(*cut, strict=True)
            ]
            for cut in zip(*search.at_parts, strict=True)
        ]
        cuts = search.gradient.cuts
        for number, (cut, values) in enumerate(zip(cuts, mean, strict=True)):
            if (part := search.explains(search.through(cut, values))) is not None:
                return named("nonlinear" if cut.by_norm else "mean of means", list(search.wrong)), part
    whole = {name: np.mean([p["state"][name] for p in search.parts], axis=0) for name in search.parts[0]["state"]}
    part = search.explains(whole)
    return None if part is None else (named("mean of means", list(search.wrong)), part)


def rate(search: Search) -> Found:
    """The learning rate of all devices together: the change of some leaves is N times as large, the others are right."""
    old, new = trees.values(search.case.update.state), search.case.update.values["state"]
    scaled = {name: old[name] + search.N * (new[name] - old[name]) for name in search.wrong if name in old}
    part = search.explains(scaled, list(search.wrong))
    return None if part is None else (named("sum for mean", list(search.wrong), ratio=search.N, N=search.N), part)


def weight_decay(search: Search) -> Found:
    """A difference that is the same multiple of the old value in every wrong leaf."""
    case, ratios = search.case, {}
    for name in search.wrong:
        old, new = trees.values(case.update.state)[name], case.update.values["state"][name]
        ratios[name], _ = multiple(case.got["state"][name][0] - new, old)
    ratio = float(np.median([ratios[name] for name in search.clear])) if search.clear else np.nan
    if not np.isfinite(ratio) or not any(trees.values(case.update.state)[name].size > 1 for name in search.clear):
        return None
    old, new = trees.values(case.update.state), case.update.values["state"]
    part = search.explains({name: new[name] + ratio * old[name] for name in search.wrong}, list(search.wrong))
    return None if part is None else (named("weight decay", list(search.wrong), ratio=f"{ratio:.2g}"), part)


def same_mask(search: Search) -> Found:
    """One set of random numbers on all devices: where all have the same examples, the step does what the reference
    makes of one device's examples, whatever else is done to the gradient."""
    case, N = search.case, search.N
    if not search.parts or not any(case.drawn.values()) or case.update.examples % N:
        return None
    index = np.tile(np.arange(case.update.examples // N), N)
    got, right = case.rerun(index)
    alone = search.parts[0]["state"]
    if case.differ("state", got, alone) or not case.differ("state", right, alone):
        return None
    return named("same mask", list(search.wrong)), None


def padding(search: Search) -> Found:
    """Padding that the layout adds counts as examples."""
    padded, rows = search.once("padded", lambda: padded_batch(search.case)) or (None, 0)
    if not rows:
        return None
    part = search.explains(search.case.reference(batch=padded)["state"])
    return None if part is None else (named("padding counts", list(search.wrong), rows=rows), part)


def padded_batch(case: Case) -> tuple[Any, int]:
    """The batch with the rows that the layout adds, as the reference takes it, and their number; 0 where none are."""
    import jax

    _, placed, *_ = case.trial.place(case.update)
    axis, given = case.update.axis, jax.tree.leaves(case.update.batch)
    if axis or jax.tree.structure(placed) != jax.tree.structure(case.update.batch):
        return None, 0
    flat = [
        np.asarray(x).reshape(-1, *np.shape(x)[2:]) if np.ndim(x) > np.ndim(y) else np.asarray(x)
        for x, y in zip(jax.tree.leaves(placed), given, strict=True)
    ]
    rows = len(flat[0])
    return jax.tree.unflatten(jax.tree.structure(placed), flat), rows if rows > case.update.examples else 0


def examples(search: Search) -> Found:
    """Examples that are dropped, or count more than others."""
    cause = unequal_examples(search.case, search.clear)
    return None if cause is None else (cause, None)


def other_numbers(search: Search) -> Found:
    """Surely other random numbers than the reference's.

    Copies of a single example have the metrics of the reference whatever the weights, the cut or the order are; where
    the step's are larger with some seeds and smaller with others, the random numbers differ.
    """
    case = search.case
    names = [name for name in case.drawn["metrics"] if name in case.wrong("metrics")]
    if not names or case.positional:
        return None
    batch = trees.rows(case.update.batch, np.zeros(case.update.examples, int), case.update.axis)
    signs: dict[str, set[float]] = {name: set() for name in names}
    state, key = case.update.state, case.update.key
    for _ in range(6):
        update = case.update._replace(batch=batch, state=state, key=key)
        got, right = case.trial.run(update)["metrics"], case.trial.reference(update.arguments)["metrics"]
        for name in names:
            if case.differ("metrics", {name: got[name][0]}, right, [name]):
                signs[name].add(float(np.sign(np.sum(got[name][0] - right[name]))))
        state, key = trees.reseed((state, key)) if len(signs[names[0]]) % 2 else reseed_again(state, key)
    found = [name for name in names if len(signs[name]) > 1]
    return (named("other random numbers", found), None) if found else None


def reseed_again(state: Any, key: Any) -> Any:
    """State and key with seeds that were not used before."""
    import jax

    def another(leaf: Any) -> Any:
        return jax.random.split(leaf)[1] if trees.is_key(leaf) else leaf

    state, key = trees.reseed((state, key))
    return jax.tree.map(
        lambda leaf: leaf + np.uint32(12345) if trees.is_random(leaf) and not trees.is_key(leaf) else another(leaf),
        (state, key),
    )


def sure(search: Search) -> str:
    """What is sure of a difference whose cause is not known."""
    case, total = search.case, len(search.case.update.allowed["state"])
    facts = [f"Wrong: {len(search.wrong)} of {total} leaves."]
    name = next(iter(search.wrong))
    copies, far = case.got["state"][name], search.wrong[name][0]
    if len(copies) > 1:
        apart = max(trees.distance(copy, copies[0]) for copy in copies)
        facts.append(
            "The devices hold different values." if apart > REST * far else "All devices hold the same values."
        )
    old = trees.values(case.update.state).get(name)
    if old is not None and old.dtype.kind in "fc" and old.size > 1:
        ratio, error = multiple(copies[0] - old, case.update.values["state"][name] - old)
        if error < 0.01 * abs(ratio):
            facts.append(f"{name} moves {ratio:.3g} times as far as in the reference.")
    if search.alike:
        facts.append("The step differs in the same way on one device, so no average over devices is at fault.")
    elif case.update.examples and attempt(lambda: depends_on_order(search)):
        facts.append("The result changes when the same examples come in another order, and the reference's does not.")
    return " ".join(facts)


def depends_on_order(search: Search) -> bool:
    """Whether the step's result changes with the order of the examples, and the reference's does not."""
    case = search.case
    if case.positional:
        return False
    got, _ = case.rerun(case.shuffled)
    first = {name: copies[0] for name, copies in case.got["state"].items()}
    return bool(case.differ("state", got, first))


def explain_metrics(case: Case, alike: bool, facts: str = "") -> Cause:
    """The cause of wrong metrics: of those that would explain one, that which leaves least of the difference."""
    search, values = Search(case, alike), case.update.values["metrics"]
    state_is_wrong, wrong = bool(search.wrong), case.wrong("metrics")
    by_cause: dict[str, list[str]] = {}
    for name, (far, tolerance) in wrong.items():
        copies = case.got["metrics"][name]
        if state_is_wrong and not all(np.isfinite(copy).all() for copy in copies):
            return named("follows")
        if max(trees.distance(copy, copies[0]) for copy in copies) > max(tolerance, REST * far):
            by_cause.setdefault("one device's metrics", []).append(name)
            continue
        guesses: list[tuple[str, Any]] = []
        if not alike:
            guesses = [(f"scaled metrics {f:.3g}", values[name] * f) for f in (search.N, 1 / search.N, search.N**2)]
            parts = [part["metrics"][name] for part in search.parts or []]
            if parts:
                guesses += [("mean of means", np.mean(parts, axis=0)), ("mean of means", np.sum(parts, axis=0))]
                guesses += [("one device's metrics", part) for part in parts]
        padded, rows = search.once("padded", lambda: padded_batch(case)) or (None, 0)
        if rows and (found := attempt(lambda padded=padded: case.reference(batch=padded))):
            guesses.append(("padding counts", found["metrics"][name]))
        rests = [(trees.distance(copies[0], np.asarray(value)), cause) for cause, value in guesses]
        rest, cause = min(rests, default=(np.inf, "unknown"), key=lambda pair: pair[0])
        if far <= CLEAR * tolerance or rest > max(tolerance / 4, REST / 5 * far):
            cause = "follows" if state_is_wrong else "unknown"
        by_cause.setdefault(cause, []).append(name)
    for cause in sorted(by_cause, key=lambda cause: cause in ("follows", "unknown")):
        found: dict[str, Any] = {"rows": search.found.get("padded", (0, 0))[1]} if cause == "padding counts" else {}
        if cause.startswith("scaled metrics"):
            found, shown = {"ratio": cause.split()[-1], "N": case.trial.N}, "scaled metrics"
        else:
            shown = cause
        if cause == "unknown":
            found = {"facts": f"{'It is wrong on one device, too. ' * alike}{times(case, by_cause[cause][0])}{facts}"}
        return named(shown, by_cause[cause], **found)
    return named("follows")


def times(case: Case, name: str) -> str:
    """How many times the reference's value a metric is, where that is sure."""
    ratio, error = multiple(case.got["metrics"][name][0].ravel(), case.update.values["metrics"][name].ravel())
    return f"It is {ratio:.3g} times the reference's. " if error < 1e-2 * abs(ratio) else ""
