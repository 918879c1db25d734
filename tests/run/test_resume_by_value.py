"""A run that is resumed knows its schedule, optimizer and loss by what they do, whatever they are called."""

import os
from pathlib import Path

import entry
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from points import DATA, Net, run

from pmapdp.config import Config
from pmapdp.errors import DivergedError, UserError
from pmapdp.loss import MetricSums
from pmapdp.run.workdir import identity, require_same_run, sample_functions
from pmapdp.train import Custom, prepare


def net(rate):
    class Dropped(Net):
        def __init__(self, *, rngs):
            super().__init__(rngs=rngs)
            self.dropout = nnx.Dropout(rate, rngs=rngs)

        def __call__(self, x):
            return super().__call__(self.dropout(x))

    return Dropped


def power(exponent):
    def loss(model, batch):
        errors = jnp.abs(model(batch.inputs)[:, 0] - batch.labels) ** exponent
        return MetricSums((batch.weights * errors).sum(), None, batch.weights.sum())

    return loss


def adam(b1):
    return lambda schedule: optax.adamw(schedule, b1=b1, weight_decay=0.0)


@pytest.mark.parametrize(
    ("name", "first", "second", "sentence"),
    [
        (
            "schedule",
            lambda n: 0.01 * 0.9**n,
            lambda n: 0.5 * 0.9**n,
            r"after 0 updates \(0.01 there, 0.5 now",
        ),
        # Of 200 updates, 0, 3, 6 and so on are compared, and the sum of all.
        (
            "schedule",
            lambda n: 0.01,
            lambda n: jnp.where(n == 4, 0.1, 0.01),
            r"summed up \(2.01 there, 2.1 now",
        ),
        (
            "optimizer",
            adam(0.9),
            adam(0.1),
            r"the optimizer in update 2 by a fixed gradient \(.* there, .* now\)",
        ),
        ("loss", power(2), power(1), r"the loss of 4 examples \(.* there, .* now\)"),
        ("model", net(0.5), net(0.2), r"the loss of 4 examples \(.* there, .* now\)"),
    ],
)
def test_another_function_of_the_same_name_is_refused(name, first, second, sentence):
    config = Config(strategy="single", devices=1, epochs=40, global_batch_size=20)
    jobs = [
        prepare(config, Custom(**{"model": Net, "data": DATA, name: each}))
        for each in (first, second)
    ]
    theirs, ours = (identity(job.config) | sample_functions(job) for job in jobs)
    require_same_run("the run", theirs, theirs)
    with pytest.raises(
        UserError, match=sentence + ".*: use the same or another folder"
    ):
        require_same_run("the run", theirs, ours)


def test_the_same_function_of_another_name_goes_on_and_another_one_does_not(tmp_path):
    """Nor does a file that was edited. With more epochs, over which the rates add up to more, it goes on."""
    rate, file = "def rate(step):\n    return 0.01 / (1 + step)\n", tmp_path / "rate.py"
    settings = {
        "workdir": str(tmp_path / "run"),
        "schedule": f"{file}:rate",
        "strategy": "single",
        "devices": 1,
    }
    file.write_text(rate)
    run(own={"optimizer": optax.lion}, **settings)
    with pytest.raises(
        UserError, match="differs in the optimizer in update 1 by a fixed gradient"
    ):
        run(
            own={"optimizer": lambda schedule: optax.lion(schedule, weight_decay=9.0)},
            **settings,
            epochs=2,
        )
    file.write_text(rate.replace("0.01", "0.02"))
    with pytest.raises(
        UserError, match=r"the schedule after 0 updates \(0.01 there, 0.02 now\)"
    ):
        run(own={"optimizer": optax.lion}, **settings)
    file.write_text(rate)
    assert (
        int(
            run(
                own={"optimizer": lambda schedule: optax.lion(schedule)},
                **settings,
                epochs=2,
            ).state.step
        )
        == 10
    )


class Log(Net):
    def __call__(self, x):
        return super().__call__(jnp.log(x))


class Root(Net):
    """Finite, but its gradient is 0/0."""

    def __call__(self, x):
        y = super().__call__(x)
        return y + jnp.sqrt((0 * y).sum(-1, keepdims=True))


@pytest.mark.parametrize(
    ("model", "settings", "sentence"),
    [
        (
            Log,
            {},
            r"step 1: the first loss is not finite for training example \d+, counted from 0: look at",
        ),
        (
            Root,
            {},
            r"step 2: the first gradient of head.bias is not finite for training example \d+, counted",
        ),
        (
            Net,
            {"learning_rate": 1e38, "optimizer": "sgd"},
            r"step \d: try a lower learning_rate",
        ),
    ],
)
def test_what_is_not_finite_is_named(model, settings, sentence):
    with pytest.raises(DivergedError, match=sentence):
        run(model, epochs=2, **settings)


@pytest.fixture
def no_home(monkeypatch):
    """A user id that no list of users has, as in containers. Only root can take one; for others it's the look-up."""
    for name in ("HOME", "XDG_CACHE_HOME", "PMAPDP_DATA"):
        monkeypatch.delenv(name, raising=False)
    cache = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    if is_root := os.getuid() == 0:
        os.setreuid(12345, 0)
    else:
        monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    yield
    if is_root:
        os.setreuid(0, 0)
    jax.config.update("jax_compilation_cache_dir", cache)


def test_a_user_without_a_home_trains(no_home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="home"):
        Path.home()
    for command in (
        [
            "train",
            "--model",
            "mlp",
            "--strategy",
            "single",
            "--steps",
            "1",
            "--workdir",
            "run",
        ],
        ["evaluate", "run"],
        ["export", "run", "model.zip"],
    ):
        assert entry.run_command(*command).status == 0
    assert jax.config.jax_compilation_cache_dir is None
