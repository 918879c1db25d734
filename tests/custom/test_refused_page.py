"""docs/custom_refused.md shows the messages that `train` raises, each with its case."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_job
from flax import linen, nnx
from points import DATA, Net, run

from pmapdp.data.dataset import DataSet, Split, Texts
from pmapdp.errors import UserError
from pmapdp.layers import current_context
from pmapdp.loss import MetricSums

PAGE = Path(__file__).parents[2] / "docs" / "custom_refused.md"
MESSAGES = dict(
    re.findall(r"^\| ([^|]*) \| `([^|]*)` \|$", PAGE.read_text(), re.MULTILINE)
)
INPUTS = DATA.train.inputs
LABELS = DATA.train.labels


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


def squares(model, batch):
    """It doesn't look at the shapes of outputs and labels."""
    losses = jnp.square(model(batch.inputs) - batch.labels)
    return MetricSums((batch.weights * losses).sum(), None, batch.weights.sum())


def compares(model, batch):
    """Each loss grows with the number of examples that all devices have."""
    count = batch.weights.sum()
    if current_context().axis_name is not None:
        count = jax.lax.psum(count, current_context().axis_name)
    total = (batch.weights * losses_of(model, batch)).sum()
    return MetricSums(count * total, None, batch.weights.sum())


def compares_in_training(model, batch):
    if current_context().train:
        return compares(model, batch)
    total = (batch.weights * losses_of(model, batch)).sum()
    return MetricSums(total, None, batch.weights.sum())


def weighted_classes(model, batch):
    """Class 0 counts 0.6, in the accuracy too."""
    weights = batch.weights * jnp.where(batch.labels == LABELS[0], 0.6, 1)
    right = model(batch.inputs).argmax(1) == batch.labels
    total = (weights * losses_of(model, batch)).sum()
    return MetricSums(total, (weights * right).sum(), weights.sum())


def net(call):
    """A class `Net` with another forward pass, `call(model, super's, inputs)`."""

    class Changed(Net):
        def __init__(self, *, rngs):
            super().__init__(rngs=rngs)
            self.noise = rngs.noise.fork()
            self.mean = nnx.BatchStat(jnp.zeros(6))

        def __call__(self, inputs):
            return call(self, super().__call__, inputs)

    Changed.__name__ = "Net"
    return Changed


def draws(model, call, inputs):
    return call(inputs + jax.random.normal(model.noise(), inputs.shape))


def draws_by_numpy(model, call, inputs):
    return call(inputs + np.random.normal(size=6))


def keeps_a_mean(model, call, inputs):
    model.mean[...] = inputs.mean(0)
    return call(inputs)


def sows(model, call, inputs):
    model.sow(nnx.Intermediate, "seen", inputs)
    return call(inputs)


def bridged(rngs):
    """A network with a batch norm of Linen."""
    layers = (linen.BatchNorm(use_running_average=False), linen.Dense(3))
    module = nnx.bridge.ToNNX(linen.Sequential(layers), rngs=rngs)
    return nnx.bridge.lazy_init(module, INPUTS[:1])


class Changing:
    """Examples with a random transform."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return INPUTS[index] + np.random.normal(size=6), LABELS[index]


PICTURES = np.zeros((40, 1, 12, 12), np.float32)
TEXTS = ["good film", "bad film"] * 20
CASES = {
    "it's one number": {"loss": one_number},
    "its count forgets the weights": {"loss": count_without_weights},
    "it's a mean, compares examples with each other, or forgets the weights": {
        "loss": without_weights
    },
    "outputs `[n, 1]` against labels `[n]`, whose difference is `[n, n]`": {
        "model": net(lambda model, call, inputs: call(inputs)[:, :1]),
        "loss": squares,
        "data": {"train": (INPUTS, INPUTS.sum(1))},
    },
    "weights `[n]` times errors `[n, 3]`": {
        "loss": squares,
        "data": {"train": (INPUTS, INPUTS[:, :3])},
    },
    "it gathers the batch in evaluation, too": {"loss": compares},
    "it compares examples, with `--accumulate`": {"loss": compares_in_training},
    "weight decay is added once a batch": {"loss": with_decay},
    "the accuracy has weights of the loss's own": {"loss": weighted_classes},
    "channels first": {
        "model": small_job.OfPictures,
        "data": DataSet(Split(PICTURES, np.zeros(40, np.int32))),
    },
    "a layer draws random numbers of its own": {"model": net(draws)},
    "NumPy's random numbers in `__call__`": {"model": net(draws_by_numpy)},
    "a layer keeps statistics of its own device's rows": {"model": net(keeps_a_mean)},
    "`nnx.sow`": {"model": net(sows)},
    "batch norm of Linen that takes moments": {"model": bridged},
    "texts, and a model that takes arrays": {
        "data": {"train": Texts(TEXTS, [0, 1] * 20)}
    },
    "labels from 1, or with gaps": {"data": {"train": (INPUTS, LABELS + 1)}},
    "a part has another name": {"data": {"train": (INPUTS, LABELS), "val": ()}},
    "texts in place of numbers": {"data": {"train": (TEXTS, [0, 1] * 20)}},
    "rows of different lengths": {"data": {"train": ([[1], [1, 2]], [0, 1])}},
    "a class without a weight": {"data": {"train": (INPUTS, LABELS, {0: 1.0, 1: 5.0})}},
    "a random transform": {"data": {"train": Changing()}},
    "an optimizer with a learning rate of its own": {
        "optimizer": lambda schedule: optax.adam(0.1)
    },
}


def test_every_message_of_the_page_has_its_case():
    assert list(CASES) == list(MESSAGES)


@pytest.mark.parametrize("what", CASES)
def test_the_page_shows_the_message(what):
    """Word for word, but for what the page leaves out (`...`) and the class's name."""
    shown = MESSAGES[what].replace("Pictures", "OfPictures")
    pattern = re.escape(shown).replace(re.escape("..."), ".*")
    accumulate = 2 if "--accumulate" in what else 1
    with pytest.raises(UserError) as error:
        run(custom=CASES[what], accumulate=accumulate)
    assert re.fullmatch(pattern, error.value.message)
