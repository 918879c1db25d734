"""Numbers that decide what `verify` calls equal, and when a prediction holds.

Each has its reason beside it. A leaf's tolerance is measured in `tolerances.py`, with
these numbers as factors.
"""

from typing import NamedTuple


class Factors(NamedTuple):
    """A leaf may be off by these multiples of what was measured.

    Attributes:
        spread: A multiple of the spread of the perturbed runs. It's above 1, because
            three runs don't show the largest spread, and float64 has room for more.
        change: A fraction of the leaf's change in the update.
    """

    spread: float
    change: float


# By the bytes of the type in which the reference adds.
TOLERANCES = {8: Factors(spread=8, change=1e-7), 4: Factors(spread=4, change=7e-4)}
# For types of 16 bits. Here `change` counts units in their last place.
NARROW_TOLERANCES = Factors(spread=2, change=4)
# A few operations more or fewer change a number by some units in its last place, so a
# leaf may be off by so many. If it's stored in 16 bits, the step rounds it once, and
# the reference does, too.
LAST_PLACES = 4
NARROW_LAST_PLACES = 2
PERTURBED_RUNS = 3  # runs with numbers changed by rounding
# A step in mixed precision first rounds the numbers to 16 bits. If they're moved by an
# eighth of a unit, about an eighth of them round the other way, and that's enough.
NARROW_PERTURBATION = 1 / 8

# A leaf isn't compared if rounding may change its update by more than this fraction.
# That happens in a chaotic map, and to the bias in front of a batch norm under Adam.
UNSTABLE_FRACTION = 0.3

# An error is clearly wrong if it's this many times what rounding allows. With a smaller
# error, two different predictions might both seem to hold.
CLEARLY_WRONG_FACTOR = 10
# A prediction holds if it misses by at most this fraction of the difference that it
# explains. Then only rounding makes it miss, which is below a thousandth of an update,
# even in float32. A prediction that doesn't hold misses by about the whole difference.
# The groups of an old program may also differ by this fraction.
PREDICTION_TOLERANCE = 1e-3
# A prediction that misses by more than this fraction of the difference doesn't hold,
# even if rounding would allow the miss.
MAX_RESIDUAL = 1 / 4
# Two weights of examples are equal within this fraction. A weight is a quotient of two
# differences, so it's less exact than a prediction.
WEIGHT_TOLERANCE = 0.01
# The largest and the smallest weight may both be off by that much, and rounding adds to
# it.
WEIGHT_SPREAD = 3 * WEIGHT_TOLERANCE
# More than this part of the weights has to be known.
MIN_KNOWN_WEIGHTS = 1 / 2
# One change is about a multiple of another if the best factor leaves over less than
# this fraction. Other random numbers leave over much more.
ROUGH_TOLERANCE = 0.1
# A change by a smaller fraction is only rounding. For example, the gradient of a bias
# in front of a batch norm is 0 up to rounding. A loss scale is multiplied in and
# divided out again, so shifting it also moves results by rounding alone.
NEGLIGIBLE_FRACTION = 1e-6
# A leaf is shifted by this factor and this number, to see what depends on it. Both are
# large, so that the results move by far more than rounding, also if it holds zeros.
SHIFT_FACTOR = 1.5
SHIFT = 0.1
# Larger batches aren't weighed, because each example costs a run of the step and one of
# the reference.
MAX_EXAMPLES = 128

# The work isn't split if a device makes this many times its part of the operations:
# with two devices that compute everything, it's twice its part.
MAX_WORK = 1.75
# Work that is the same for any batch, such as the update of the state, may be done
# three times more.
MAX_FIXED_WORK = 3
