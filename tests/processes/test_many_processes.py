"""Several real processes on the loopback interface give the result of one, write once, and refuse strangers."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from examples import random_split
from launch import environment
from marks import NIGHT
from processes import by_hand, end_of, free_port, running, train_together
from running import run

from pmapdp.config import Config
from pmapdp.custom.data import fingerprint
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError
from pmapdp.processes.options import ProcessesOptions, check_options
from pmapdp.run.trained import load_run

JOB = ["--model", "mlp", "--optimizer", "momentum", "--learning-rate", 0.05, "--dtype", "float64", "--epochs", 3]


@pytest.mark.parametrize(
    ("count", "devices", "model", "strategies"),
    [
        (2, 3, "mlp", "pmap"),
        pytest.param(2, 3, "convnet", "shard_map", marks=pytest.mark.slow),
        pytest.param(2, 3, "mlp", "jit,shard_map", marks=NIGHT),
        pytest.param(2, 3, "convnet", "pmap,jit", marks=NIGHT),
        pytest.param(4, 2, "mlp", "pmap,jit,shard_map", marks=NIGHT),
    ],
)
def test_strategies_equal_one_device(tmp_path, count, devices, model, strategies):
    """Contract 1 over processes: five updates on ragged batches in float64, within 1e-10."""
    address = (f"127.0.0.1:{free_port()}", count)
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "processes_worker.py",
                *map(str, (devices, model, strategies, tmp_path, *address, process)),
            ],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
        )
        for process in range(count)
    ]
    try:
        errors = [worker.communicate(timeout=240)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * count, errors
    reports = [json.loads((tmp_path / str(process)).read_text()) for process in range(count)]
    assert {report["devices"] for report in reports} == {count * devices}
    assert all(report["params"] == reports[0]["params"] for report in reports)
    assert set(reports[0]["differences"]) == set(strategies.split(","))
    for strategy, differences in reports[0]["differences"].items():
        for quantity, difference in differences.items():
            assert difference <= (0 if quantity == "test_counts" else 1e-10), (strategy, quantity)
    # Every process reads only its share: the rows of all together are the padded batches, once.
    for batch in zip(*(report["rows"] for report in reports), strict=True):
        assert len({len(rows) for rows in batch}) == 1
        assert sum(map(len, batch)) == count * devices * -(-18 // (count * devices))


def test_the_parts_of_all_processes_make_up_the_batch():
    train = random_split(83, seed=1)
    whole = list(Batches(train, 18, devices=6, accumulate=2, shuffle_seed=3).epoch(0))
    parts = [list(Batches(train, 18, devices=6, here=here, accumulate=2, shuffle_seed=3).epoch(0))
             for here in (range(4), range(4, 6))]  # fmt: skip
    for batch, *own in zip(whole, *parts, strict=True):
        for name in batch._fields:
            np.testing.assert_array_equal(getattr(batch, name), np.concatenate([getattr(part, name) for part in own]))


@pytest.mark.slow
def test_elastic_and_only_process_0_writes(tmp_path):
    """Two processes, then one, then four continue each other's checkpoints and end as one process without a stop."""
    straight, switched = tmp_path / "straight", tmp_path / "switched"
    metrics = tmp_path / "metrics.jsonl"
    run(*JOB, "--devices", 4, "--workdir", straight)
    first, second = train_together(2, *JOB, "--devices", 2, "--workdir", switched, "--steps", 30,
                                   "--metrics-file", metrics, "--draw-sharding")  # fmt: skip
    assert "4 in 2 processes, each 2 simulated CPU devices" in first.out
    # What gloo prints itself, on its own terms, is not ours.
    assert not [line for line in second.out.splitlines() if line and "connected" not in line and "Gloo" not in line]
    assert [json.loads(line)["event"] for line in metrics.read_text().splitlines()] == [
        "start",
        "epoch",
        "epoch",
        "end",
    ]
    out, _ = run(*JOB, "--devices", 3, "--workdir", switched, "--steps", 50, "--strategy", "jit")
    assert "restored from the checkpoint of step 30" in out
    first, *_ = train_together(4, *JOB, "--devices", 1, "--workdir", switched, "--strategy", "shard_map")
    assert "restored from the checkpoint of step 50" in first.out
    lines = [json.loads(line) for line in (switched / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["event"] == "resume"] == [30, 50]
    assert {line["train_examples"] for line in lines if line["event"] == "epoch" and line["step"] % 23 == 0} == {1437}
    assert len(list(switched.glob("events.out.tfevents.*"))) == 3
    leaves = [jax.tree.leaves(load_run(folder)[1]) for folder in (straight, switched)]
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


OWN_DATA = """
import jax
import numpy as np
from flax import nnx
from pmapdp.data.dataset import DataSet

x = np.random.default_rng(0).normal(size=(101, 6)).astype(np.float32)

class Rows:
    def __len__(self):
        return 101

    def __getitem__(self, i):
        return x[i], int(x[i, :3].argmax()), 1.0 + i % 3

class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(x)

def make():
    return DataSet(Rows(), Rows(), augment=lambda x, key: x + 0.1 * jax.random.normal(key, x.shape))
"""


@pytest.mark.slow
def test_examples_that_are_read_one_by_one(tmp_path):
    """Two processes read and augment, each the rows of its own devices, and train as one device does; float32 within
    1e-5. A batch of 18 on four devices is padded."""
    file = tmp_path / "own.py"
    file.write_text(OWN_DATA)
    job = ["--dataset", f"{file}:make", "--model", f"{file}:Net", "--epochs", 2, "--global-batch-size", 18]
    job += ["--learning-rate", 0.1, "--no-progress"]
    run(*job, "--strategy", "single", "--workdir", tmp_path / "one")
    train_together(2, *job, "--devices", 2, "--strategy", "shard_map", "--workdir", tmp_path / "two")
    ends = [json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-2]) for name in ("one", "two")]
    for name in ("train_loss", "train_accuracy", "test_loss", "test_accuracy"):
        assert ends[0][name] == pytest.approx(ends[1][name], rel=1e-5)
    assert [end["train_examples"] for end in ends] == [101, 101]


@pytest.mark.parametrize(
    ("other", "env", "sentence"),
    [
        (["--seed", 1], {}, "process 1 differs from process 0 in --seed (1 there, 0 here)"),
        pytest.param(
            ["--devices", 3],
            {},
            "process 1 differs from process 0 in the number of its devices (3 there, 2 here)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [],
            {"version": "0.0.1"},
            "process 1 differs from process 0 in the version of jax ('0.0.1' there,",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_process_that_differs_is_refused(tmp_path, other, env, sentence):
    paths = f"{tmp_path}{os.pathsep}{environment()['PYTHONPATH']}"
    if env:  # another version of jax cannot be installed beside this one, but it can say so
        (tmp_path / "sitecustomize.py").write_text(f"import jax\njax.__version__ = {env['version']!r}\n")
    first, second = by_hand(2)
    job = ["--devices", 2, "--workdir", tmp_path / "run"]
    with (
        running([*job, *first]) as (one,),
        running([*job, *second, *other], env={"PYTHONPATH": paths}) as (two,),
    ):
        ended = [end_of(one), end_of(two)]
    for each in ended:
        assert each.status == 2, each
        assert each.err.startswith(f"error: {sentence}"), each
        assert each.err.count("\n") == 0, each
    assert not (tmp_path / "run" / "config.json").exists()


def test_data_sets_that_differ_are_told_apart():
    """What the processes compare, once they have read their data, as they compare the settings."""
    split = Split(np.zeros((4, 28, 28, 1), np.uint8), np.zeros(4, np.int32))
    other = Split(split.inputs + np.uint8(1), split.labels)
    assert fingerprint(DataSet(split, split)) == fingerprint(DataSet(split, jax.tree.map(np.copy, split)))
    assert fingerprint(DataSet(split, split)) != fingerprint(DataSet(split, other))


def test_not_all_come():
    """Process 0 alone, process 1 alone, whose coordinator does not listen, and one whose coordinator cannot be."""
    flags = ["--join-timeout", 3]
    too_long = ["--coordinator", f"{'x' * 300}:9876", *by_hand(2)[1][2:]]
    with running(*([*each, *flags] for each in (by_hand(2)[0], by_hand(2)[1], too_long))) as alone:
        for ended in map(end_of, alone):
            assert ended.status == 2, ended
            assert ended.err.startswith("error: not all processes have reached the coordinator (waited 3 s)"), ended
            assert ended.err.count("\n") == 0, ended


def test_a_port_in_use():
    first, _ = by_hand(2)
    port = int(first[1].rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)), running(first) as (alone,):
        ended = end_of(alone)
    assert ended.status == 2, ended
    assert ended.err.startswith(f"error: process 0 cannot listen at {first[1]} (Address already in use"), ended


def test_no_launcher(monkeypatch):
    for name in ("SLURM_JOB_ID", "OMPI_MCA_orte_hnp_uri", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with running(["--distributed"]) as (alone,):
        ended = end_of(alone)
    assert ended.status == 2, ended
    assert ended.err.startswith("error: --distributed finds neither Slurm, Open MPI, Kubernetes"), ended


def hand(coordinator="127.0.0.1:9876", count=2, process=0, **others) -> ProcessesOptions:
    return ProcessesOptions(coordinator=coordinator, num_processes=count, process_id=process, **others)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (hand(process=2), "--process-id 2 does not go with --num-processes 2: the processes are numbered from 0"),
        (hand(process=-1), "--process-id -1 does not go with --num-processes 2"),
        (hand(count=0), "--process-id 0 does not go with --num-processes 0"),
        (hand(coordinator="here"), "--coordinator here is not HOST:PORT: try --coordinator localhost:9876"),
        (hand(heartbeat_timeout=1), "--heartbeat-timeout 1 is too short: use at least --heartbeat-timeout 2"),
        (ProcessesOptions(coordinator="localhost:9876"), "--num-processes and --process-id missing"),
        (ProcessesOptions(process_id=0), "--coordinator and --num-processes missing"),
    ],
)
def test_flags_that_cannot_be(options, sentence):
    with pytest.raises(UserError) as error:
        check_options(options, Config())
    assert sentence in str(error.value)


def test_a_mesh_does_not_say_how_many_devices_a_process_has():
    with pytest.raises(UserError, match="--mesh data=4 with --distributed needs --devices"):
        check_options(ProcessesOptions(distributed=True), Config(strategy="jit", mesh="data=4"))


def test_a_single_device_needs_no_other_process():
    with pytest.raises(UserError, match="--strategy single runs on one device"):
        check_options(hand(), Config(strategy="single", devices=1))
