"""Measurements of pmapdp, each a ratio within one run on one machine."""

from typing import Any

import numpy as np

from pmapdp.config import Config
from pmapdp.data.dataset import Split


def load_work(arguments: list[str]) -> tuple[Split, str, str, int, int, int]:
    """Read `DATA.npz STRATEGY MODEL DEVICES GLOBAL_BATCH EXAMPLES EPOCHS`.

    Returns the examples and the other five.
    """
    path, strategy, model, *numbers = arguments
    devices, batch, examples, epochs = map(int, numbers)
    with np.load(path) as data:
        split = Split(
            data["images"][:examples], data["labels"][:examples].astype(np.int32)
        )
    return split, strategy, model, devices, batch, epochs


def make_config(
    strategy: str, devices: int, batch: int, epochs: int, **options: Any
) -> Config:
    """Make the trainer do what the other programs do.

    Adam at a constant rate, without label smoothing.
    """
    return Config(
        strategy=strategy,
        devices=devices,
        global_batch_size=batch,
        epochs=epochs,
        learning_rate=1e-3,
        schedule="constant",
        label_smoothing=0.0,
        progress=False,
        **options,
    )
