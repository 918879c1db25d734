"""Verify that a training step on several devices equals its reference on one.

    python -m pmapdp.verify FILE.py:FUNCTION

The mistakes of data parallelism raise no error, and under Adam not even the loss curve
shows them. `verify` runs any step for pmap, shard_map or jit, compares it with the
plain step for one device, and reports facts: which leaves differ, by how much, from
which update on, and what experiments with them show. docs/verify.md begins with an
example.

Reading order: `verification` (from the arguments to the report), `reference` (and what
rounding allows), `layouts`, `case` (one update of the step, compared) and `facts` (the
experiments). Their sentences, and the usual mistakes that look like them, are in
`mistakes.toml`.
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
