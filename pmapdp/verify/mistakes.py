"""Facts, and the usual mistakes that they point to.

An experiment returns facts, and says which mistake each of them usually is.
docs/mistakes.md has a section for every mistake: how it looks without `verify`, what to
write instead, and when it's intended.
"""

from typing import NamedTuple


class Fact(NamedTuple):
    """A result of an experiment, which is true whatever the program means by it.

    Attributes:
        sentence: The fact with its leaves and numbers, for the report.
        mistake: The usual mistake that it points to, a name in `MISTAKES`. Empty: it
            doesn't tell.
    """

    sentence: str
    mistake: str = ""


# The usual mistakes by name, each with the sentence that the report prints.
MISTAKES = {
    "no all-reduce": "the all-reduce of some or all gradients is missing, or it "
    "leaves out devices",
    "sum for mean": "the gradients are added up over N devices, or N micro-batches, or "
    "the learning rate is multiplied by N",
    "check_vma": "`jax.grad` has already added up the gradient of a replicated "
    "parameter, so `lax.pmean` averages equal sums and `lax.psum` multiplies once more",
    "averaged twice": "the loss or the gradient is divided by N, and `lax.pmean` "
    "divides once more",
    "mean of means": "the devices hold different numbers of valid examples, or each "
    "clips its own gradient, or normalizes or compares only its own examples",
    "local statistics": "batch norm's running statistics, a count, or an accumulator "
    "are each device's own",
    "same mask": "every device gets the same key",
    "key stands still": "the new key isn't returned, or the update's number isn't "
    "folded into it",
    "dropped": "some examples reach no device, or get the weight 0",
    "counted unequally": "an example reaches two devices, or its weight depends on its "
    "device",
    "drift": "a per-device value leaks into the update: one that was never "
    "all-reduced, `lax.axis_index`, a key, or another initial state",
    "NaN on one device": "a device holds only padding, so its weights add up to 0, "
    "and 0 / 0 is NaN",
    "one device's metrics": "the metric isn't all-reduced",
    "scaled metrics": "a mean or a maximum is added up over the devices, or a sum is "
    "averaged",
    "every device computes everything": "the batch isn't split where it's used",
}


def find_address(mistake: str) -> str:
    """Return the address of a mistake's heading on the page."""
    return mistake.replace(" ", "-").replace("'", "").lower()
