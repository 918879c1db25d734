"""Named configurations: every setting of a published system in one place. Flags on the command line override them."""

from dataclasses import dataclass, field

from pmapdp.config import Config


@dataclass(frozen=True)
class Recipe:
    """A configuration, what it stands for, and the figures that its source reports."""

    summary: str
    config: Config
    reported: dict[str, float] = field(default_factory=dict)


RECIPES = {
    "digits": Recipe(
        "a convolutional network on scikit-learn's digits, the default; needs no download",
        Config(
            recipe="digits",
            dataset="digits",
            model="cnn",
            global_batch_size=64,
            epochs=20,
            optimizer="adam",
            learning_rate=5e-3,
            schedule="cosine",
            label_smoothing=0.1,
        ),
    ),
}
