"""Verify that a training step on several devices equals its reference on one: `python -m pmapdp.verify FILE:FUNCTION`.

The mistakes of data parallelism raise no error, and under Adam not even the loss curve shows them. `verify` runs any
step for pmap, shard_map or jit beside the plain step for one device, and says what differs, by how much, in which leaf,
and what usually causes it.

    from pmapdp.verify import verify

    report = verify(step=my_step, reference=my_plain_step, state=state, batch=batch, key=key, layout="stacked")
    print(report)
    report.require()  # raises in a test

From `verify()` to a sentence: `verification` makes the updates of the reference (`rounding`) and of the step (`trial`,
`case`), and hands them to `checks`. A check that fails asks `explain` for the cause, whose sentence is in the table of
`mistakes`. Nothing is imported before a name is used, so that commands start at once.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pmapdp.verify.layouts import Layout
    from pmapdp.verify.references import old_program, one_device
    from pmapdp.verify.report import ArgumentsError, Check, Report, VerificationError
    from pmapdp.verify.verification import verify

HOME = {
    "verify": "verification", "one_device": "references", "old_program": "references", "Layout": "layouts",
    "ArgumentsError": "report", "Check": "report", "Report": "report", "VerificationError": "report",
}  # fmt: skip

__all__ = [
    "ArgumentsError", "Check", "Layout", "Report", "VerificationError", "old_program", "one_device", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """A public name, from the module that holds it."""
    if name not in HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{HOME[name]}"), name)
