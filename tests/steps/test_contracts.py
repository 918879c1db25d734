"""Contract 1: every strategy on every device count equals one device on the whole, unpadded batch.

They are compared in processes of their own (`contract_worker.py`), which have as many devices as they need. The steps
of one device are compared with programs that share no code with ours: a NumPy program with the derivatives by hand, and
the convnet in bare jax.numpy, with batch norm over exactly the examples.
"""

import json
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import numpy_mlp
import plain_convnet
import pytest
from contract_worker import BATCH, CASES, SEED, OneDevice, data, one_device
from launch import IN_TESTS, python
from marks import quick

from pmapdp.state import TrainState

# Numbers of devices.
QUICK, SLOW = "8", "1,2,3,4,5,7"
MODELS = ("mlp,text_mlp,transformer", "cnn,speedrun", "convnet")


def worker(run: str, models: str) -> dict[str, dict[str, list[str]]]:
    done = python("support/contract_worker.py", run, models, env={"XLA_FLAGS": IN_TESTS}, timeout=1800)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def reports(request):
    """For each run that is asked for the worker's report, as a future: two workers run at a time, for most of it is
    compilation."""
    items = [item for item in request.session.items if item.path == request.path and "models" in item.fixturenames]
    wanted = [(item.callspec.params["run"], item.callspec.params["models"]) for item in items]
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {run: pool.submit(worker, *run) for run in wanted}
        pool.shutdown(cancel_futures=True)


@quick(1, ("run", "models"), [(run, models) for run in (QUICK, SLOW) for models in MODELS])
def test_every_strategy_equals_one_device_on_the_whole_batch(reports, run, models):
    report, counts = reports[run, models].result(), {int(count) for count in run.split(",")}
    cases = {case.name: set(case.counts or counts) & counts for case in CASES if case.model in models.split(",")}
    assert set(report) == {name for name, here in cases.items() if here}
    assert {f"{model} adam float64 K=1" for model in models.split(",") if model in ("mlp", "cnn", "convnet")} <= set(
        report
    )
    for name, strategies in report.items():
        assert set(strategies) == {"pmap", "jit", "shard_map"} | ({"single"} if 1 in cases[name] else set())
        for strategy, faults in strategies.items():
            assert faults == [], f"{name}, {strategy}"


def test_which_numbers_of_devices_are_run():
    runs = {int(run) for group in (QUICK, SLOW) for run in group.split(",")}
    assert sorted(runs) == [1, 2, 3, 4, 5, 7, 8]
    assert {case.model for case in CASES} == set(",".join(MODELS).split(","))


def trained(one: OneDevice) -> TrainState:
    """The state after an update on each batch."""
    state = one.state
    for batch in one.batches:
        state, _ = one.steps.train_step(state, batch)
    return jax.device_get(state)


def test_one_device_equals_numpy():
    """After five updates in float64 within 1e-11."""
    with jax.enable_x64(True):
        one = one_device("mlp", "sgd", "float64", 1)
        found = trained(one).params
    wanted = numpy_mlp.train(one.state.params, [batch[:2] for batch in one.batches], learning_rate=0.1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-11), found, wanted)


@quick(0, "accumulate", [2, 1], by_day=1)
def test_one_device_equals_a_plain_convnet(accumulate):
    """After five updates in float64 within 1e-11, with batch norm over each micro-batch."""
    train, _ = data("convnet")
    size = BATCH // accumulate
    with jax.enable_x64(True):
        one = one_device("convnet", "sgd", "float64", accumulate)
        found, batches = trained(one), []
        for batch in one.batches:
            examples = batch.indices[batch.weights > 0]
            parts = [examples[start : start + size] for start in range(0, len(examples), size)]
            batches.append([(train.inputs[part], train.labels[part], part) for part in parts])
        wanted = plain_convnet.train(one.state.params, one.state.model_state, batches, learning_rate=0.1, seed=SEED)
    for a, b in zip((found.params, found.model_state), wanted, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-11), a, b)
