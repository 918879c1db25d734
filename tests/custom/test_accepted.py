"""Your model, loss, data and optimizer keep the promises, also once exported."""

import dataclasses
import re

import entry
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_job
from flax import linen, nnx
from marks import quick
from points import DATA, Net, run
from trees import require_close

from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError
from pmapdp.evaluate import evaluate_exported, evaluate_run
from pmapdp.export import export_run, load_exported
from pmapdp.layers import current_context
from pmapdp.loss import MetricSums

# Those that draw nothing and write nothing.
LINEN = linen.Sequential(
    [
        linen.BatchNorm(use_running_average=True),
        linen.Dropout(0.5, deterministic=True),
        linen.Dense(3),
    ]
)


class Everything(nnx.Module):
    """`[b, 6]` to three logits, through layers of each kind, with three constants."""

    def __init__(self, *, rngs):
        self.linen = nnx.bridge.lazy_init(
            nnx.bridge.ToNNX(LINEN, rngs=rngs), jnp.ones((1, 6))
        )
        self.gru = nnx.RNN(nnx.GRUCell(1, 8, rngs=rngs), rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            2, 8, dropout_rate=0.2, decode=False, rngs=rngs
        )
        self.norm = nnx.WeightNorm(nnx.Linear(8, 8, rngs=rngs), rngs=rngs)
        self.adapted = nnx.LoRALinear(8, 8, lora_rank=2, rngs=rngs)
        self.first = nnx.Linear(8, 8, rngs=rngs)
        self.tied = nnx.Linear(8, 8, rngs=rngs)
        self.tied.kernel = self.first.kernel
        self.out = nnx.Linear(8, 3, rngs=rngs)
        self.rngs = rngs
        self.scale = jnp.float32(0.5)
        self.shift = np.arange(8, dtype=np.float32)
        self.mask = nnx.Variable(jnp.ones(8))

    def __call__(self, x):
        h = self.attention(self.gru(x[..., None])).mean(1)
        h = nnx.relu(self.adapted(self.norm(h)))
        h = self.tied(nnx.tanh(self.first(self.mask * h + self.scale * self.shift)))
        return self.out(h) + self.linen(x)


class Tokens(nnx.Module):
    """A language model and a size, from labels in a dictionary. The loss is the mean
    over all tokens; each example has its own number of them."""

    def __init__(self, *, rngs, dtype, param_dtype):
        types = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.embed = nnx.Embed(5, 8, **types)
        self.out = nnx.Linear(8, 5, **types)

    def __call__(self, tokens):
        return self.out(self.embed(tokens))

    def loss(self, batch):
        valid = batch.weights[:, None] * (batch.labels["next"] >= 0)
        logits = self(batch.inputs)
        labels = jnp.maximum(batch.labels["next"], 0)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        losses += jnp.square(logits.mean(-1) - batch.labels["size"][:, None])
        return MetricSums(
            (valid * losses).sum(),
            (valid * (logits.argmax(-1) == labels)).sum(),
            valid.sum(),
        )


def tokens(n, seed):
    random = np.random.default_rng(seed)
    inputs = random.integers(0, 5, (n, 7))
    lengths = random.integers(1, 8, (n, 1))
    labels = np.where(np.arange(7) < lengths, (inputs + 1) % 5, -1)
    return Split(inputs, {"next": labels, "size": lengths[:, 0] / 7})


class TwoArrays(small_job.Net):
    """Two inputs, `[b, 2]` and `[b, 4]`, to three logits, with norm and dropout."""

    def __call__(self, x):
        return super().__call__(jnp.concatenate([x["a"], x["b"]], 1))


def one_by_one(part):
    weights = np.random.default_rng(3).uniform(0.5, 2, part.num_examples)
    rows = zip(part.inputs, part.labels, weights, strict=True)
    return [
        {"a": x[:2], "b": x[2:], "label": label, "weight": weight}
        for x, label, weight in rows
    ]


def noisy(inputs, key):
    """Add noise, and turn the sign of half of the examples."""
    sign, noise = jax.random.split(key)
    a = jnp.where(jax.random.bernoulli(sign), -inputs["a"], inputs["a"])
    return {
        "a": a,
        "b": inputs["b"] + 0.1 * jax.random.normal(noise, inputs["b"].shape),
    }


READ = {
    "data": DataSet(*(one_by_one(part) for part in DATA.parts.values()), augment=noisy)
}
ONE = {"strategy": "single", "devices": 1}
CASES = {
    "read one by one, weighted, augmented": (TwoArrays, READ, {"dtype": "float64"}),
    "tokens and two targets": (
        Tokens,
        {"data": DataSet(tokens(90, 1), tokens(30, 2))},
        {"dtype": "float64"},
    ),
    # Adam would amplify the rounding of attention's key bias.
    "every layer": (Everything, {}, {"optimizer": "sgd"}),
}


@quick(2, "name", CASES)
def test_on_several_devices_it_is_what_one_device_makes(name, tmp_path):
    """In float64 within 1e-10. In float32 the exported file has its results too."""
    model, values, settings = CASES[name]
    settings = {"global_batch_size": 18, "devices": 4} | settings
    workdir = str(tmp_path / "run")
    atol = 2e-5
    rtol = 1e-4
    if "dtype" in settings:
        workdir = None
        atol = 1e-10
        rtol = 1e-9
    alone = run(model, values, **settings | {"strategy": "single", "devices": 1})
    result = run(model, values, **settings, workdir=workdir)
    require_close(result.state.params, alone.state.params, atol=atol)
    last = result.epochs[-1]
    assert last["test"] == pytest.approx(alone.epochs[-1]["test"], rel=rtol)
    assert last["train"]["examples"] == alone.epochs[-1]["train"]["examples"]
    if workdir:
        file = tmp_path / "model.zip"
        custom = {"model": model, "data": DATA} | values
        export_run(workdir, str(file), **custom)
        exported = evaluate_exported(load_exported(file), DATA.test)
        assert exported["loss"] == pytest.approx(last["test"]["loss"], rel=1e-5)


def test_a_weight_of_two_counts_as_two_examples(capsys):
    """Gradients, moments of batch norm and metrics; one update of all examples in
    float64, within 1e-10. The accuracy has a name of its own, and the header says
    so."""

    class WithoutDropout(small_job.Net):
        def __call__(self, x):
            return self.out(nnx.relu(self.norm(self.hidden(x))))

    x = np.random.default_rng(3).normal(size=(12, 6))
    labels = np.arange(12) % 3
    weights = np.arange(12) % 2 + 1
    settings = {"dtype": "float64", "optimizer": "sgd"} | ONE
    weighted = run(
        WithoutDropout,
        {"data": DataSet(Split(x, labels, weights))},
        global_batch_size=12,
        best="highest:weighted_accuracy",
        **settings,
    )
    repeated = run(
        WithoutDropout,
        {"data": DataSet(Split(x.repeat(weights, 0), labels.repeat(weights)))},
        global_batch_size=18,
        best="highest:accuracy",
        **settings,
    )
    for arrays in ("params", "model_state"):
        states = (getattr(result.state, arrays) for result in (weighted, repeated))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), *states)
    of_weighted = weighted.epochs[0]["train"]
    of_repeated = repeated.epochs[0]["train"]
    accuracy = pytest.approx(of_repeated["accuracy"])
    assert of_weighted["weighted_accuracy"] == accuracy
    assert "accuracy" not in of_weighted
    assert (of_weighted["examples"], of_repeated["examples"]) == (12, 18)
    shown = capsys.readouterr().out
    assert "arrays, 12 to train (weighted)\n" in shown
    assert "arrays, 18 to train\n" in shown


class Signs(Net):
    """The signs of a row's first three numbers, each by one logit."""

    def loss(self, batch):
        z = self(batch.inputs)
        y = batch.labels
        losses = (jnp.logaddexp(0, z) - z * y).mean(1)
        right = ((z > 0) == (y > 0)).mean(1)
        return MetricSums(
            (batch.weights * losses).sum(),
            (batch.weights * right).sum(),
            batch.weights.sum(),
        )

    def predict(self, x):
        return {"probability": 1 / (1 + jnp.exp(-self(x)))}


ARE_POSITIVE = (
    Split(part.inputs, (part.inputs[:, :3] > 0).astype(np.int32))
    for part in DATA.parts.values()
)
SIGNS = {"model": Signs, "data": DataSet(*ARE_POSITIVE)}


def test_your_loss_is_evaluated_exported_and_asked(tmp_path, monkeypatch):
    """A run of values needs them again, and says so."""
    monkeypatch.chdir(tmp_path)
    last = run(custom=SIGNS, epochs=3, learning_rate=0.1, workdir="run", **ONE).epochs[
        -1
    ]["test"]
    assert last["accuracy"] > 0.7
    wanted = pytest.approx(
        {name: last[name] for name in ("loss", "accuracy", "examples")}, rel=1e-5
    )
    evaluated, facts = evaluate_run("run", **SIGNS)
    assert (evaluated, facts["dataset"]) == (wanted, "arrays")
    assert export_run("run", "model.zip", **SIGNS)["model"] == "Signs"
    assert evaluate_exported(load_exported("model.zip"), SIGNS["data"].test) == wanted
    for command in (
        ["evaluate", "run"],
        ["export", "run", "other.zip"],
        ["evaluate", "model.zip"],
    ):
        done = entry.run_command(*command)
        assert done.status == 2
        assert re.search(
            "given its model and data from Python|data of yours, arrays", done.err
        )
    outputs = load_exported("model.zip").outputs(DATA.test.inputs)
    answers = outputs["probability"]
    assert np.mean((answers > 0.5) == SIGNS["data"].test.labels) == pytest.approx(
        last["accuracy"]
    )


def moved(inputs, key):
    return inputs + 0.1 * jax.random.normal(key, inputs.shape)


def test_with_a_validation_set_and_without_any(tmp_path, capsys):
    """It's measured in place of the test set, which waits for `evaluate`; without
    either the figures of training count. The header names the loss with what is around
    it."""
    workdir = str(tmp_path / "run")
    data = DataSet(DATA.train, DATA.test, ("a", "b", "c"), DATA.train, moved)
    epoch = run(custom={"data": data}, workdir=workdir, **ONE).epochs[0]
    alone = run(custom={"data": DataSet(DATA.train)}, **ONE).epochs[0]
    shown = capsys.readouterr().out
    assert "100 to train, 40 to test, 100 to validate" in shown
    assert "validation accuracy: best" in shown
    loss = "cross_entropy(label_smoothing=0.1) of examples changed by moved, smoothed"
    assert f"{loss} during training only" in shown
    assert epoch["validation"]["examples"] == 100
    assert "test" not in epoch
    assert "test" not in alone
    assert f"train accuracy: best {alone['train']['accuracy']:.4f} (epoch 1)" in shown
    assert evaluate_run(workdir, model=Net, data=data)[0]["examples"] == 40
    with pytest.raises(
        UserError, match="arrays has no test set to evaluate on: give one"
    ):
        evaluate_run(workdir, model=Net, data=DataSet(DATA.train))


def top_two(logits, batch):
    """Count how often the class has one of two highest logits, and the recall of 2."""
    right = (jnp.argsort(logits)[:, -2:] == batch.labels[:, None]).any(1)
    twos = batch.weights * (batch.labels == 2)
    recall = (twos * (logits.argmax(1) == 2)).sum(), twos.sum()
    return {"top 2": (batch.weights * right).sum(), "recall of 2": recall}


def test_metrics_of_a_classifier(tmp_path):
    """They are shown with its accuracy, by evaluation too."""
    found = run(custom={"metrics": top_two}, workdir=str(tmp_path / "run"))
    test = found.epochs[-1]["test"]
    assert 1 >= test["top 2"] > test["accuracy"]
    means, _ = evaluate_run(
        str(tmp_path / "run"), model=Net, data=DATA, metrics=top_two, strategy="single"
    )
    for name in ("top 2", "recall of 2"):
        assert means[name] == test[name]
    head = found.state.params["head"]
    hidden = found.state.params["hidden"]
    activations = np.maximum(DATA.test.inputs @ hidden["kernel"] + hidden["bias"], 0)
    logits = activations @ head["kernel"] + head["bias"]
    recall = np.mean(logits[DATA.test.labels == 2].argmax(1) == 2)
    assert test["recall of 2"] == pytest.approx(recall)


def distilled(model, batch):
    """The cross-entropy with a teacher's probabilities, and with the true class."""
    logits = model(batch.inputs)
    losses = optax.softmax_cross_entropy(logits, batch.labels["teacher"])
    losses += optax.softmax_cross_entropy_with_integer_labels(
        logits, batch.labels["class"]
    )
    return MetricSums((batch.weights * losses).sum(), None, batch.weights.sum())


def small_layers(rngs):
    return nnx.Sequential(
        nnx.Linear(6, 8, rngs=rngs), nnx.relu, nnx.Linear(8, 3, rngs=rngs)
    )


def test_a_sequential_network_learns_from_a_teacher():
    """The teacher's answers are labels, beside the true ones."""
    parts = {}
    for name, part in {"train": DATA.train, "test": DATA.test}.items():
        teacher = np.eye(3, dtype=np.float32)[part.labels] * 0.7 + 0.1
        parts[name] = (part.inputs, {"teacher": teacher, "class": part.labels})
    custom = {"loss": distilled, "data": parts}
    settings = {"learning_rate": 0.05, "epochs": 3}
    epochs = run(model=small_layers, custom=custom, **settings).epochs
    assert epochs[-1]["test"]["loss"] < 0.9 * epochs[0]["test"]["loss"]


def test_a_run_with_values_is_resumed_with_them_alone(tmp_path):
    settings = {"workdir": str(tmp_path / "run"), "steps": 2} | ONE
    run(
        custom={
            "optimizer": optax.lion,
            "data": dataclasses.replace(DATA, augment=moved),
        },
        **settings,
    )
    with pytest.raises(
        UserError,
        match=r"the shape of optimizer_state.0.count \(\[\] there, None now\)",
    ):
        run(
            custom={
                "optimizer": lambda schedule: optax.chain(
                    optax.clip(1.0), optax.lion(schedule)
                )
            },
            **settings,
        )
    with pytest.raises(UserError, match="the code of your augmentation"):
        run(custom={"optimizer": optax.lion}, **settings)
    with pytest.raises(
        UserError, match=r"given its optimizer from Python.*optimizer=\.\.\."
    ):
        evaluate_run(settings["workdir"], model=Net, data=DATA)


# They train, and can't be exported for any number of inputs: `len` is of one size.
ONE_SIZE = type(
    "OneSize",
    (Net,),
    {"__call__": lambda self, x: Net.__call__(self, x).reshape(len(x), -1)},
)
ONE_ANSWER = type(
    "OneAnswer", (Signs,), {"predict": lambda self, x: x.reshape(len(x), -1)}
)

PAIRS = {"train": ({"a": DATA.train.inputs, "b": DATA.train.inputs}, DATA.train.labels)}


def distance(model, batch):
    """It calls the model twice."""
    errors = jnp.square(model(batch.inputs["a"]) - model(batch.inputs["b"])).sum(1)
    return MetricSums((batch.weights * errors).sum(), None, batch.weights.sum())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            SIGNS | {"model": ONE_ANSWER},
            "warning: the model cannot be exported for any number of inputs (",
        ),
        (
            {"model": ONE_SIZE},
            "warning: the model cannot be exported for any number of inputs (",
        ),
        (
            {"data": PAIRS, "loss": distance},
            "(float() argument must be a string or a real number, not 'dict'): give it "
            "a method predict(inputs) if it takes more than inputs",
        ),
        ({}, ""),
    ],
)
def test_before_training_a_warning_says_what_will_be_missing(capsys, values, said):
    run(custom=values, steps=1, **ONE)
    warning = capsys.readouterr().err
    assert said in warning
    assert bool(said) == bool(warning)


class Undecided(Net):
    """Its logits are equal but for what stands for rounding on a GPU: it depends on
    where an example lies in its batch."""

    def __call__(self, x):
        sign = jnp.where(jnp.arange(len(x)) < 8, 1, -1)[:, None]
        rounding = 1e-3 * current_context().train * sign * jnp.array([1, 0, 0])
        return 0 * super().__call__(x) + rounding


@pytest.mark.slow
def test_rounding_in_bfloat16_may_change_the_class_of_an_example():
    run(Undecided, dtype="bfloat16")
    no_sum = "correct in the loss of Undecided in training is not a sum"
    with pytest.raises(UserError, match=no_sum):
        run(Undecided)


class NearZero(Net):
    """Writes two means, 10 and nearly 0. What stands for rounding moves the second by
    0.05, so it depends on where an example lies in its batch."""

    def __init__(self, *, dtype=None, rngs):
        super().__init__(rngs=rngs)
        self.means = nnx.BatchStat(jnp.zeros(2))

    def __call__(self, x):
        context = current_context()
        if context.train:
            sign = jnp.where(jnp.arange(len(x)) < 8, 0.05, -0.05)
            rows = jnp.stack([jnp.full(len(x), 10.0), sign])
            sums = jax.lax.psum(rows @ context.weights, context.axis_name)
            count = jax.lax.psum(context.weights.sum(), context.axis_name)
            self.means[...] = sums / count
        return super().__call__(x)


@pytest.mark.slow
def test_rounding_in_bfloat16_may_move_a_mean_that_is_nearly_zero():
    """The means of a ResNet-18 in bfloat16 were off by 0.005 of the largest one."""
    run(NearZero, dtype="bfloat16")
    with pytest.raises(UserError, match="NearZero writes means from the rows of one"):
        run(NearZero)
