"""How the recipe is chosen without the test set: the candidates, and the rule that picks one of them."""

import math

from benchmarks.speedrun.changes import UNMOVED
from benchmarks.speedrun.variants import Channels8, Channels16, Channels32
from pmapdp.models.speedrun import Speedrun
from pmapdp.recipes import RECIPES

HELD_BACK = 10_000  # examples of the training set, its last: candidates train on the others and are compared on these
SEEDS = range(10, 20)  # of each candidate: others than those of the recipe's own tables
TARGET = 0.99
MARGIN = math.sqrt(TARGET * (1 - TARGET) / HELD_BACK)  # the standard error of such an accuracy on so many examples
CLOSE = 1.1  # times the fewest seconds: a difference below a tenth may be noise

RECIPE = "speedrun"
# First the widths of the network, by the flags of `python -m pmapdp.train`.
WIDTHS = {
    RECIPE if each is Speedrun else f"{RECIPE} --model benchmarks/speedrun/variants.py:{each.__name__}": each.widths
    for each in (Channels8, Channels16, Speedrun, Channels32)
}
# Then each setting of the recipe by itself.
CONFIG = RECIPES[RECIPE].config
SETTINGS = (
    RECIPE,
    f"{RECIPE} --learning-rate {CONFIG.learning_rate / 2:g}",
    f"{RECIPE} --learning-rate {CONFIG.learning_rate * 2:g}",
    f"{RECIPE} --global-batch-size {CONFIG.global_batch_size // 2}",
    f"{RECIPE} --global-batch-size {CONFIG.global_batch_size * 2}",
    f"{RECIPE} --warmup-steps 0",
    f"{RECIPE} --label-smoothing 0",
    UNMOVED,
)


def chosen(candidates: dict[str, tuple[float, float]]) -> str | None:
    """The rule: of the candidates that reach the target and the margin, the fastest; of those that are close to it in
    seconds, the most accurate, or the first of equals. None where no candidate reaches them.

    Args:
        candidates: of each the least seconds of training, and the mean accuracy on the examples held back, over seeds.
    """
    good = {name: each for name, each in candidates.items() if each[1] >= TARGET + MARGIN}
    if not good:
        return None
    fewest = min(seconds for seconds, _ in good.values())
    return max((name for name in good if good[name][0] <= CLOSE * fewest), key=lambda name: round(good[name][1], 6))
