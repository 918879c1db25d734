"""The updates that a step makes on N devices, each beside that of its reference."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.report import NotCheckedError, StepFailedError
from pmapdp.verify.rounding import Allowed, Update
from pmapdp.verify.trees import Leaves
from pmapdp.verify.trial import Copies, Trial

COMPILED = "/jax/core/compile/backend_compile_duration"


@dataclass
class Case:
    """One update of a trial, from the state of the reference, and what the reference makes of other arguments."""

    number: int  # of the update, from 0
    trial: Trial
    update: Update
    got: dict[str, Copies]  # what the step returned: the "state" and the "metrics"
    in_a_row: dict[str, Copies]  # the same, from the state that its own update before returned
    compilations: int  # programs that were compiled for it
    programs: list[Any]  # those of them that are still in memory

    def off(self, part: str, in_a_row: bool = False) -> dict[str, tuple[float, Allowed]]:
        """How far each leaf is off, on the device where it is farthest, and what is allowed."""
        got, allowed = (self.in_a_row, self.update.in_a_row) if in_a_row else (self.got, self.update.allowed)
        wanted = self.update.values[part]
        return {
            name: (max(trees.distance(copy, wanted[name]) for copy in got[part][name]), most)
            for name, most in allowed[part].items()
        }

    def wrong(self, part: str, in_a_row: bool = False) -> dict[str, tuple[float, float]]:
        """The leaves that are off by more than is allowed, and both numbers; those that are farthest off come first."""
        found = {
            name: (far, most.tolerance)
            for name, (far, most) in self.off(part, in_a_row).items()
            if far > most.tolerance and most.kind != "blind"
        }
        return dict(sorted(found.items(), key=lambda item: -excess(*item[1])))

    def reference(self, **arguments: Any) -> dict[str, Leaves]:
        """What the reference makes of the update with other arguments: state and metrics by leaf."""
        return self.trial.reference(self.update._replace(**arguments).arguments)

    def rerun(self, index: Any) -> tuple[Leaves, Leaves]:
        """The update on the examples at `index` of the batch: the new state of step (first device) and reference."""
        batch = trees.rows(self.update.batch, index, self.update.axis)
        got = self.trial.run(self.update._replace(batch=batch))["state"]
        return {name: copies[0] for name, copies in got.items()}, self.reference(batch=batch)["state"]

    def differ(self, part: str, a: Leaves, b: Leaves, names: Any = None) -> list[str]:
        """The floating-point leaves in which two results differ by more than rounding."""
        allowed = self.update.allowed[part]
        return [
            name
            for name in (allowed if names is None else names)
            if allowed[name].kind in ("close", "loose")
            and trees.distance(a[name], b[name]) > 4 * allowed[name].tolerance
        ]

    @functools.cached_property
    def drawn(self) -> dict[str, dict[str, float]]:
        """How far the leaves of "metrics" and "state" move that change with other random numbers."""
        state, key = trees.reseed((self.update.state, self.update.key))
        other, values = self.reference(state=state, key=key), self.update.values
        return {
            part: {
                n: trees.distance(other[part][n], values[part][n]) for n in self.differ(part, other[part], values[part])
            }
            for part in ("metrics", "state")
        }

    @functools.cached_property
    def shuffled(self) -> np.ndarray:
        """Places of the batch's examples in another order."""
        return np.random.default_rng(1).permutation(self.update.examples)

    @functools.cached_property
    def positional(self) -> bool:
        """Whether the reference depends on the order of its examples, as when it draws one mask for the batch."""
        other = self.reference(batch=trees.rows(self.update.batch, self.shuffled, self.update.axis))
        return bool(self.differ("state", other["state"], self.update.values["state"]))


def excess(far: float, tolerance: float) -> float:
    """How many times the tolerance a leaf is off."""
    return far / tolerance if tolerance else np.inf * far


def step_updates(trial: Trial, updates: list[Update]) -> list[Case]:
    """Make the reference's updates by the step: all in a row, and each from the reference's state."""
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == COMPILED:
            compiled.append(event)

    client: Any = trial.devices[0].client
    state, _, *key = trial.place(updates[0])
    cases: list[Case] = []
    carried = False  # whether the step returns the key of its next update
    for number, update in enumerate(updates):
        try:
            _, batch, *given = trial.place(update)
        except StepFailedError:
            raise
        except NotCheckedError:  # a ragged last batch that does not divide: the others are compared all the same
            if number == 0:
                raise
            continue
        compiled.clear()
        known = client.live_executables()
        identities = set(map(id, known))
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            returned = trial.call(state, batch, *(key if carried else given))
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        programs = [each for each in client.live_executables() if id(each) not in identities]
        count, row = len(compiled), trial.read(returned, update)
        got = trial.run(update) if number else row
        cases.append(Case(number, trial, update, got, row, count, programs))
        state, carried = returned["state"], "key" in returned
        key = [returned["key"]] if carried else []
    return cases


def first_wrong(cases: list[Case], part: str) -> int | None:
    """The place of the first update with a wrong leaf in the "state" or in the "metrics"."""
    return next((place for place, case in enumerate(cases) if case.wrong(part)), None)
