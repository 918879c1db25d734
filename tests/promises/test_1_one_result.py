"""Promise 1: every strategy at every number of devices equals one device on the whole
batch.

Five updates on 83 examples with a global batch of 18, which few numbers of devices
divide; the last batch holds 11, so that with 8 devices one holds padding alone. What
every device holds after each update is compared with one device on the unpadded batch,
and one device is compared with NumPy and with a plain Flax loop.
"""

import functools
import itertools

import entry
import jax
import jax.numpy as jnp
import numpy as np
import numpy_mlp
import optax
import pytest
import small_job
from flax import nnx
from marks import quick
from trees import require_close

BATCH = 18
SEED = 3
EXAMPLES = 83
COUNTS = (1, 2, 3, 4, 5, 7, 8)
EVALUATED = ("mlp", "text_mlp", "convnet")  # most of a test's time is compilation
PARALLEL = ("pmap", "shard_map", "jit")
OPTIMIZERS = {
    "adam": functools.partial(optax.adam, 1e-3),
    "sgd": functools.partial(optax.sgd, 0.1),
}
# The largest differences after any of the updates; a float32 sum of losses (about 40)
# has rounding in the last places.
STATE = {"float64": 1e-10, "float32": 1e-6}
LOSS = {"float64": 1e-10, "float32": 1e-4}


def parts(seed=0):
    """The indices of the examples of each of the five updates."""
    order = np.random.default_rng(seed).permutation(EXAMPLES)
    return [order[start : start + BATCH] for start in range(0, EXAMPLES, BATCH)]


def outcomes(strategy, devices, model, optimizer, dtype, padded):
    """After each update: the state, and the sums of an evaluation before it (if in
    `EVALUATED`) and of the update.
    """
    steps = entry.Steps(
        strategy, devices, model, OPTIMIZERS[optimizer](), seed=SEED, dtype=dtype
    )
    state = steps.place_state(first_state(model, optimizer, dtype))
    data = entry.examples_for(model, EXAMPLES, 1)
    rows = -(-BATCH // len(devices)) * len(devices)
    for indices in parts():
        batch = steps.place_batch(
            entry.batch_of(data, indices, rows if padded else None, dtype)
        )
        evaluated = steps.eval_step(state, batch) if model in EVALUATED else ()
        state, trained = steps.train_step(state, batch)
        yield entry.named(state), (evaluated, trained)


@functools.cache
def first_state(model, optimizer, dtype):
    device = jax.devices("cpu")[:1]
    return entry.Steps(
        "single", device, model, OPTIMIZERS[optimizer](), seed=SEED, dtype=dtype
    ).first_state()


@functools.cache
def one_device(model, optimizer, dtype):
    """The reference: a CPU, also where there are accelerators, that sees the examples
    without any padding.
    """
    found = outcomes(
        "single", jax.devices("cpu")[:1], model, optimizer, dtype, padded=False
    )
    # The next update takes the memory of a state.
    return [jax.device_get(sums) for sums in found]


def require_equal(found, wanted, most, where):
    """Require that all devices hold `wanted` within `most`, and equal whole numbers."""
    for (path, leaf), right in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(wanted), strict=True
    ):
        assert leaf.shape == right.shape
        limit = most if jnp.issubdtype(leaf.dtype, jnp.floating) else 0
        for shard in leaf.addressable_shards:
            difference = np.abs(np.asarray(shard.data, right.dtype) - right).max(
                initial=0
            )
            leaf = f"{jax.tree_util.keystr(path)} on {shard.device}"
            assert difference <= limit, f"{where}, {leaf}: {difference:.2g}"


def hold(strategy, count, model, optimizer, dtype):
    with jax.enable_x64(dtype == "float64"):
        wanted = one_device(model, optimizer, dtype)
        found = outcomes(
            strategy, jax.devices()[:count], model, optimizer, dtype, padded=True
        )
        for update, ((state, sums), (right_state, right_sums)) in enumerate(
            zip(found, wanted, strict=True), 1
        ):
            assert all(
                len(leaf.addressable_shards) == count for leaf in jax.tree.leaves(state)
            )
            where = f"{model}, {strategy} on {count}, update {update}"
            require_equal(state, right_state, STATE[dtype], where)
            require_equal(sums, right_sums, LOSS[dtype], where)


# Below, a network with batch norm and dropout runs through `train` on every number of
# devices.
DEVICES = {
    ("mlp", "shard_map"): 4,
    ("mlp", "jit"): 5,
    ("mlp", "pmap"): 7,
    ("text_mlp", "shard_map"): 8,
    ("text_mlp", "jit"): 8,
    ("text_mlp", "pmap"): 8,
}
GRID = []
for classifier, strategy in itertools.product(entry.CLASSIFIERS, PARALLEL):
    GRID.append((classifier, strategy, DEVICES.get((classifier, strategy), 3)))


@pytest.mark.parametrize(("model", "strategy", "count"), [*GRID, ("mlp", "single", 1)])
def test_every_strategy_with_every_model_equals_one_device(model, strategy, count):
    hold(strategy, count, model, "adam" if model == "text_mlp" else "sgd", "float64")


def test_every_built_in_model_is_compared():
    assert set(entry.CLASSIFIERS) == entry.built_in_models()


@quick(
    1,
    ("strategy", "model"),
    [(strategy, "text_mlp") for strategy in PARALLEL] + [("pmap", "convnet")],
)
def test_float32_differs_by_rounding_alone(strategy, model):
    hold(strategy, 7, model, "sgd", "float32")


def test_one_device_equals_numpy():
    """A program that shares no code with the package, with the derivatives by hand."""
    data = entry.examples_for("mlp", EXAMPLES, 1)
    with jax.enable_x64(True):
        first = first_state("mlp", "sgd", "float64").params
        found = one_device("mlp", "sgd", "float64")[-1][0].params
    batches = [(data.inputs[indices], data.labels[indices]) for indices in parts()]
    wanted = numpy_mlp.train(first, batches, learning_rate=0.1)
    require_close(found, wanted, atol=1e-10)


# Through `train`: a stock Flax network with batch norm, beside the loop that anybody
# would write for one device.


class Net(nnx.Module):
    """`[b, 6]` to `[b, 3]` logits."""

    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        types = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.hidden = nnx.Linear(6, 8, use_bias=False, **types)
        self.norm = nnx.BatchNorm(8, **types)
        self.out = nnx.Linear(8, 3, **types)

    def __call__(self, x):
        return self.out(nnx.relu(self.norm(self.hidden(x))))


class WithDropout(Net):
    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        super().__init__(rngs=rngs, dtype=dtype, param_dtype=param_dtype)
        self.first = nnx.Dropout(0.3, rngs=rngs)
        self.second = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.out(self.second(nnx.relu(self.norm(self.hidden(self.first(x))))))


class Plain(Net):
    def __call__(self, x):
        return self.out(nnx.relu(self.hidden(x)))


TRAIN = small_job.points(EXAMPLES, 1)
TEST = small_job.points(29, 2)
SETTINGS = {
    "global_batch_size": BATCH,
    "epochs": 1,
    "dtype": "float64",
    "optimizer": "adam",
    "learning_rate": 1e-2,
    "schedule": "constant",
    "label_smoothing": 0.0,
    "seed": SEED,
}


def trained(strategy, count, model, **settings):
    data = entry.data_set(TRAIN, TEST)
    return entry.train(
        model=model, data=data, strategy=strategy, devices=count, **SETTINGS | settings
    )


def require_same_run(found, wanted, most):
    require_close(found.state, wanted.state, atol=most)
    for part in ("train", "test"):
        for name in ("loss", "accuracy"):
            assert found.epochs[-1][part][name] == pytest.approx(
                wanted.epochs[-1][part][name], abs=most, rel=0
            )


def test_train_equals_a_plain_flax_loop():
    """Over two epochs, each in its own order."""
    with jax.enable_x64(True):
        model = Net(rngs=nnx.Rngs(SEED), dtype=jnp.float64, param_dtype=jnp.float64)
        for moment in (
            model.norm.mean,
            model.norm.var,
        ):  # Flax makes them float32 for every type
            moment.set_value(moment[...].astype(jnp.float64))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        epochs = [
            entry.batches(TRAIN, BATCH, seed=SEED, epoch=epoch) for epoch in (0, 1)
        ]

        @nnx.jit
        def update(model, optimizer, inputs, labels):
            def mean_loss(model):
                return optax.softmax_cross_entropy_with_integer_labels(
                    model(inputs), labels
                ).mean()

            loss, gradients = nnx.value_and_grad(mean_loss)(model)
            optimizer.update(model, gradients)
            return loss

        losses = []
        for batch in itertools.chain(*epochs):
            indices = batch.indices[batch.weights > 0]
            losses += len(indices) * [
                update(model, optimizer, TRAIN.inputs[indices], TRAIN.labels[indices])
            ]
        wanted = nnx.to_pure_dict(nnx.state(model, nnx.Param))
        model.eval()
        logits = model(TEST.inputs)
        test_loss = optax.softmax_cross_entropy_with_integer_labels(
            logits, TEST.labels
        ).mean()
        mean = np.asarray(model.norm.mean[...])
        variance = np.asarray(model.norm.var[...])
    found = trained("single", 1, Net, epochs=2)
    require_close(found.state.params, wanted, atol=1e-10)
    np.testing.assert_allclose(
        found.state.model_state["norm"]["mean"], mean, rtol=0, atol=1e-10
    )
    np.testing.assert_allclose(
        found.state.model_state["norm"]["var"], variance, rtol=0, atol=1e-10
    )
    epoch = found.epochs[-1]
    assert epoch["train"]["loss"] == pytest.approx(
        np.mean(losses[EXAMPLES:]), abs=1e-10
    )
    assert epoch["test"]["loss"] == pytest.approx(float(test_loss), abs=1e-10)
    assert epoch["test"]["accuracy"] == np.mean(
        np.asarray(logits).argmax(-1) == TEST.labels
    )


@functools.cache
def on_one_device(model):
    return trained("single", 1, model)


@pytest.mark.parametrize("strategy", PARALLEL)
@quick(1, "count", [3, *(count for count in COUNTS if count != 3)])
def test_train_gives_one_result_with_batch_norm_and_dropout(strategy, count):
    require_same_run(
        trained(strategy, count, WithDropout), on_one_device(WithDropout), 1e-10
    )


@quick(2, "strategy", ["pmap", "jit", "single", "shard_map"])
def test_accumulation_changes_nothing_without_batch_norm(strategy):
    count = 1 if strategy == "single" else 3
    require_same_run(
        trained(strategy, count, Plain, accumulate=3), on_one_device(Plain), 1e-10
    )


def test_layouts_give_the_same_result():
    """A split optimizer state, and fully sharded parameters."""
    for shard_state in ("optimizer", "parameters"):
        split = trained("jit", 4, WithDropout, shard_state=shard_state)
        require_same_run(split, on_one_device(WithDropout), 1e-10)


# What the all-reduce is for. Under jit the compiler inserts it, and there is nothing to
# leave out.

EIGHT = range(64)


def copies(strategy, learning_rate=0.1):
    """The last layer's kernel before an update, and each device's copy after it."""
    steps = entry.Steps(strategy, jax.devices()[:8], "mlp", optax.sgd(learning_rate))
    data = entry.examples_for("mlp", 64, 1)
    state = steps.first_state()
    before = np.array(entry.named(state).params["logits"]["kernel"])
    after, _ = steps.train_step(
        steps.place_state(state), steps.place_batch(entry.batch_of(data, EIGHT))
    )
    return before, [
        np.asarray(x.data)
        for x in entry.named(after).params["logits"]["kernel"].addressable_shards
    ]


@pytest.mark.parametrize("strategy", PARALLEL)
def test_replicas_are_equal_bit_for_bit(strategy):
    _, (first, *others) = copies(strategy)
    assert len(others) == 7
    for replica in others:
        np.testing.assert_array_equal(replica, first)


@pytest.mark.parametrize("strategy", ["pmap", "shard_map"])
def test_replicas_differ_when_the_all_reduce_is_left_out(strategy, monkeypatch):
    entry.leave_out_all_reduce(monkeypatch, strategy)
    _, (first, *others) = copies(strategy)
    assert all(np.abs(replica - first).max() > 1e-6 for replica in others)
