"""The way to the recipe `speedrun`, change by change: flags of `python -m pmapdp.train`."""

from typing import NamedTuple


class Change(NamedTuple):
    """A run beside others.

    Attributes:
        words: what changed since the row before, or against the recipe.
        flags: of `python -m pmapdp.train`.
    """

    words: str
    flags: str


GUIDE = "keras-guide --epochs 3 --no-draw-sharding"
UNMOVED = "speedrun --model benchmarks/speedrun/variants.py:Unmoved"
# Each is the one before with one change.
WAY = (
    Change("where we began: keras-guide, 3 epochs, 8 devices", GUIDE),
    Change("one device", f"{GUIDE} --strategy single"),
    Change("a smaller network", f"{UNMOVED} --epochs 3 --label-smoothing 0 --warmup-steps 0 --learning-rate 1e-3"),
    Change("one epoch", f"{UNMOVED} --label-smoothing 0 --warmup-steps 0 --learning-rate 1e-3"),
    Change("a higher learning rate after a warm-up", f"{UNMOVED} --label-smoothing 0"),
    Change("label smoothing", UNMOVED),
    Change("images moved by up to a pixel: the recipe", "speedrun"),
    Change("the same again, with its programs in the compile cache", "speedrun"),
)
# Each is the recipe with one change.
AROUND = (
    Change("a constant learning rate", "speedrun --schedule constant"),
    Change("batch size 32", "speedrun --global-batch-size 32"),
    Change("batch size 128", "speedrun --global-batch-size 128"),
    Change("one update per dispatch", "speedrun --steps-per-dispatch 1"),
    Change("bfloat16", "speedrun --dtype bfloat16"),
    Change("2 devices, shard_map", "speedrun --strategy shard_map --devices 2"),
    Change("8 devices, pmap", "speedrun --strategy pmap --devices 8"),
)
