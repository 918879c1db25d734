"""Contract 1: every strategy on every device count equals one device on the whole, unpadded batch.

Each count runs in a process of its own (`contract_worker.py`), because a process cannot change its number of devices.
Beside a single device the references are a NumPy program with the derivatives by hand, and the convnet in bare
jax.numpy, with batch norm over exactly the examples.
"""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from contract_worker import CASES
from launch import python

COUNTS = (1, 2, 3, 4, 5, 7, 8)
# Largest absolute difference after five updates. The loss sums (about 40 a batch, 70 in the test) and the
# running statistics in float32 carry a few units in the last place of float32.
TOLERANCES = {
    "float64": dict.fromkeys(("params", "batch_stats", "train_loss", "test_loss"), 1e-10),
    "float32": {"params": 1e-6, "batch_stats": 1e-6, "train_loss": 1e-4, "test_loss": 1e-4},
}
COUNTED = {"train_counts", "test_counts"}  # examples and right answers are whole numbers


def worker(*arguments) -> str:
    done = python("support/contract_worker.py", *arguments, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """For each count the worker's report, as a future: two workers run at a time, for most of it is compilation."""
    folder = tmp_path_factory.mktemp("references")
    worker("reference", folder)
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {count: pool.submit(worker, count, folder) for count in COUNTS}
        pool.shutdown(cancel_futures=True)  # where only some of the tests were asked for


@pytest.mark.parametrize("devices", COUNTS)
def test_every_strategy_equals_one_device_on_the_whole_batch(reports, devices):
    report = json.loads(reports[devices].result())

    expected = {case.name for case in CASES if not case.counts or devices in case.counts}
    assert set(report) == expected
    assert {"mlp adam float64 K=1", "cnn adam float64 K=1", "convnet adam float64 K=1"} <= set(report)
    too_far = []
    for case, strategies in report.items():
        assert {"pmap", "jit", "shard_map"} <= set(strategies)
        assert ("single" in strategies) == (devices == 1)
        tolerances = TOLERANCES["float32" if "float32" in case else "float64"]
        for strategy, differences in strategies.items():
            for quantity, difference in differences.items():
                limit = 0 if quantity in COUNTED else tolerances[quantity]
                if not difference <= limit:  # a NaN fails too
                    too_far.append(f"{case}, {strategy}: {quantity} differ by {difference:.2g}, over {limit:.2g}")
    assert not too_far, "\n".join(too_far)
