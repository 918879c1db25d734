"""A part that would break a promise is refused before the first update.

`test_8_your_parts.py` and `test_mistakes.py` have more.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_job
from flax import linen, nnx
from points import DATA, Net, run
from trees import require_close

from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import DivergedError, UserError
from pmapdp.layers import current_context
from pmapdp.loss import MetricSums

# Sorted by class.
SORTED = DataSet(
    Split(*(array[DATA.train.labels.argsort()] for array in DATA.train[:2]))
)
REAL = DataSet(
    DATA.train._replace(labels=DATA.train.inputs @ np.arange(6, dtype=np.float32))
)


class Line(nnx.Module):
    """`[b, 6]` to `[b]`."""

    def __init__(self, *, rngs):
        self.out = nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(x)[:, 0]


def squares(model, batch):
    return jnp.square(model(batch.inputs) - batch.labels)


def loss(change, train=False):
    """A right loss, changed by `change(model, batch, sums)`, or only in training."""

    def changed(model, batch):
        sums = MetricSums(
            (batch.weights * squares(model, batch)).sum(), None, batch.weights.sum()
        )
        if train and not current_context().train:
            return sums
        return sums._replace(**change(model, batch, sums))

    return {"model": Line, "data": REAL, "loss": changed}


def noisy(model, batch, noise):
    return {
        "loss": (
            batch.weights * jnp.square(model(batch.inputs + noise) - batch.labels)
        ).sum()
    }


def two_weights(model, batch, sums):
    right = (batch.weights * (batch.labels > 0)).sum()
    return {
        "count": (batch.weights * (1 + 2.0 * (batch.labels > 0))).sum(),
        "correct": right,
    }


def own_weights(model, batch):
    """The accuracy has three times the weight for the last class."""
    logits = model(batch.inputs)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    right = (1 + 2.0 * (batch.labels == 2)) * (logits.argmax(1) == batch.labels)
    return MetricSums(
        (batch.weights * losses).sum(),
        (batch.weights * right).sum(),
        batch.weights.sum(),
    )


def contrast(model, batch):
    """Each example against all others of the devices."""
    outputs = model(batch.inputs)
    weights = batch.weights
    everything = outputs
    counts = weights
    first = 0
    axis = current_context().axis_name
    if axis is not None:
        everything = jax.lax.all_gather(outputs, axis, tiled=True)
        counts = jax.lax.all_gather(weights, axis, tiled=True)
        first = jax.lax.axis_index(axis) * len(outputs)
    scores = jnp.where(counts > 0, outputs @ everything.T, -1e9)
    return optax.softmax_cross_entropy_with_integer_labels(
        scores, first + jnp.arange(outputs.shape[0])
    )


def gathered(model, batch):
    losses = contrast(model, batch)
    return MetricSums((batch.weights * losses).sum(), None, batch.weights.sum())


def gathered_in_training(model, batch):
    """As docs/custom_reference.md has it: exact on any number of devices."""
    if current_context().train:
        return gathered(model, batch)
    losses = jnp.square(model(batch.inputs)).sum(1)
    return MetricSums((batch.weights * losses).sum(), None, batch.weights.sum())


NO_SUM = r"is not a sum over .* return \(batch.weights \* losses\).sum\(\)"
NO_MICRO_BATCHES = r"in micro-batches is not a sum .* accumulate=2 it compares only"
LOSSES = [
    (
        loss(
            lambda m, b, sums: noisy(
                m, b, jax.random.normal(current_context().keys[0], (6,))
            ),
            True,
        ),
        NO_SUM,
    ),
    (
        loss(two_weights),
        "training example 0 counts 3, and adds 1 to correct: return correct=None",
    ),
    (
        {"data": SORTED, "loss": own_weights},
        r"training example \d+ counts 1, and adds 3 to correct: return correct=None",
    ),
    (
        loss(lambda m, b, sums: {"metrics": {"loss": sums.loss}}),
        "has a metric called loss",
    ),
    (
        loss(lambda m, b, sums: {"metrics": {"correct": sums.loss}}),
        "has a metric called correct",
    ),
    (
        loss(lambda m, b, sums: {"loss": squares(m, b)}),
        r"returns loss as float32 \[16\]: return its sum",
    ),
]


class Moments(nnx.Module):
    """Keeps a running mean of what its device sees, or all see (`everywhere`)."""

    everywhere = weighted = False

    def __init__(self, *, rngs):
        self.mean = nnx.BatchStat(jnp.zeros(6))
        self.out = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        context = current_context()
        if context.train:
            weights = jnp.ones(len(x))
            if self.weighted:
                weights = context.weights
            sums = (weights[:, None] * x).sum(0), weights.sum()
            if self.everywhere and context.axis_name is not None:
                sums = jax.lax.psum(sums, context.axis_name)
            self.mean[...] = 0.9 * self.mean[...] + 0.1 * sums[0] / jnp.maximum(
                sums[1], 1
            )
        return self.out(x)


def moments(**kind):
    return type("Moments", (Moments,), kind)


def net(call):
    """The network with another forward pass, `call(super's, x)`."""

    class Changed(Net):
        def __call__(self, x):
            return call(super().__call__, x)

    return Changed


def bridged(layer):
    """A network with a layer of Linen."""

    def make(rngs):
        net = linen.Sequential((layer, linen.Dense(3)))
        return nnx.bridge.lazy_init(nnx.bridge.ToNNX(net, rngs=rngs), jnp.ones((1, 6)))

    return make


MODELS = [
    (
        {"data": DataSet([(np.ones(6), label) for label in (0, 3, 2, 1) * 10])},
        "are from 0 to 3, and the model",
    ),
    (
        {"data": DataSet(DATA.train._replace(labels=np.eye(3)[DATA.train.labels]))},
        r"of one-hot .* labels.argmax",
    ),
    (
        {"data": DataSet(DATA.train, classes=("a", "b"))},
        "the data name 2 classes, and Net has 3 logits: name all",
    ),
    (
        {"model": net(lambda call, x: (call(x), x))},
        r"Changed gives float32 \[16, 3\], float32 \[16, 6\]",
    ),
    ({"model": lambda rngs: 5}, "<lambda> gives 5: give a class or function of rngs"),
    (
        {"model": bridged(linen.Dropout(0.5, deterministic=False))},
        "ToNNX draws random numbers in a layer of Linen, .* replace dropout",
    ),
    (
        {"model": bridged(linen.BatchNorm(use_running_average=False))},
        r"ToNNX does not take inputs .*: of Linen, nnx.bridge.ToNNX brings layers with",
    ),
    (
        {"model": moments(weighted=True)},
        "Moments writes mean from the rows of one device, or padding with them",
    ),
    (
        {"model": moments(everywhere=True)},
        "Moments writes mean from the rows of one device, or padding with them",
    ),
]
VALUES = [
    (
        {"data": DataSet(DATA.train, augment=lambda inputs: inputs)},
        "Net fails in training .*: correct .* or augment",
    ),
    (
        {"optimizer": optax.adam(0.1)},
        r"built already: .* as in optimizer=optax.adam and learning_rate=0.001",
    ),
    (
        {"optimizer": lambda schedule: schedule},
        r"optimizer=.* fails .*: give a function .* optimizer=optax.lion",
    ),
    (
        {
            "optimizer": lambda rate: optax.chain(
                optax.contrib.reduce_on_plateau(), optax.sgd(rate)
            )
        },
        "fails .*'value'",
    ),
    (
        {"trainable": nnx.PathContains("tail")},
        "chooses no parameter of head.bias, head.kernel",
    ),
    (
        {"schedule": lambda step: 0.1 if step > 3 else 0.2},
        "gives no learning rate .*: give a function of JAX",
    ),
    (
        {"schedule": lambda step: jnp.full(2, 0.1)},
        r"gives no learning rate .its shape is \[2\].: give a function of JAX",
    ),
    (
        {"metrics": lambda logits, batch: 3},
        "Net fails in training .*: correct its __call__, its loss, metrics=",
    ),
    (
        {"metrics": lambda logits, batch: {"x": (logits.argmax(1) == 0).mean()}},
        "x in the loss of Net ",
    ),
    (
        {"metrics": lambda logits, batch: {}, "loss": lambda m, b: 0},
        "metrics= is for the cross-entropy: return",
    ),
]


@pytest.mark.filterwarnings("error::UserWarning")  # of JAX, about float64
@pytest.mark.parametrize(
    ("values", "sentence"),
    [*LOSSES, *MODELS, *VALUES],
    ids=lambda value: value[:60] if isinstance(value, str) else "-".join(value),
)
def test_what_would_break_a_promise_is_one_sentence(values, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        run(custom=values, global_batch_size=None)
    assert "\n" not in str(error.value)


def test_flags_in_an_error_of_your_model_stay_as_they_are():
    advice = "run nvidia-smi --query-gpu driver_version --format csv,noheader"

    class NoDriver(Net):
        def __call__(self, x):
            raise RuntimeError(advice)

    with pytest.raises(UserError, match="NoDriver does not take inputs") as error:
        run(NoDriver)
    assert f"({advice})" in str(error.value)
    assert f"({advice})" in error.value.message


@pytest.mark.parametrize("row", [0, -1])
def test_a_model_that_scales_by_the_largest_input_of_a_batch_is_refused(row):
    """That input is in the first half of the trial, or in the second."""
    inputs = DATA.train.inputs.copy()
    inputs[row] *= 10
    scaled = net(lambda call, x: call(x / jnp.abs(x).max()))
    with pytest.raises(UserError, match="is not a sum over the examples"):
        run(scaled, {"data": DataSet(DATA.train._replace(inputs=inputs))})


def test_a_layer_that_averages_over_the_devices_trains():
    assert run(moments(everywhere=True, weighted=True), steps=1, strategy="pmap").epochs


def test_jax_finds_the_operation_that_made_a_nan():
    logarithm = net(lambda call, x: call(jnp.log(x)))
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="log"):
        run(logarithm, strategy="single", devices=1)


def test_a_model_that_is_built_already_is_refused():
    message = "the model is a Net that is built already: give the class or function"
    with pytest.raises(UserError, match=message):
        run(Net(rngs=nnx.Rngs(0)))


def test_a_dtype_that_the_model_does_not_take_is_refused():
    message = 'dtype="bfloat16" has no effect on Line, which takes no dtype'
    with pytest.raises(UserError, match=message):
        run(Line, dtype="bfloat16")


# The last batch of 18 has padding.
GATHERED = {"optimizer": "sgd", "global_batch_size": 18, "dtype": "float64"}


@pytest.mark.slow
def test_a_loss_over_the_whole_batch_trains_alike_under_every_strategy():
    custom = {"loss": gathered_in_training}
    alone = run(custom=custom, strategy="single", devices=1, **GATHERED)
    for strategy in ("pmap", "shard_map", "jit"):
        result = run(custom=custom, strategy=strategy, devices=4, **GATHERED)
        require_close(result.state.params, alone.state.params, atol=1e-10)


@pytest.mark.parametrize("model", [Net, small_job.Net], ids=["plain", "batch norm"])
def test_a_loss_over_the_whole_batch_is_refused_with_micro_batches(model):
    custom = {"model": model, "loss": gathered_in_training}
    with pytest.raises(UserError, match=NO_MICRO_BATCHES):
        run(custom=custom, accumulate=2, **GATHERED)


def test_batch_norm_trains_with_micro_batches():
    """Its moments differ between them, which isn't taken for a loss of the batch."""
    run(small_job.Net, accumulate=2, steps=1, **GATHERED)


class Words(nnx.Module):
    """Ids to two logits. The table lacks the last id, for which Flax gives NaN."""

    def __init__(self, *, rngs, layer):
        self.embed = nnx.Embed(20, 16, rngs=rngs)
        self.layer = layer(rngs)
        self.out = nnx.Linear(16, 2, rngs=rngs)

    def __call__(self, ids):
        return self.out(self.layer(self.embed(ids)).mean(1))


@pytest.mark.parametrize(
    "layer",
    [
        lambda rngs: nnx.Dropout(0.1, rngs=rngs),
        lambda rngs: nnx.RNN(nnx.GRUCell(16, 16, rngs=rngs), rngs=rngs),
    ],
)
def test_a_first_loss_of_nan_names_the_example_and_not_the_random_numbers(layer):
    ids = np.random.default_rng(0).integers(0, 20, (40, 8))
    ids[17, 3] = 20
    data = {"train": (ids, ids[:, 0] % 2)}
    with pytest.raises(DivergedError, match="training example 17"):
        run(partial(Words, layer=layer), {"data": data}, global_batch_size=40)
