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

from pmapdp.config import Config
from pmapdp.data.dataset import DataSet, Split, Texts
from pmapdp.errors import UserError
from pmapdp.layers import current_context
from pmapdp.loss import MetricSums

PAGE = Path(__file__).parents[2] / "docs" / "custom_refused.md"
TABLES, _, _ = PAGE.read_text().partition("## How pmapdp finds out")
# {what is wrong: message}, without the sentences that lead further.
MESSAGES = {
    meaning.partition(". ")[0]: message
    for message, meaning in re.findall(r"^\| `(.*?)` \| (.*) \|$", TABLES, re.MULTILINE)
}
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


def raises(model, call, inputs):
    raise RuntimeError("a mistake")


class WithoutRngs(Net):
    def __init__(self):
        super().__init__(rngs=nnx.Rngs(0))


class LayerWithoutRngs(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(6, 3)


class PlainList(nnx.Module):
    def __init__(self, *, rngs):
        self.layers = [nnx.Linear(6, 3, rngs=rngs)]


class TakesTrain(Net):
    def __call__(self, inputs, train):
        return super().__call__(inputs)


class ReadsTraining(Net):
    def __call__(self, inputs):
        return super().__call__(inputs) if self.training else inputs


class HasForward(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(6, 3, rngs=rngs)

    def forward(self, inputs):
        return self.out(inputs)


def bridged(layer):
    """A network with a layer of Linen."""

    def make(rngs):
        module = nnx.bridge.ToNNX(linen.Sequential((layer, linen.Dense(3))), rngs=rngs)
        return nnx.bridge.lazy_init(module, INPUTS[:1])

    return make


class Changing:
    """Examples with a random transform."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return INPUTS[index] + np.random.normal(size=6), LABELS[index]


PICTURES = np.zeros((40, 1, 12, 12), np.float32)
TEXTS = ["good film", "bad film"] * 20


def built():
    """Build a model, which starts JAX, so only the test calls it."""
    return {"model": Net(rngs=nnx.Rngs(0))}


CASES = {
    "It returns one number": {"loss": one_number},
    "Its count forgets the weights": {"loss": count_without_weights},
    "It's a mean, compares examples with each other, or forgets the weights": {
        "loss": without_weights
    },
    "Outputs are `[n, 1]` and labels `[n]`, so their difference is `[n, n]`": {
        "model": net(lambda model, call, inputs: call(inputs)[:, :1]),
        "loss": squares,
        "data": {"train": (INPUTS, INPUTS.sum(1))},
    },
    "Weights are `[n]` and errors `[n, 3]`": {
        "loss": squares,
        "data": {"train": (INPUTS, INPUTS[:, :3])},
    },
    "It gathers the batch in evaluation as well": {"loss": compares},
    "It compares examples, with `--accumulate`": {"loss": compares_in_training},
    "It takes `(logits, labels)`": {
        "loss": optax.softmax_cross_entropy_with_integer_labels
    },
    "It adds weight decay once a batch": {"loss": with_decay},
    "It weights the accuracy as it weights the loss": {"loss": weighted_classes},
    "Its `__init__` takes no `rngs`": {"model": WithoutRngs},
    "A layer gets no `rngs`": {"model": LayerWithoutRngs},
    "Its layers are in a plain list": {"model": PlainList},
    "It waits for `train`": {"model": TakesTrain},
    "It reads PyTorch's `self.training`": {"model": ReadsTraining},
    "Its method is called `forward`": {"model": HasForward},
    "The channels come first": {
        "model": small_job.OfPictures,
        "data": DataSet(Split(PICTURES, np.zeros(40, np.int32))),
    },
    "A layer draws its own random numbers": {"model": net(draws)},
    "Linen's dropout draws random numbers": {
        "model": bridged(linen.Dropout(0.5, deterministic=False))
    },
    "NumPy draws random numbers in `__call__`": {"model": net(draws_by_numpy)},
    "A layer keeps statistics of one device's rows": {"model": net(keeps_a_mean)},
    "The model calls `nnx.sow`": {"model": net(sows)},
    "Linen's batch norm takes moments": {
        "model": bridged(linen.BatchNorm(use_running_average=False))
    },
    "`model=Net(...)` instead of `model=Net`": built,
    "The data are texts, and the model takes arrays": {
        "data": {"train": Texts(TEXTS, [0, 1] * 20)}
    },
    "Your file raises an error, whose traceback comes before the message": {
        "model": net(raises)
    },
    "Labels begin at 1, or have gaps": {"data": {"train": (INPUTS, LABELS + 1)}},
    "A part has another name": {"data": {"train": (INPUTS, LABELS), "val": ()}},
    "The inputs are texts instead of numbers": {
        "data": {"train": (TEXTS, [0, 1] * 20)}
    },
    "The rows have different lengths": {"data": {"train": ([[1], [1, 2]], [0, 1])}},
    "A class has no weight": {"data": {"train": (INPUTS, LABELS, {0: 1.0, 1: 5.0})}},
    "A transform is random": {"data": {"train": Changing()}},
    "`optimizer=optax.adam(1e-3)` instead of `optimizer=optax.adam` and "
    "`learning_rate=1e-3`": {"optimizer": optax.adam(1e-3)},
    "The optimizer has a learning rate of its own": {
        "optimizer": lambda schedule: optax.adam(0.1)
    },
}


BATCH_SIZE = (
    "The batch of all devices is called `global_batch_size`, and one device's is "
    "`per_device_batch_size`"
)


def test_every_message_of_the_page_has_its_case():
    assert [*CASES, BATCH_SIZE] == list(MESSAGES)


@pytest.mark.parametrize("what", CASES)
def test_the_page_shows_the_message(what):
    """Word for word, but for what the page leaves out (`...`) and the class's name."""
    accumulate = 2 if "--accumulate" in what else 1
    custom = CASES[what]
    if custom is built:
        custom = built()
    shown = MESSAGES[what]
    model = custom.get("model", Net)
    if isinstance(model, type):
        shown = shown.replace("Net", model.__name__)
    pattern = re.escape(shown).replace(re.escape("..."), ".*")
    with pytest.raises(UserError) as error:
        run(custom=custom, accumulate=accumulate)
    assert re.fullmatch(pattern, error.value.message)


def test_a_setting_of_another_name_is_an_error_of_python():
    with pytest.raises(TypeError) as error:
        Config(**{"batch_size": 64})
    assert str(error.value) == MESSAGES[BATCH_SIZE]
