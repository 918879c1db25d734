"""Verify that a training step on several devices equals its reference on one.

    python -m pmapdp.verify FILE.py:FUNCTION

The mistakes of data parallelism raise no error, and under Adam not even the loss curve
shows them. `verify` runs any step for pmap, shard_map or jit, compares it with the
plain step for one device, and reports facts: which leaves differ, by how much, from
which update on, and what experiments with them show. docs/verify.md begins with an
example.

Read the files in the order in which one verification runs:

    verification.py   reads the arguments, and compares in float64 if it can
    thresholds.py     has the numbers that decide, each with its reason
    reference.py      runs the plain step for one device, update by update
    tolerances.py     measures rounding, and decides how far each leaf may be off
    layouts.py        places the same arguments on N devices
    step_update.py    runs your step on them, and puts its leaves beside the reference's
    checks.py         makes the checks
    experiments.py    finds the facts behind a wrong leaf, by experiments
    influence.py      has the experiments that change examples or the state
    mistakes.py       has the names of the usual mistakes, to which the facts point
    report.py         prints the checks and their facts

`trees.py` has small functions of pytrees, which all of them use. A leaf is one array of
the state or of the metrics, and it's called by its path, such as `params/dense/kernel`.
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
