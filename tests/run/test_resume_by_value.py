"""A run that is resumed knows your functions by their code and values, whatever they are called."""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import entry
import jax
import jax.numpy as jnp
import optax
import pytest
import small_job
from flax import nnx
from points import DATA, Net, run

from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import DivergedError, UserError
from pmapdp.evaluate import evaluate_run
from pmapdp.loss import MetricSums
from pmapdp.run.code_hash import hash_function

ROOT = Path(__file__).parents[2]


def net(rate):
    class Dropped(Net):
        def __init__(self, *, rngs):
            super().__init__(rngs=rngs)
            self.dropout = nnx.Dropout(rate, rngs=rngs)

        def __call__(self, x):
            return super().__call__(self.dropout(x))

    return Dropped


def weighted(weight):
    """A loss in which a class that is rare has a weight."""

    def loss(model, batch):
        losses = optax.softmax_cross_entropy_with_integer_labels(
            model(batch.inputs), batch.labels
        )
        weights = batch.weights * jnp.where(batch.labels == 2, weight, 1.0)
        return MetricSums((weights * losses).sum(), None, weights.sum())

    return loss


def adam(b1):
    return lambda schedule: optax.adamw(schedule, b1=b1, weight_decay=0.0)


def scaled(metrics, factor):
    return {"half": (factor * metrics.weights.sum(), metrics.weights.sum())}


def scaled_metrics(logits, batch):
    return scaled(batch, 0.5)


@pytest.mark.parametrize(
    ("name", "first", "second", "sentence"),
    [
        (
            "schedule",
            lambda n: 0.01 * 0.9**n,
            lambda n: 0.5 * 0.9**n,
            r"after 0 updates \(0.01 there, 0.5 now",
        ),
        # Of 200 updates, 0, 3, 6 and so on are compared, and the code.
        (
            "schedule",
            lambda n: 0.01,
            lambda n: jnp.where(n == 4, 0.1, 0.01),
            "the code of your schedule, or a value that it holds",
        ),
        ("optimizer", adam(0.9), adam(0.1), "the code of your optimizer, or a value"),
        ("loss", weighted(5), weighted(8), "the code of your loss, or a value that it"),
        ("model", net(0.5), net(0.2), "the code of your model, or a value that it"),
        (
            "metrics",
            functools.partial(lambda logits, batch, f: scaled(batch, f), f=0.5),
            functools.partial(lambda logits, batch, f: scaled(batch, f), f=0.25),
            "the code of your metrics, or a value that it holds",
        ),
    ],
)
def test_another_function_of_the_same_name_is_refused(
    name, first, second, sentence, tmp_path
):
    """A number in a closure or in a partial argument is enough, and nothing of the folder is changed."""
    settings = {"epochs": 40, "steps": 1, "strategy": "single", "devices": 1}
    settings["workdir"] = str(tmp_path / "run")
    run(custom={name: first}, **settings)
    before = small_job.contents(tmp_path / "run")
    with pytest.raises(UserError, match=sentence):
        run(custom={name: second}, **settings | {"steps": 2})
    assert small_job.contents(tmp_path / "run") == before
    run(custom={name: first}, **settings | {"steps": 2})
    if name != "schedule":
        settings |= {"steps": 3, "accept_changed_functions": True}
        assert int(run(custom={name: second}, **settings).state.step) == 3


def test_a_loss_that_cannot_be_compared_needs_your_word(tmp_path):
    with open(os.devnull) as opened:

        def loss(model, batch, file=opened):
            return weighted(2)(model, batch)

        assert hash_function(loss) is None
        settings = {"workdir": str(tmp_path / "run"), "epochs": 2, "steps": 1}
        run(custom={"loss": loss}, **settings)
        with pytest.raises(UserError, match="add accept_changed_functions"):
            run(custom={"loss": loss}, **settings | {"steps": 2})
        settings |= {"steps": 2, "accept_changed_functions": True}
        assert int(run(custom={"loss": loss}, **settings).state.step) == 2


def test_a_file_that_was_edited_is_refused_and_one_that_was_moved_is_not(tmp_path):
    """With more epochs, over which the rates add up to more, it goes on."""
    rate = "def rate(step):\n    return 0.01 / (1 + step)\n"
    file = tmp_path / "rate.py"
    one = {"workdir": str(tmp_path / "run"), "strategy": "single", "devices": 1}
    file.write_text(rate)
    run(custom={"optimizer": optax.lion}, schedule=f"{file}:rate", **one)
    file.write_text(rate.replace("0.01", "0.02"))
    with pytest.raises(
        UserError, match=r"the schedule after 0 updates \(0.01 there, 0.02 now\)"
    ):
        run(custom={"optimizer": optax.lion}, schedule=f"{file}:rate", **one)
    moved = tmp_path / "moved.py"
    moved.write_text(f"# A comment.\n{rate}")
    found = run(
        custom={"optimizer": optax.lion}, schedule=f"{moved}:rate", epochs=2, **one
    )
    assert int(found.state.step) == 10


@pytest.mark.parametrize(
    ("name", "function"), [("loss", weighted(5)), ("metrics", scaled_metrics)]
)
def test_an_evaluation_asks_for_the_loss_and_metrics_again(name, function, tmp_path):
    """Otherwise the cross-entropy would be shown as the run's loss."""
    workdir = str(tmp_path / "run")
    trained = run(custom={name: function}, workdir=workdir)
    python_values = {"model": Net, "data": DATA}
    sentence = rf"its {name} from Python, so give it again: .*evaluate_run\(.*{name}="
    with pytest.raises(UserError, match=sentence):
        evaluate_run(workdir, **python_values)
    means, _ = evaluate_run(workdir, **python_values, **{name: function})
    assert means == pytest.approx(trained.epochs[-1]["test"], rel=1e-6)


PROGRAM = """
import functools
import sys
import flax.nnx as nnx
import jax.numpy as jnp
import numpy as np
import optax
from dataclasses import dataclass
NAMES, WEIGHTS = {{"a", "b", "c"}}, np.array([1.0, {weight}])
def inner(x):
    return x * {inner} if str(x) not in NAMES else outer
def outer(x, y={default}):
    return inner(x) + y + WEIGHTS.sum()
@dataclass
class Loss:
    weight: float = 3.0
    def __call__(self, x):
        return [self.weight * outer(x) for _ in range(2)]
class Net(nnx.Module):
    width = {width}
    def __init__(self, *, rngs):
        self.layer = nnx.Linear(3, self.width, rngs=rngs)
    def __call__(self, x):
        return jnp.where(x in {{"u", "v", "w"}}, self.layer(x), nnx.relu(x))
def make(rate={rate}):
    return optax.sgd(rate)
FUNCTIONS = {{
    "function": outer, "object": Loss({weight}), "class": Net, "update": make().update,
    "partial": functools.partial(outer, y={default}), "jitted": jax.jit(outer),
}}
""".replace("import optax", "import jax, optax")
VALUES = {"weight": 5.0, "inner": 2, "default": 1, "width": 4, "rate": 0.1}


RUNNER = """
import runpy
import sys
for program in sys.argv[1:]:
    runpy.run_path(program, run_name="__main__")
"""


def run_in_a_process(programs: list[Path], seed="0") -> list[dict]:
    """Run programs one after the other in one process, and return what each prints."""
    result = subprocess.run(
        [sys.executable, "-c", RUNNER, *programs],
        env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def hashes(folder, *all_changes, seed="0") -> list[dict]:
    """The hashes of the program's functions after each of the changes, in one process."""
    programs = []
    for number, changes in enumerate(all_changes):
        program = PROGRAM.format(**VALUES | changes)
        program += "import json\nfrom pmapdp.run.code_hash import hash_function\n"
        program += (
            "print(json.dumps({n: hash_function(f) for n, f in FUNCTIONS.items()}))"
        )
        programs.append(folder / f"{number}.py")
        programs[-1].write_text(program)
    return run_in_a_process(programs, seed)


def test_hashes_are_the_same_in_two_processes_and_show_each_number(tmp_path):
    calls_outer = {"function", "object", "partial", "jitted"}
    cases = (
        ({"weight": 8.0}, calls_outer),
        ({"inner": 3}, calls_outer),
        ({"default": 4}, calls_outer),
        ({"width": 5}, {"class"}),
        ({"rate": 0.01}, {"update"}),
    )
    first, *others = hashes(tmp_path, {}, *(change for change, _ in cases))
    assert all(first.values()), first
    assert len(set(first.values())) == len(first)
    assert hashes(tmp_path, {}, seed="1") == [first]
    for (_, changed), second in zip(cases, others, strict=True):
        assert {name for name in first if first[name] != second[name]} == changed


HELD = """
import json
import optax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from pmapdp.run.code_hash import hash_function
class Linen(nn.Module):
    width: int = {width}
    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.width)(x)
class Teacher(nnx.Module):
    def __init__(self, *, rngs):
        self.layer = nnx.Linear(3, 2, rngs=rngs)
        self.dropout = nnx.Dropout({rate}, rngs=rngs)
teacher = Teacher(rngs=nnx.Rngs({seed}))
teacher.layer.kernel[...] += {change}
def holding(value):
    return lambda model, batch: (value, model, batch)
FUNCTIONS = {{
    "nnx": holding(teacher),
    "linen": holding(Linen()),
    "arrays": holding([{{"w": jnp.ones(3) * {scale}}}, np.float32({scale})]),
    "key": holding(jax.random.key({seed})),
    "state": holding(nnx.state(teacher)),
    "split": holding(nnx.split(teacher)),
    "optimizer": holding(optax.adam({scale})),
}}
print(json.dumps({{name: hash_function(f) for name, f in FUNCTIONS.items()}}))
"""


def hash_held(folder, *all_changes) -> list[dict]:
    """Hash functions that hold a teacher, arrays and so on, in one process."""
    values = {"width": 2, "rate": 0.5, "seed": 0, "change": 0.0, "scale": 1.0}
    programs = []
    for number, changes in enumerate(all_changes):
        programs.append(folder / f"{number}.py")
        programs[-1].write_text(HELD.format(**values | changes))
    return run_in_a_process(programs)


def test_what_a_loss_holds_is_hashed_by_its_numbers(tmp_path):
    """A frozen teacher, for example. Nothing of it needs a flag to be resumed."""
    cases = (
        ({"rate": 0.25}, {"nnx", "split"}),
        ({"change": 0.5}, {"nnx", "split", "state"}),
        ({"width": 3, "scale": 2.0}, {"linen", "arrays", "optimizer"}),
        ({"seed": 1}, {"nnx", "split", "state", "key"}),
    )
    first, *others = hash_held(tmp_path, {}, *(change for change, _ in cases))
    assert all(first.values()), first
    assert hash_held(tmp_path, {}) == [first]
    for (_, changed), second in zip(cases, others, strict=True):
        assert {name for name in first if first[name] != second[name]} == changed


class Log(Net):
    def __call__(self, x):
        return super().__call__(jnp.log(x))


@pytest.mark.parametrize(
    ("model", "settings", "sentence"),
    [
        (
            Log,
            {},
            r"step 1: the first loss is not finite for training example \d+, counted from 0: look at",
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


def test_one_huge_row_is_named():
    inputs = DATA.train.inputs.copy()
    inputs[37] *= 1e30
    data = DataSet(Split(inputs, DATA.train.labels), DATA.test)
    with pytest.raises(
        DivergedError, match=r"inputs of training example 37, counted from 0, are up to"
    ):
        run(custom={"data": data}, epochs=3, learning_rate=1e-2, optimizer="sgd")


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


def test_a_checkpoint_within_an_epoch_has_all_sums_so_far(tmp_path):
    """Resumed from update 4 of 5, the epoch's train loss is over all 100 examples."""
    settings = {"workdir": str(tmp_path / "run"), "checkpoint_every": 2}
    whole = run(**settings).epochs[-1]["train"]
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "5")
    resumed = run(**settings).epochs[-1]["train"]
    assert whole["examples"] == 100
    assert resumed == whole
