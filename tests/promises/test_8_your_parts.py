"""Promise 8: your model, data, loss or optimizer keeps promises 1 to 5, or is refused
in a sentence.

`test_1_one_result.py` trains a stock Flax model with batch norm and dropout;
`tests/verify` has what `verify` may say.
"""

import entry
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_job
from flax import nnx
from marks import quick
from trees import require_close

SETTINGS = {
    "devices": 3,
    "epochs": 2,
    "global_batch_size": 10,
    "dtype": "float64",
    "learning_rate": 1e-2,
}
RANDOM = np.random.default_rng(0)


class Linear(nnx.Module):
    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        self.hidden = nnx.Linear(6, 8, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.out = nnx.Linear(8, 3, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

    def __call__(self, x):
        return self.out(jnp.tanh(self.hidden(x)))


class Attention(nnx.Module):
    """Attention with dropout on its weights over `[b, 6]` as six tokens."""

    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        types = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.attention = nnx.MultiHeadAttention(
            2, 4, dropout_rate=0.3, decode=False, **types
        )
        self.embed = nnx.Linear(1, 4, **types)
        self.out = nnx.Linear(4, 3, **types)

    def __call__(self, x):
        return self.out(self.attention(self.embed(x[..., None])).mean(1))


class OfDictionary(Linear):
    """It takes a dictionary of inputs."""

    def __call__(self, inputs):
        return super().__call__(inputs["x"]) + inputs["shift"][:, None]


def squared(model, batch):
    """A loss on real targets, with a further metric."""
    errors = (model(batch.inputs) - batch.labels) ** 2
    absolute = (batch.weights * jnp.sqrt(errors).mean(-1)).sum()
    return {
        "loss": (batch.weights * errors.mean(-1)).sum(),
        "count": batch.weights.sum(),
        "distance": absolute,
    }


def data(inputs=None, labels=None, weights=None):
    if inputs is None:
        inputs = RANDOM.normal(size=(37, 6)).astype(np.float32)
    if labels is None:
        labels = RANDOM.integers(0, 3, 37).astype(np.int32)
    train = entry.Examples(inputs, labels, weights)
    return entry.data_set(train, entry.Examples(inputs, labels))


def in_out(path, value):
    """A filter of Flax: the parameters of the last layer."""
    return path[0] == "out" and isinstance(value, nnx.Param)


DATA = data()
DICTIONARY = {"x": RANDOM.normal(size=(37, 6)), "shift": RANDOM.normal(size=37)}
TARGETS = RANDOM.normal(size=(37, 3))
WEIGHTS = RANDOM.uniform(0.5, 2, 37)
RULE = {
    "optimizer": lambda schedule: optax.chain(
        optax.clip_by_global_norm(0.1), optax.lion(schedule)
    )
}
# A schedule of yours replaces the learning rate, which therefore keeps its default.
RATE = {"schedule": lambda step: 0.01 * 0.9**step, "learning_rate": 5e-3}
PARTS = {
    "model, loss, weighted data and optimizer": {
        "model": OfDictionary,
        "loss": squared,
        "data": data(inputs=DICTIONARY, labels=TARGETS, weights=WEIGHTS),
        **RULE,
        **RATE,
    },
    "model": {"model": Attention},
    "schedule and trainable": {**RATE, "trainable": in_out},
}


def train(**settings):
    return entry.train(**{"model": Linear, "data": DATA} | SETTINGS | settings)


@quick(1, "part", PARTS)
def test_what_is_yours_gives_one_result_and_resumes_with_the_same_bits(part, tmp_path):
    found = train(**PARTS[part], strategy="pmap")
    one = train(**PARTS[part], strategy="single", devices=1)
    require_close(found.state, one.state, atol=1e-10)
    for epoch, right in zip(found.epochs, one.epochs, strict=True):
        for name in ("train", "test"):
            assert epoch[name]["loss"] == pytest.approx(right[name]["loss"], abs=1e-10)
    folder = str(tmp_path / "run")
    train(**PARTS[part], strategy="pmap", workdir=folder, steps=6)
    again = train(**PARTS[part], strategy="pmap", workdir=folder)
    jax.tree.map(np.testing.assert_array_equal, again.state, found.state)


def test_your_loss_shows_its_metrics():
    targets = data(labels=TARGETS)
    part = targets.test
    trained = train(loss=squared, data=targets, strategy="jit")
    params = trained.state.params
    outputs = np.tanh(
        part.inputs @ params["hidden"]["kernel"] + params["hidden"]["bias"]
    )
    outputs = outputs @ params["out"]["kernel"] + params["out"]["bias"]
    last = trained.epochs[-1]["test"]
    assert last["loss"] == pytest.approx(
        ((outputs - part.labels) ** 2).mean(), rel=1e-6
    )
    assert last["distance"] == pytest.approx(
        np.abs(outputs - part.labels).mean(), rel=1e-6
    )
    assert "accuracy" not in last


def test_what_is_not_trained_stays():
    kept = train(trainable=in_out, strategy="pmap", optimizer="adamw", weight_decay=0.1)
    with jax.enable_x64(True):
        first = Linear(rngs=nnx.Rngs(0), dtype=jnp.float64, param_dtype=jnp.float64)
        kernel = np.asarray(first.hidden.kernel[...])
    frozen = [
        leaf
        for leaf in jax.tree.leaves(kept.state.model_state)
        if leaf.shape == kernel.shape
    ]
    assert any(np.array_equal(leaf, kernel) for leaf in frozen)


# Refused, because one result could not be kept


class DrawsByItself(Linear):
    """Noise from a stream of its own: one draw for all examples of a device."""

    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        super().__init__(rngs=rngs, dtype=dtype, param_dtype=param_dtype)
        self.noise = rngs.fork() if hasattr(rngs, "fork") else rngs

    def __call__(self, x):
        return super().__call__(x + jax.random.normal(self.noise.params(), x.shape))


class OwnNorm(Linear):
    """Moments over the examples at hand."""

    def __call__(self, x):
        return super().__call__((x - x.mean(0)) / (x.std(0) + 1e-3))


def mean_loss(model, batch):
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(batch.inputs), batch.labels
    )
    return {"loss": losses.mean(), "count": jnp.ones(())}


def without_weights(model, batch):
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(batch.inputs), batch.labels
    )
    return {"loss": losses.sum(), "count": batch.weights.sum()}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": DrawsByItself}, "random"),
        ({"model": OwnNorm}, "sum over the examples"),
        ({"loss": mean_loss}, "sum"),
        ({"loss": without_weights}, "weights"),
        ({"data": data(labels=np.zeros(36, np.int32))}, "37"),
        ({"optimizer": lambda schedule: None}, "optax"),
        ({"schedule": lambda step: "high"}, "step"),
    ],
)
def test_what_could_not_keep_one_result_is_refused(values, words):
    with pytest.raises(entry.user_error(), match=words):
        train(**values, strategy="pmap")


def test_a_resumed_run_notices_another_model_of_the_same_name(tmp_path):
    small_job.train(workdir=str(tmp_path / "run"), steps=3)

    class Net(small_job.Net):
        def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
            super().__init__(rngs=rngs, dtype=dtype, param_dtype=param_dtype)
            self.more = nnx.Linear(2, 2, rngs=rngs)

    with pytest.raises(entry.user_error(), match="checkpoint"):
        small_job.train(model=Net, workdir=str(tmp_path / "run"))
