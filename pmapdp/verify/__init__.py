"""Verify that a training step on several devices equals its reference on one.

    python -m pmapdp.verify FILE.py:FUNCTION

The mistakes of data parallelism raise no error, and under Adam not even the loss curve
shows them. `verify` runs any step for pmap, shard_map or jit, compares it with the
plain step for one device, and reports facts: which leaves differ, by how much, from
which update on, and what experiments with them show. docs/verify.md begins with an
example.

How one verification runs, and where:

1. `verification.py` reads the arguments, and compares in float64 if it can.
2. `reference.py` runs the plain step for one device, update by update.
3. `tolerances.py` measures what rounding changes in each leaf, and decides how far it
   may be off.
4. `layouts.py` places the same arguments on N devices. `step_update.py` runs your step
   on them, and puts each leaf beside the reference's.
5. `checks.py` makes the checks. If a leaf is wrong, `experiments.py` finds the facts
   behind it. Some of these experiments change examples or the state: `influence.py`.
6. `mistakes.py` has the names of the usual mistakes, to which the facts point, and
   `report.py` prints it all.
"""

from pmapdp.verify.layouts import Layout
from pmapdp.verify.reference import old_program, one_device
from pmapdp.verify.report import ArgumentsError, Check, Report, VerificationError
from pmapdp.verify.verification import verify

__all__ = [
    "ArgumentsError",
    "Check",
    "Layout",
    "Report",
    "VerificationError",
    "old_program",
    "one_device",
    "verify",
]
