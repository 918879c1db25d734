"""docs/custom_refused.md shows the messages that `train` raises."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_job
from flax import nnx
from points import DATA, Net, run

from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError
from pmapdp.loss import MetricSums

PAGE = Path(__file__).parents[2] / "docs" / "custom_refused.md"
MESSAGES = dict(re.findall(r"^\| (.*?) \| `(.*?)` \|$", PAGE.read_text(), re.MULTILINE))


def losses_of(model, batch):
    return optax.softmax_cross_entropy_with_integer_labels(
        model(batch.inputs), batch.labels
    )


def one_number(model, batch):
    return losses_of(model, batch).mean()


def without_weights(model, batch):
    return MetricSums(losses_of(model, batch).sum(), None, batch.weights.sum())


def count_without_weights(model, batch):
    total = (batch.weights * losses_of(model, batch)).sum()
    return MetricSums(total, None, jnp.ones_like(batch.weights).sum())


def with_decay(model, batch):
    kernels = jax.tree.leaves(nnx.state(model, nnx.Param))
    decay = sum(jnp.square(kernel).sum() for kernel in kernels)
    total = (batch.weights * losses_of(model, batch)).sum() + decay
    return MetricSums(total, None, batch.weights.sum())


class SowingNet(Net):
    def __call__(self, inputs):
        self.sow(nnx.Intermediate, "seen", inputs)
        return super().__call__(inputs)


SowingNet.__name__ = "Net"
IMAGES = np.zeros((40, 1, 12, 12), np.float32)
PICTURES = DataSet(Split(IMAGES, np.zeros(40, np.int32)))
FROM_ONE = DataSet(DATA.train._replace(labels=DATA.train.labels + 1))
CASES = {
    "it's one number": {"loss": one_number},
    "its count forgets the weights": {"loss": count_without_weights},
    "it's a mean, compares examples with each other, or forgets the weights": {
        "loss": without_weights
    },
    "weight decay is added once a batch": {"loss": with_decay},
    "channels first": {"model": small_job.OfPictures, "data": PICTURES},
    "`nnx.sow`": {"model": SowingNet},
    "labels from 1, or with gaps": {"data": FROM_ONE},
}


@pytest.mark.parametrize("what", CASES)
def test_the_page_shows_the_message(what):
    """Word for word, but for what the page leaves out (`...`) and the class's name."""
    shown = MESSAGES[what].replace("Pictures", "OfPictures")
    pattern = re.escape(shown).replace(re.escape("..."), ".*")
    with pytest.raises(UserError) as error:
        run(own=CASES[what])
    assert re.fullmatch(pattern, error.value.message)
