"""The recipe's network with one change, for `--model benchmarks/speedrun/variants.py:NAME`."""

from pmapdp.speedrun import Speedrun


class Unmoved(Speedrun):
    """Without augmentation."""

    pixels = 0


class Wide(Speedrun):
    """In the widths of the study."""

    widths = 24, 32, 256
