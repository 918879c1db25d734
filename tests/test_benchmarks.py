"""The table and the picture of the results, and the bare loops, which do the trainer's work."""

import json
import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from examples import random_split
from flax import nnx

from benchmarks import bare, summary
from benchmarks.comparisons import comparisons
from pmapdp.registry import MODELS
from pmapdp.state import Task, create_state


def test_the_ratio_is_that_of_the_medians():
    pair = comparisons(peers=False)[0]
    ours, other = [30.0, 10.0, 21.0], [10.0, 11.0, 7.0]
    results = {
        "machine": {"cores": 2, "processor": "x", "devices": "simulated", "python": "3", "jax": "0"},
        "seconds": {"import": 1.0, "first step": 2.0},
        "examples_per_second": {pair.ours.name: ours, pair.other.name: other},
    }
    assert "| 10 | 21 | 2.10 | 0.95 |" in summary.table(results)
    assert "up to 95% of their median" in summary.table(results)
    ElementTree.fromstring(summary.picture(results))


def test_readme_and_picture_are_those_of_the_results():
    results = json.loads(summary.RESULTS.read_text())
    readme = summary.PAGE.read_text()
    assert summary.table(results) == readme.split(summary.BEGIN)[1].split(summary.END)[0].strip()
    # Its words, with all ratios: where they are drawn is up to the version of matplotlib.
    made, kept = ElementTree.fromstring(summary.picture(results)), ElementTree.parse(summary.PICTURE)
    words, found = ([each.text for each in picture.findall(".//{*}text")] for picture in (made, kept))
    assert len(words) > 2 * len(comparisons(peers=True))
    assert words == found


def test_every_comparison_was_measured_in_as_many_rounds_three_at_least():
    results = json.loads(summary.RESULTS.read_text())
    assert len(summary.measured(results)) == len(comparisons(peers=True))
    (rounds,) = {len(values) for values in results["examples_per_second"].values()}
    assert rounds >= 3


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_the_bare_network_is_the_same_network(model):
    task = Task(MODELS[model], optax.adam(1e-3))
    state = create_state(task)
    order = {"mlp": ("hidden1", "hidden2", "logits"), "cnn": ("conv", "hidden", "logits")}[model]
    layers = [(state.params[name]["kernel"], state.params[name]["bias"]) for name in order]
    images = random_split(16, seed=0).inputs
    ours = nnx.merge(task.model_structure(), state.params, state.batch_stats)(jnp.asarray(images))
    np.testing.assert_allclose(bare.logits(layers, jnp.asarray(images)), ours, rtol=0, atol=1e-5)
    assert [weights.shape for weights, _ in bare.initial_parameters(model)] == [w.shape for w, _ in layers]


@pytest.mark.parametrize("strategy", ["pmap", "jit", "shard_map"])
def test_the_bare_step_is_that_of_one_device(strategy):
    split = random_split(16, seed=0)
    images, labels = jnp.asarray(split.inputs), jnp.asarray(split.labels)

    def after_one(name, devices):
        step, whole, place = bare.make_step(name, devices)
        parameters = jax.device_put(bare.initial_parameters("mlp"), whole)
        batch = (images, labels)
        if name == "pmap":
            batch = images.reshape(len(devices), -1, 28, 28, 1), labels.reshape(len(devices), -1)
        return step(parameters, jax.device_put(bare.OPTIMIZER.init(parameters), whole), *jax.device_put(batch, place))

    *_, one_loss = after_one("single", jax.devices()[:1])
    *_, loss = after_one(strategy, jax.devices()[:4])
    np.testing.assert_allclose(loss, one_loss, rtol=1e-5)
