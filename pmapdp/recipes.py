"""Named configurations: settings of published systems. Flags override them.

Each names its data, model, step, optimizer and loss, so that a new default of these
doesn't change it.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from pmapdp.config import Config
from pmapdp.errors import UserError, unknown_name


@dataclass(frozen=True)
class Recipe:
    """A configuration, and the figures that its source reports.

    Attributes:
        summary: One line for --help.
        config: The settings.
        reported: {metric: {epoch, from 1: figure}}.
    """

    summary: str
    config: Config
    reported: dict[str, dict[int, float]] = field(default_factory=dict)


# "Distributed training with DTensor", TensorFlow's tutorial, which reports no figures.
# It takes the gradient of the summed loss times 0.01, which at batch 64 is the mean's
# times 0.64, and keeps this rate. Ours falls to 0 along a cosine, so that the accuracy
# doesn't depend on the last few updates.
DTENSOR = Config(
    recipe="dtensor-data",
    dataset="imdb",
    model="text_mlp",
    strategy="jit",
    devices=8,
    global_batch_size=64,
    epochs=6,
    optimizer="sgd",
    learning_rate=0.64,
    schedule="cosine",
    label_smoothing=0.0,
)

ALL = (
    Recipe(
        "a small CNN on scikit-learn's digits, the default; no download",
        Config(),  # its settings are the defaults in config.py
    ),
    # tf.distribute.MirroredStrategy with Keras Model.fit, TensorFlow's tutorial. On
    # more than one device the global batch grows with the devices, and the learning
    # rate with the global batch. The label smoothing is ours: it brings the test
    # accuracy above the reported one, and makes the losses higher.
    Recipe(
        "the CNN of TensorFlow's MirroredStrategy tutorial on MNIST",
        Config(
            recipe="mirrored",
            dataset="mnist",
            model="cnn",
            strategy="pmap",
            per_device_batch_size=64,
            epochs=12,
            optimizer="adam",
            learning_rate=1e-3,
            schedule="piecewise",
            switch_epochs=(3, 7),
            scale_learning_rate="linear",
            label_smoothing=0.1,
        ),
        {
            "train/accuracy": {1: 0.9401, 2: 0.9813, 3: 0.9864, 4: 0.9933, 12: 0.9967},
            "train/loss": {12: 0.0144},
            "test/accuracy": {12: 0.9879},
            "test/loss": {12: 0.0373},
        },
    ),
    # "Multi-GPU distributed training with JAX", Keras's guide. It reports the loss of
    # an epoch's last batch, and ours is the epoch's mean. It neither shuffles nor
    # evaluates, and it drops the last batch, which we don't. Its learning rate is
    # constant. Ours falls to 0 along a cosine, so that the accuracy doesn't depend on
    # the last few updates.
    Recipe(
        "the batch-norm convnet of the Keras-on-JAX guide on MNIST",
        Config(
            recipe="keras-guide",
            dataset="mnist",
            model="convnet",
            strategy="jit",
            global_batch_size=64,
            epochs=2,
            optimizer="adam",
            learning_rate=1e-3,
            schedule="cosine",
            draw_sharding=True,
            label_smoothing=0.0,
        ),
        {"train/loss": {1: 0.286, 2: 0.237}},
    ),
    # "JAX for PyTorch users", a blog in three parts: three linear layers, and weights
    # scaled by 0.01. Its SGD is plain, and ours has momentum.
    Recipe(
        'the MLP of the blog "JAX for PyTorch users" on MNIST',
        Config(
            recipe="blog-mlp",
            dataset="mnist",
            model="mlp",
            strategy="pmap",
            global_batch_size=128,
            epochs=8,
            optimizer="momentum",
            learning_rate=0.05,
            schedule="cosine",
            label_smoothing=0.0,
        ),
    ),
    # Ours: 99 % on MNIST in as few seconds as two cores of a CPU allow. Everything was
    # chosen on the last 10,000 examples of the training set, without the test set.
    Recipe(
        "a small network that reaches 99 % on MNIST in a few seconds",
        Config(
            recipe="speedrun",
            dataset="mnist",
            model="speedrun",
            strategy="single",
            global_batch_size=64,
            epochs=1,
            optimizer="adam",
            learning_rate=1e-2,
            schedule="cosine",
            warmup_steps=100,
            label_smoothing=0.1,
        ),
    ),
    Recipe("TensorFlow's DTensor tutorial: an MLP on IMDB's tf-idf weights", DTENSOR),
    # The same network and step on the tutorial's other meshes. Only the layout differs.
    Recipe(
        "the same on 4 x 2 devices, the hidden units split over two",
        dataclasses.replace(
            DTENSOR, recipe="dtensor-model", mesh="data=4,model=2", layout="model"
        ),
    ),
    Recipe(
        "the same on 2 x 2 x 2 devices, the features split too",
        dataclasses.replace(
            DTENSOR,
            recipe="dtensor-spatial",
            mesh="data=2,feature=2,model=2",
            layout="spatial",
        ),
    ),
    # Ours: to show that a transformer gives one result too.
    Recipe(
        "a small transformer on the words of IMDB's reviews",
        Config(
            recipe="imdb-transformer",
            dataset="imdb",
            model="transformer",
            strategy="jit",
            global_batch_size=64,
            epochs=3,
            optimizer="adam",
            learning_rate=1e-3,
            schedule="cosine",
            label_smoothing=0.0,
        ),
    ),
    # "Scale up Flax NNX on multiple devices", Flax's guide: a regression on random
    # numbers (`models/dot_relu_dot.py`), an update an epoch. JAX's random generator has
    # changed since, so the losses differ, on one device too.
    Recipe(
        "two matrices on a 2x4 mesh, as in Flax's guide to scaling up",
        Config(
            recipe="nnx-mesh",
            dataset="random_numbers",
            model="dot_relu_dot",
            strategy="jit",
            mesh="data=2,model=4",
            layout="model",
            global_batch_size=8,
            epochs=5,
            optimizer="adam",
            learning_rate=1e-3,
            draw_sharding=True,
            schedule="constant",
            label_smoothing=0.0,
        ),
        {"train/loss": {1: 1.455, 2: 0.765, 3: 0.510, 4: 0.378, 5: 0.281}},
    ),
)
RECIPES = {recipe.config.recipe: recipe for recipe in ALL}


def require_recipe(config: Config) -> None:
    """Refuse a recipe's name without its settings.

    From Python, the name by itself chooses nothing.
    """
    if config.recipe not in RECIPES:
        raise unknown_name("recipe", config.recipe, RECIPES)
    recipe = vars(RECIPES[config.recipe].config)
    defaults = vars(Config(recipe=config.recipe))
    # If none of its own settings is there, the recipe was only named.
    special = [name for name, value in recipe.items() if value != defaults[name]]
    if special and all(getattr(config, name) != recipe[name] for name in special):
        raise UserError(
            f"recipe={config.recipe!r} alone chooses no settings: give "
            f"pmapdp.recipes.RECIPES[{config.recipe!r}].config"
        )


def compare_with_reported(
    config: Config, epochs: list[dict[str, Any]], per_epoch: int
) -> list[str]:
    """Return lines that compare a run with the reported figures.

    There are none if its data, model or number of epochs differs.
    """
    recipe = RECIPES[config.recipe]
    for name in ("dataset", "model", "epochs"):
        if getattr(config, name) != getattr(recipe.config, name):
            return []
    # --steps may end in the middle of an epoch.
    whole_epochs = {
        epoch["epoch"]: epoch
        for epoch in epochs
        if epoch["step"] == epoch["epoch"] * per_epoch
    }
    table = []
    for metric, figures in recipe.reported.items():
        part, name = metric.split("/")
        for epoch, figure in figures.items():
            if epoch in whole_epochs:
                label = f"{part} {name}, epoch {epoch}"
                result = whole_epochs[epoch][part][name]
                table.append(f"{label:<40}{figure:9.4f}{result:11.4f}")
    if not table:
        return []
    return ["", f"{'reported':>49}{'here':>11}", *table]
