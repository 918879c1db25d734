"""Steps with other arguments and results, without a function around them, and the two references made of them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from marks import quick

from pmapdp.verify import ArgumentsError, old_program, one_device, verify

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(16, 5)), RANDOM.normal(size=16)
PARAMS = {"linear/~/w": RANDOM.normal(size=5), "linear/~/b": np.zeros(())}  # as Haiku names them
TX = optax.adam(0.01)
MEAN, SUM, ALONE = (lambda t: lax.pmean(t, "i")), (lambda t: lax.psum(t, "i")), (lambda t: t)


def loss_of(params, x, y, mask=1.0):
    return jnp.mean((x * mask @ params["linear/~/w"] + params["linear/~/b"] - y) ** 2)


def moved(params, opt, gradient):
    updates, opt = TX.update(gradient, opt, params)
    return optax.apply_updates(params, updates), opt


def haiku_like(average):
    """`(params, opt_state, rng, batch)` to three results; the noise is that of the whole batch on no device."""

    def step(params, opt_state, rng, batch):
        loss, gradient = average(jax.value_and_grad(loss_of)(params, batch["x"], batch["y"]))
        return *moved(params, opt_state, gradient), {"loss": loss, "draw": jax.random.normal(rng)}

    key = lambda update: jax.random.key(update)  # noqa: E731
    given = {"state": (PARAMS, TX.init(PARAMS)), "key": key, "batch": {"x": X, "y": Y}}
    return step, given


def returns_a_key(average):
    """`(state, rng, x, y)` to a state that is a pair, metrics and a new key."""

    def step(state, rng, x, y):
        rng, now = jax.random.split(rng)
        loss, gradient = average(jax.value_and_grad(loss_of)(state[0], x, y))
        return moved(*state, gradient), loss + 0 * jax.random.normal(now), rng

    return step, {"state": (PARAMS, TX.init(PARAMS)), "key": jax.random.PRNGKey(0), "batch": (X, Y)}


def a_pair_alone(average):
    """The new state alone, a pair."""

    def step(state, batch):
        return moved(*state, average(jax.grad(loss_of)(state[0], *batch)))

    return step, {"state": (PARAMS, TX.init(PARAMS)), "batch": (X, Y)}


@jax.tree_util.register_dataclass
@dataclass
class Module:
    """As an Equinox module: functions and flags are leaves, too."""

    params: Any
    activation: Any
    use_bias: bool


@jax.tree_util.register_dataclass
@dataclass
class Batch:
    x: Any
    y: Any


def equinox_like(average):
    """A module with a function and a flag in it, and a dataclass as batch."""

    def step(module, batch):
        def of(params):
            prediction = module.activation(batch.x @ params["linear/~/w"])
            return jnp.mean((prediction + (params["linear/~/b"] if module.use_bias else 0) - batch.y) ** 2)

        loss, gradient = average(jax.value_and_grad(of)(module.params))
        params = jax.tree.map(lambda p, g: p - 0.1 * g, module.params, gradient)
        return Module(params, module.activation, module.use_bias), loss

    return step, {"state": Module(PARAMS, jnp.tanh, True), "batch": Batch(X, Y)}


def filtered_pmap(step):
    """As `eqx.filter_pmap`: what is no array is no argument of the mapped function."""

    def inner(params, batch):
        module, loss = step(Module(params, jnp.tanh, True), batch)
        return module.params, loss

    mapped = jax.pmap(inner, "i")

    def outer(module, batch):
        params, loss = mapped(module.params, batch)
        return Module(params, module.activation, module.use_bias), loss

    return outer


class State(TrainState):
    key: Any


def train_state_with_a_key(average):
    def step(state, batch):
        loss, gradient = average(jax.value_and_grad(loss_of)(state.params, *batch))
        return state.apply_gradients(grads=gradient).replace(key=jax.random.split(state.key)[0]), {"loss": loss}

    state = State.create(apply_fn=None, params=PARAMS, tx=TX, key=jax.random.PRNGKey(0))
    return step, {"state": state, "batch": (X, Y)}


def scanned(average):
    """`[n_steps, B, ...]`: two updates in a scan."""

    def step(params, batch):
        def one(params, batch):
            loss, gradient = average(jax.value_and_grad(loss_of)(params, *batch))
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), loss

        return lax.scan(one, params, batch)

    return step, {"state": PARAMS, "batch": (np.stack([X, 2 * X]), np.stack([Y, Y])), "batch_axis": 1}


def batch_first(average):
    """`(x, y, rng, params, opt_state)`, and the loss before the new state."""

    def step(x, y, rng, params, opt_state):
        loss, gradient = average(jax.value_and_grad(loss_of)(params, x, y))
        return loss + 0 * jax.random.normal(rng), *moved(params, opt_state, gradient)

    given = {"state": (PARAMS, TX.init(PARAMS)), "key": jax.random.PRNGKey(0), "batch": (X, Y)}
    return step, given


FAMILIES = [haiku_like, returns_a_key, a_pair_alone, equinox_like, train_state_with_a_key, scanned, batch_first]


@pytest.mark.parametrize(("average", "causes"), [(MEAN, []), (SUM, ["sum for mean"])], ids=["right", "psum"])
@quick(2, "family", FAMILIES)
def test_a_step_of_a_family_equals_one_device_or_its_mistake_is_found(family, average, causes):
    step, given = family(average)
    mapped = filtered_pmap(step) if family is equinox_like else jax.pmap(step, "i")
    report = verify(step=mapped, reference=one_device(family(MEAN)[0], "i"), **given)
    assert not causes or report.failed, str(report)
    assert bool(report.failed) == bool(causes), str(report)
    if causes and family is not scanned:  # a gradient in a scan cannot be replaced
        assert causes[0] in report.causes, str(report)
    assert set(report.causes) <= {*causes, "scaled metrics", "unknown", "another scale"}, str(report)


def old_style(average=MEAN, fold=True):
    """A dropout key of each device in the state, and running statistics of its own examples."""

    def step(state, batch):
        key, now = jax.random.split(state["rng"])
        mask = jax.random.bernoulli(now if fold else jax.random.key(7), 0.7, batch[0].shape)
        loss, gradient = average(jax.value_and_grad(loss_of)(state["params"], *batch, mask))
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], gradient)
        stats = {"mean": 0.9 * state["stats"]["mean"] + 0.1 * batch[0].mean(0)}
        return {"params": params, "rng": key, "stats": stats}, {"loss": loss}

    state = {
        "params": PARAMS, "rng": jax.random.split(jax.random.PRNGKey(1), 8), "stats": {"mean": np.zeros((8, 5))}
    }  # fmt: skip
    return step, {"state": state, "batch": (X, Y), "per_device": ["rng", "stats"]}


def ported(step):
    """The old step under shard_map: leaves of a device come as `[1, ...]`."""
    mesh = Mesh(np.array(jax.devices()), ("i",))
    specs = {"params": PartitionSpec(), "rng": PartitionSpec("i"), "stats": PartitionSpec("i")}

    def inner(state, batch):
        one = {**state, "rng": state["rng"][0], "stats": jax.tree.map(lambda x: x[0], state["stats"])}
        new, metrics = step(one, batch)
        return {**new, "rng": new["rng"][None], "stats": jax.tree.map(lambda x: x[None], new["stats"])}, metrics

    given = {"in_specs": (specs, PartitionSpec("i")), "out_specs": (specs, PartitionSpec())}
    return jax.jit(jax.shard_map(inner, mesh=mesh, **given, check_vma=False))


@pytest.mark.parametrize("way", ["pmap", "shard_map"])
def test_a_port_equals_the_old_program_masks_and_statistics_included(way):
    step, given = old_style()
    mapped = jax.pmap(step, "i") if way == "pmap" else ported(step)
    layout = "stacked" if way == "pmap" else "sharded"
    report = verify(step=mapped, reference=old_program(step, "i", groups=8), layout=layout, **given)
    assert report.ok, str(report)
    assert {"rng"} <= set(report.compared.exactly)
    assert {"stats/mean", "params/linear/~/w"} <= set(report.compared.leaves)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "causes"),
    [
        ({"average": ALONE}, {"drift", "no all-reduce", "one device's metrics"}),
        ({"average": SUM}, {"sum for mean", "scaled metrics"}),
        ({"fold": False}, {"unknown", "other random numbers", "key stands still"}),
    ],
    ids=["no all-reduce", "psum", "other masks"],
)
def test_a_mistake_of_a_port_is_found_beside_leaves_of_each_device(mistake, causes):
    _, given = old_style()
    report = verify(
        step=jax.pmap(old_style(**mistake)[0], "i"), reference=old_program(old_style()[0], "i", groups=8), **given
    )
    assert report.failed, str(report)
    assert set(report.causes) <= causes, str(report)


def test_a_leaf_of_each_device_that_is_not_named_is_said_with_the_line_to_add():
    step, given = old_style()
    given = given | {"per_device": ["rng"], "state": given["state"] | {"stats": {"mean": np.zeros(5)}}}
    with pytest.raises(ArgumentsError, match=r"different values of stats/mean in .*per_device=\['rng', 'stats/"):
        verify(step=jax.pmap(step, "i"), reference=old_program(step, "i", groups=8), **given)


class Graph(NamedTuple):
    """As a GraphsTuple: arrays of different lengths, padded, one graph for each device."""

    nodes: Any
    edges: Any
    n_node: Any


def test_a_graph_for_each_device_is_a_batch():
    def step(w, graph):
        valid = jnp.arange(graph.nodes.shape[0]) < graph.n_node
        loss, g = jax.value_and_grad(lambda w: jnp.sum(valid * (graph.nodes @ w) ** 2) + jnp.sum(graph.edges) * 0)(w)
        return w - 0.01 * MEAN(g), {"loss": MEAN(loss)}

    graphs = Graph(RANDOM.normal(size=(8, 6, 5)), RANDOM.normal(size=(8, 9)), RANDOM.integers(2, 6, 8))
    given = {"state": np.ones(5), "batch": graphs, "per_device": ["batch"]}
    report = verify(step=jax.pmap(step, "i"), reference=old_program(step, "i", groups=8), **given)
    assert report.ok, str(report)


def test_a_step_without_a_batch_keeps_its_environments_on_the_devices():
    def step(average):
        def inner(state):
            key, now = jax.random.split(state["key"])
            seen = state["position"] + 0.1 * jax.random.normal(now, (3,))
            gradient = average(jax.grad(lambda w: jnp.mean((seen * w) ** 2))(state["w"]))
            return {"w": state["w"] - 0.1 * gradient, "key": key, "position": seen}

        return inner

    state = {"w": np.ones(3), "key": jax.random.split(jax.random.key(0), 8), "position": RANDOM.normal(size=(8, 3))}
    given = {"state": state, "per_device": ["key", "position"], "reference": old_program(step(MEAN), "i", groups=8)}
    assert verify(step=jax.pmap(step(MEAN), "i"), **given).ok
    report = verify(step=jax.pmap(step(ALONE), "i"), **given)
    assert report.causes
    assert set(report.causes) <= {"drift", "no all-reduce"}, str(report)


def test_metrics_of_each_device_have_names_that_no_part_of_the_state_has():
    """A step that returns `(params, opt_state, loss, largest)`; the loss is that of each device."""

    def step(params, opt, batch):
        loss, gradient = jax.value_and_grad(loss_of)(params, *batch)
        return *moved(params, opt, MEAN(gradient)), loss, lax.pmax(loss, "i")

    given = {"state": (PARAMS, TX.init(PARAMS)), "batch": (X, Y), "step": jax.pmap(step, "i")}
    given |= {"reference": old_program(step, "i", groups=8)}
    with pytest.raises(ArgumentsError, match=r"different values of metric 0 in .*per_device=\['metric 0'\]"):
        verify(**given)
    report = verify(**given, per_device=["metric 0"])
    assert report.ok, str(report)


def test_another_result_of_the_same_random_numbers_is_not_called_other_numbers():
    """An evolution strategy: no batch, and a metric that moves both ways with the noise."""

    def step(ranked):
        def inner(state):
            w, key = state
            key, now = jax.random.split(key)
            mine = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(now, i), (3,)))(
                2 * lax.axis_index("i") + jnp.arange(2)
            )
            score = -jnp.sum((w + mine) ** 2, -1)
            score, rank, noise = lax.all_gather((score, ranked(score), mine), "i", tiled=True)
            rank = ranked(score) if ranked is ranks else rank
            return (w + 0.1 * rank @ noise, key), {"score": jnp.mean(rank * score)}

        return inner

    reference = old_program(step(ranks), "i", groups=4)
    given = {"state": (np.ones(3), jax.random.PRNGKey(0)), "reference": reference, "devices": jax.devices()[:4]}
    assert verify(step=jax.pmap(step(ranks), "i", devices=jax.devices()[:4]), **given).ok
    report = verify(step=jax.pmap(step(lambda x: ranks(x) * 2), "i", devices=jax.devices()[:4]), **given)
    assert report.causes == ["unknown"], str(report)


def ranks(x):
    return jnp.argsort(jnp.argsort(x)) / x.size


def test_leaves_of_each_device_are_not_compared_with_one_device():
    def step(state, batch):
        key, _ = jax.random.split(state["rng"])
        return {"w": state["w"] - 0.1 * MEAN(batch.mean(0)), "rng": key}

    state = {"w": np.ones(5), "rng": jax.random.split(jax.random.PRNGKey(1), 8)}
    report = verify(step=jax.pmap(step, "i"), reference=one_device(step, "i"), state=state, batch=X, per_device="rng")
    assert report.ok, str(report)
    assert report.compared.per_device == ("rng",)
    assert "Not compared, because per_device names them: rng." in str(report)


def test_one_device_is_a_function_of_its_own():
    step, given = haiku_like(MEAN)
    arguments = (*given["state"], jax.random.key(0), given["batch"])
    new, *_ = one_device(step, "i")(*arguments)
    wanted, *_ = haiku_like(ALONE)[0](*arguments)
    jax.tree.map(np.testing.assert_array_equal, new, wanted)
