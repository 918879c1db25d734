"""Verify that a training step on several devices equals its reference on one: `python -m pmapdp.verify FILE:FUNCTION`.

The mistakes of data parallelism raise no error, and under Adam not even the loss curve
shows them. `verify` runs any step for pmap, shard_map or jit, compares it with the
plain step for one device, and says what differs, by how much, in which leaf, and what
usually causes it. docs/verify.md begins with an example.

Reading order: `verification` (from the arguments to the report), `reference` (and what
rounding allows), `layouts`, and `causes` (a call of the step, and the experiments that
name a mistake). The sentences are in `mistakes.toml`.
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
