"""The recipe's network with one change, for `--model benchmarks/speedrun/variants.py:NAME`."""

from pmapdp.models.speedrun import Speedrun


class Unmoved(Speedrun):
    """Without augmentation."""

    pixels = 0


class Channels8(Speedrun):
    """Half the widths of `Channels16`."""

    widths = 8, 16, 64


class Channels16(Speedrun):
    """In the widths from which the others are halved and doubled."""

    widths = 16, 32, 128


class Channels32(Speedrun):
    """Twice the widths of `Channels16`."""

    widths = 32, 64, 256
