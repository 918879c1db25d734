"""Your optimizer, schedule, metrics and trained parameters keep the promises, or are refused in a sentence."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from marks import quick
from points import DATA, Net, run

from pmapdp import cli
from pmapdp.errors import UserError
from pmapdp.evaluate import evaluate_run
from pmapdp.run.workdir import read_config
from pmapdp.train import load_run
from pmapdp.train import main as train_command


class Wide(nnx.Module):
    """Large enough for factored moments."""

    def __init__(self, *, rngs, dtype, param_dtype):
        types = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.hidden, self.middle = nnx.Linear(6, 128, **types), nnx.Linear(128, 128, **types)
        self.head = nnx.Linear(128, 3, **types)

    def __call__(self, x):
        return self.head(nnx.relu(self.middle(nnx.relu(self.hidden(x)))))


def clipped_lion(schedule):
    return optax.chain(optax.clip_by_global_norm(0.5), optax.lion(schedule, weight_decay=0.1))


@quick(
    1,
    ("make", "settings"),
    [
        (clipped_lion, {"strategy": "pmap"}),
        (optax.adafactor, {"strategy": "pmap", "shard_state": "optimizer"}),
        (optax.lamb, {"strategy": "shard_map"}),
        (optax.lamb, {"strategy": "jit", "shard_state": "parameters"}),
    ],
)
def test_five_updates_on_eight_devices_are_those_on_one(make, settings):
    """Within 1e-10 in float64."""
    settings |= {"dtype": "float64", "steps": 5, "global_batch_size": 18}
    values = {"optimizer": make, "schedule": optax.linear_schedule(0.01, 0.001, 5)}
    alone = run(Wide, values, **settings | {"strategy": "single", "devices": 1, "shard_state": "none"})
    found = run(Wide, values, **settings | {"devices": 8})
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-10), found.state.params, alone.state.params
    )
    assert found.epochs[-1]["learning_rate"] == pytest.approx(float(values["schedule"](4)))


FILE = """
import optax

def make(schedule):
    return optax.chain(optax.clip(1.0), optax.adam(schedule, mu_dtype="bfloat16"))

def rate(step):
    return 0.01 * 0.9**step

def fixed(schedule):
    return optax.adam(0.1)
"""


def test_files_on_the_command_line(tmp_path, monkeypatch, capsys):
    """They train, resume, and are read again by the run's folder alone; moments of 16 bits are kept too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(FILE)
    command = ["--model", "mlp", "--devices", "2", "--epochs", "2", "--no-compile-cache", "--trainable", "logits"]
    command += ["--optimizer", "my.py:make", "--schedule", "my.py:rate", "--workdir", "run"]
    assert cli.run(train_command, [*command, "--steps", "3"]) == 0, capsys.readouterr().err
    assert cli.run(train_command, [*command, "--steps", "5"]) == 0, capsys.readouterr().err
    assert "restored from the checkpoint of step 3" in capsys.readouterr().out
    config, state, last = load_run("run")
    assert (config.optimizer, config.trainable) == (f"{tmp_path}/my.py:make", ("logits",))
    assert last["learning_rate"] == pytest.approx(0.01 * 0.9**4)
    assert jax.tree.map(np.shape, state.params) == {"logits": {"bias": (10,), "kernel": (512, 10)}}
    assert "bfloat16" in {str(leaf.dtype) for leaf in jax.tree.leaves(state.optimizer_state)}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--optimizer", "adm"],
            "unknown optimizer 'adm': did you mean 'adam'? choose from sgd, momentum, ",
        ),
        (["--schedule", "step"], "unknown schedule 'step': choose from constant, piecewise, cosine, my_file.py:make"),
        (["--optimizer", "none.py:make"], "none.py:make: there is no file "),
        (["--optimizer", "my.py:mak"], "my.py has no 'mak': use one of fixed, make, rate"),
        (["--optimizer", "my.py:fixed"], "does not use its schedule, so --learning-rate would have no effect: use "),
        (["--trainable", "logit"], "unknown trainable 'logit': did you mean 'logits'? choose from "),
        (["--optimizer", "my.py:make", "--weight-decay", "0.1"], "--weight-decay 0.1 has an effect only with adamw"),
    ],
)
def test_wrong_flags_are_one_sentence(tmp_path, monkeypatch, capsys, flags, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(FILE)
    assert cli.run(train_command, ["--model", "mlp", "--devices", "1", "--no-compile-cache", *flags]) == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"optimizer": optax.adam(0.1)}, r"optimizer=.* fails .*: give a function .* optimizer=optax.lion"),
        ({"optimizer": lambda schedule: optax.adam(0.1)}, "does not use its schedule"),
        ({"optimizer": lambda schedule: None}, "fails .*'NoneType' object has no attribute 'init'"),
        ({"optimizer": lambda schedule: optax.polyak_sgd(1.0)}, "fails .*required keyword-only argument: 'value'"),
        (
            {"optimizer": lambda schedule: optax.chain(optax.add_noise(0.1, 0.5, 0), optax.sgd(schedule))},
            "keeps random keys, and a checkpoint holds numbers alone: leave out what draws them",
        ),
        ({"schedule": lambda step: jnp.ones(3)}, r"gives float32 \[3\], not one real number: give a function of JAX"),
        ({"schedule": lambda step: 0.1 if step > 3 else 0.2}, "fails for a number of updates .*: give a function of J"),
        ({"schedule": 0.1}, "schedule=0.1 fails for a number of updates .*not callable"),
        ({"trainable": nnx.PathContains("tail")}, "chooses no parameter of head.bias, head.kernel"),
        ({"metrics": lambda logits, batch: 3}, "Net fails in evaluation .*: correct its __call__, its loss, metrics="),
        ({"metrics": lambda logits, batch: {"x": logits.mean()}}, "x in the loss of Net "),
        ({"metrics": lambda logits, batch: {"loss": batch.weights.sum()}}, "a further sum called loss, which there is"),
        ({"metrics": lambda logits, batch: {}, "loss": lambda m, b: 0}, "metrics= is for the cross-entropy: return"),
    ],
)
def test_wrong_values_are_one_sentence(values, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        run(own=values)
    assert "\n" not in str(error.value)


@quick(1, "chosen", [{"trainable": nnx.PathContains("head")}, None])
def test_parameters_that_are_not_trained_stay_also_under_weight_decay(tmp_path, chosen):
    """A filter from Python and the name on the command line are the same run, which its folder can tell."""
    workdir = tmp_path / "run"
    settings = {"optimizer": "adamw", "weight_decay": 0.5, "workdir": str(workdir), "epochs": 2}
    found = run(own=chosen, **settings | ({} if chosen else {"trainable": ("head",)})).state
    first = run(learning_rate=0.0).state.params
    jax.tree.map(np.testing.assert_array_equal, found.model_state, {"hidden": first["hidden"]})
    assert not np.array_equal(found.params["head"]["kernel"], first["head"]["kernel"])
    assert read_config(workdir).trainable == (("head.bias", "head.kernel") if chosen else ("head",))
    means, _ = evaluate_run(str(workdir), model=Net, data=DATA)
    assert means["loss"] == pytest.approx(load_run(workdir, model=Net)[2]["test"]["loss"], rel=1e-6)


def top_two(logits, batch):
    """How often the class is among the two highest logits."""
    right = (jnp.argsort(logits)[:, -2:] == batch.labels[:, None]).any(1)
    return {"top 2": (batch.weights * right).sum()}


def test_metrics_of_a_classifier(tmp_path):
    """They are shown beside its accuracy, by evaluation too, and what is trained is the same."""
    found = run(own={"metrics": top_two}, workdir=str(tmp_path / "run"), devices=3)
    test, plain = found.epochs[-1]["test"], run(devices=3)
    assert 1 >= test["top 2"] > test["accuracy"] == plain.epochs[-1]["test"]["accuracy"]
    jax.tree.map(np.testing.assert_array_equal, found.state, plain.state)
    means, _ = evaluate_run(str(tmp_path / "run"), model=Net, data=DATA, metrics=top_two, strategy="single")
    assert means["top 2"] == test["top 2"]


def test_a_run_with_values_is_resumed_with_them_alone(tmp_path):
    settings = {"workdir": str(tmp_path / "run")}
    run(own={"optimizer": optax.lion}, **settings)
    with pytest.raises(UserError, match=r"optimizer \('lion' there, 'adam' now\)"):
        run(**settings)
    with pytest.raises(UserError, match=r"unknown optimizer 'lion': .*from Python optimizer=..."):
        evaluate_run(settings["workdir"], model=Net, data=DATA)
