"""The updates that a step makes on N devices, each beside that of its reference."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.rounding import Leaves, Update, call_reference
from pmapdp.verify.trial import Copies, Trial

COMPILED = "/jax/core/compile/backend_compile_duration"
Differences = dict[str, tuple[float, float]]  # by how much a leaf is off, and how much rounding allows


@dataclass
class Case:
    """One update of a trial, and what the reference makes of other arguments, to find the cause where they differ."""

    trial: Trial
    update: Update
    got: dict[str, Copies]  # what the step returned: the "state" and the "metrics"
    compilations: int  # programs that were compiled for it
    programs: list[Any]  # those of them that are still in memory

    @functools.cached_property
    def differences(self) -> dict[str, Differences]:
        """How far each leaf is off, on the device where it is farthest, and what rounding allows."""
        return {
            part: {
                name: (max(trees.distance(copy, self.update.values[part][name]) for copy in self.got[part][name]), most)
                for name, most in tolerance.items()
            }
            for part, tolerance in self.update.tolerance.items()
        }

    def wrong(self, part: str = "state") -> Differences:
        """The same of the leaves of one part that are off by more than rounding allows."""
        return {name: pair for name, pair in self.differences[part].items() if pair[0] > pair[1]}

    def reference(self, **arguments: Any) -> dict[str, Leaves]:
        """What the reference makes of the update with other arguments: state and metrics by leaf."""
        new = call_reference(self.trial.reference, self.update._replace(**arguments).arguments)
        return {part: trees.values(tree) for part, tree in new.items()}

    @functools.cached_property
    def parts(self) -> list[dict[str, Leaves]]:
        """What the reference makes of each device's examples alone, device by device."""
        return [self.reference(batch=part) for part in trees.parts(self.update.batch, self.trial.N)]

    def mean_of_parts(self, name: str, of: str = "state") -> np.ndarray:
        """The mean over devices of what the reference makes of their examples, for one leaf."""
        return np.mean([part[of][name] for part in self.parts], axis=0)

    def rerun(self, index: Any) -> tuple[Leaves, Leaves]:
        """The update on the examples at `index` of the batch: the new state of step (first device) and reference."""
        batch = trees.rows(self.update.batch, index)
        got = self.trial.run(self.update._replace(batch=batch))["state"]
        return {name: copies[0] for name, copies in got.items()}, self.reference(batch=batch)["state"]

    def close(self, name: str, got: np.ndarray, wanted: np.ndarray) -> bool:
        """Whether a leaf of the state is explained by a value. Explanations may round a little more than the step."""
        return trees.distance(got, wanted) <= 4 * self.update.tolerance["state"][name]

    def holds(self, name: str, value: np.ndarray) -> bool:
        """Whether a value explains what the first device holds of a leaf of the state."""
        return self.close(name, self.got["state"][name][0], value)

    def differ(self, part: str, a: Leaves, b: Leaves) -> bool:
        """Whether two results differ in the floating-point leaves of the "state" or of the "metrics"."""
        return any(trees.distance(a[n], b[n]) > 4 * most for n, most in self.update.tolerance[part].items() if most)

    @functools.cached_property
    def draws(self) -> str | None:
        """What of the reference's result depends on random numbers: the "metrics", or else the "state", or nothing."""
        state, key = trees.reseed((self.update.state, self.update.key))
        other = self.reference(state=state, key=key)
        return next(
            (part for part in ("metrics", "state") if self.differ(part, other[part], self.update.values[part])), None
        )

    @functools.cached_property
    def shuffled(self) -> np.ndarray:
        """Places of the batch's examples in another order."""
        return np.random.default_rng(1).permutation(self.update.examples)

    @functools.cached_property
    def positional(self) -> bool:
        """Whether the reference depends on the order of its examples, as when it draws one mask for the batch."""
        other = self.reference(batch=trees.rows(self.update.batch, self.shuffled))
        return self.differ("state", other["state"], self.update.values["state"])


def step_updates(trial: Trial, updates: list[Update]) -> list[Case]:
    """Make the reference's updates by the step, each on the state that the one before returned."""
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == COMPILED:
            compiled.append(event)

    client: Any = trial.devices[0].client
    state, *_ = trial.place(updates[0])
    cases: list[Case] = []
    for update in updates:
        _, *rest = trial.place(update)
        compiled.clear()
        known = client.live_executables()
        identities = set(map(id, known))
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            returned = trial.call(state, *rest)
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        programs = [each for each in client.live_executables() if id(each) not in identities]
        cases.append(Case(trial, update, trial.read(returned, update), len(compiled), programs))
        state = returned["state"]
    return cases


def first_wrong(cases: list[Case], part: str) -> int | None:
    """The first update, counted from 0, with a wrong leaf in the "state" or in the "metrics"."""
    return next((number for number, case in enumerate(cases) if case.wrong(part)), None)
