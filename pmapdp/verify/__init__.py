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
3. `tolerances.py` measures what rounding changes in it, and decides what is equal.
4. `layouts.py` places the same arguments on N devices. `step_update.py` runs your step
   on them, and compares the results.
5. `experiments.py` and `influence.py` find the facts behind a difference. `checks.py`
   looks at random numbers, split work and communication.
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
