"""Small random data for tests of the training step; what the inputs show does not matter there."""

from typing import Any

import numpy as np

from pmapdp.data.batches import Batch
from pmapdp.data.dataset import DataSet, Split
from pmapdp.data.tfidf import FEATURES
from pmapdp.data.tokens import PADDING, UNKNOWN, VOCABULARY
from pmapdp.registry import MODELS


def random_split(examples: int, seed: int = 0) -> Split:
    """`examples` images `[n, 28, 28, 1]` uint8 of noise with labels."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (examples, 28, 28, 1), np.uint8)
    return Split(images, generator.integers(0, 10, examples, np.int32))


CLASSIFIERS = [name for name, model in MODELS.items() if not hasattr(model, "loss")]  # all but one


def random_split_for(model: str, examples: int, seed: int = 0) -> Split:
    """`examples` random inputs as `model` takes them, with labels of its classes; small ones, images of 12 x 12 pixels
    and texts of 24 words, for the convnet and the transformer, which take any size and are slow in float64."""
    generator = np.random.default_rng(seed)
    match getattr(MODELS[model], "featurizer", "images"):
        case "images":
            split = random_split(examples, seed)
            return split._replace(inputs=split.inputs[:, :12, :12]) if model == "convnet" else split
        case "tfidf":
            weights = np.where(generator.random((examples, FEATURES)) < 0.03, generator.random((examples, FEATURES)), 0)
            inputs = (weights / np.linalg.norm(weights, axis=1, keepdims=True)).astype(np.float32)
        case "tokens":
            lengths = generator.integers(0, 25, (examples, 1))  # an empty text among them would be no mistake
            ids = generator.integers(UNKNOWN, VOCABULARY, (examples, 24), np.int32)
            inputs = np.where(np.arange(24) < lengths, ids, PADDING).astype(np.int32)
    return Split(inputs, generator.integers(0, 2, examples, np.int32))


def parts(data: DataSet) -> tuple[Any, Any]:
    """The training and the test set."""
    return data.train, data.test


def whole_batch(split: Split, indices: np.ndarray) -> Batch:
    """The batch of exactly these examples, without padding."""
    indices = indices.astype(np.int32)
    return Batch(split.inputs[indices], split.labels[indices], indices, np.ones(len(indices), np.float32))
