"""Contract 1: every strategy on every device count equals one device on the whole, unpadded batch.

Each count runs in a process of its own (`contract_worker.py`), because a process cannot change its number of devices.
Beside a single device the references are a NumPy program with the derivatives by hand, and the convnet in bare
jax.numpy, with batch norm over exactly the examples.
"""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from contract_worker import CASES, too_far
from launch import python

COUNTS = (1, 2, 3, 4, 5, 7, 8)
RUNS = [(count, seam) for count in COUNTS for seam in (False, True)]
QUICK = {(3, False), (8, True)}


def worker(*arguments) -> str:
    done = python("support/contract_worker.py", *arguments, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def reports(request, tmp_path_factory):
    """For each run that is asked for the worker's report, as a future: two workers run at a time, for most of it is
    compilation."""
    folder = tmp_path_factory.mktemp("references")
    worker("reference", folder)
    wanted = [item.callspec.params["run"] for item in request.session.items if item.path == request.path]
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {(count, seam): pool.submit(worker, count, folder, *(["seam"] if seam else [])) for count, seam in wanted}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("run", [pytest.param(run, marks=[] if run in QUICK else pytest.mark.slow) for run in RUNS])
def test_every_strategy_equals_one_device_on_the_whole_batch(reports, run):
    """`run`: the number of devices; whether as simulated devices run it, or as accelerators do."""
    report, devices = json.loads(reports[run].result()), run[0]
    assert set(report) == {case.name for case in CASES if not case.counts or devices in case.counts}
    assert {"mlp adam float64 K=1", "cnn adam float64 K=1", "convnet adam float64 K=1"} <= set(report)
    for strategies in report.values():
        assert {"pmap", "jit", "shard_map"} <= set(strategies)
        assert ("single" in strategies) == (devices == 1)
    assert too_far(report) == []
