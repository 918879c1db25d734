"""Several real processes give the result of one, write once, refuse what differs, and
end if one is lost.
"""

import contextlib
import re
import signal
import socket
import time
from pathlib import Path

import entry
import jax
import numpy as np
import pytest
import small_job
from points import loss
from processes import (
    HEARTBEAT,
    by_hand,
    end_of,
    free_port,
    running,
    train_together,
    wait_for_checkpoint,
)

from pmapdp import distributed
from pmapdp.config import Config
from pmapdp.distributed import (
    ProcessesOptions,
    connect_processes,
    find_bind_address,
    start_devices,
)
from pmapdp.errors import UserError
from pmapdp.train import load_run

DATA = """
import jax
import numpy as np
from pmapdp.data.dataset import DataSet

x = np.random.default_rng(0).normal(size=(101, 6))

class Rows:
    def __len__(self):
        return 101

    def __getitem__(self, i):
        return x[i], int(x[i, :3].argmax()), 1.0 + i % 3

def make():
    def augment(x, key):
        return x + 0.1 * jax.random.normal(key, x.shape)
    return DataSet(Rows(), Rows(), augment=augment)
"""


@pytest.fixture
def small_run(tmp_path):
    """Flags of a run in float64 with batch norm, dropout and examples that are read and
    augmented one by one.

    An epoch has six updates, and its last batch is ragged.
    """
    (tmp_path / "data.py").write_text(DATA)
    yours = ["--model", f"{small_job.NET}:Net", "--dataset", tmp_path / "data.py:make"]
    return [*yours, "--no-progress", "--dtype", "float64", "--global-batch-size", 18]


SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "4096.0;tcp://127.0.0.1:1",
    "OMPI_COMM_WORLD_SIZE": "2",
}
RANKS = (
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
)

GLOO_CONNECTS = "Gloo Rank is connected to peer ranks Expected number of connected"


def launched(launcher: dict[str, str]) -> dict[str, list]:
    """Two processes with the variables that srun or mpirun sets."""
    ranks = [name for name in RANKS if name[:4] == min(launcher)[:4]]
    shared = launcher | {"JAX_COORDINATOR_PORT": str(free_port())}
    env = [shared | dict.fromkeys(ranks, rank) for rank in "01"]
    return {
        "hands": [["--distributed", "--heartbeat-timeout", HEARTBEAT]] * 2,
        "env": env,
    }


def require_lost(ended) -> None:
    """A process ended because of another one.

    With our sentence if a collective failed, or by JAX or gloo.
    """
    if ended.status == 4:
        assert ended.err.splitlines()[-1].startswith(
            "error: another process is lost, see its own messages ("
        ), ended
    else:
        assert ended.status == -signal.SIGABRT, ended
        theirs = (
            "Terminating process because the JAX distributed service detected fatal "
            "errors",
            "instance of 'gloo::",
        )
        assert any(words in ended.err for words in theirs), ended


@pytest.mark.slow
def test_two_processes_that_are_killed_and_hang_and_resumed_equal_one_device(
    small_run, tmp_path
):
    """Promises 1 and 4 over processes: the coordinator is killed, a process hangs (with
    jit), one gets a signal, all get one (by Ctrl-C in a terminal), and each time both
    end and start again. One process ends the run."""
    job = [
        *small_run,
        "--epochs",
        1000,
        "--global-batch-size",
        4,
    ]  # 26 updates an epoch, never done by itself
    one = tmp_path / "one"
    two = tmp_path / "two"
    both = [*job, "--checkpoint-every", 2, "--devices", 2, "--workdir", two]
    steps = []

    @contextlib.contextmanager
    def under_way(hands, env=None, strategy="pmap"):
        with running(
            *([*both, "--strategy", strategy, *hand] for hand in hands), env=env
        ) as processes:
            wait_for_checkpoint(two, processes, steps)
            yield processes
        steps[:] = entry.checkpoint_steps(two)

    with under_way(**launched(SLURM)) as (first, second):
        first.kill()
        require_lost(end_of(second))
    with under_way(**launched(OPEN_MPI), strategy="jit") as (first, second):
        started = time.monotonic()
        second.send_signal(signal.SIGSTOP)
        require_lost(end_of(first))
        assert (
            time.monotonic() - started < HEARTBEAT + 5
        )  # for the test itself, on a machine with much to do
    for number, asked in ((signal.SIGTERM, [1]), (signal.SIGINT, [0, 1])):
        with under_way(by_hand()) as processes:
            for process in asked:
                processes[process].send_signal(number)
            first, second = map(end_of, processes)
        assert (first.status, second.status, first.err) == (
            128 + number,
            128 + number,
            second.err,
        ), second
        stopped = int(
            re.match(
                r"stopped by SIG\w+ after step ([0-9,]+): a checkpoint", first.err
            )[1].replace(",", "")
        )
        assert steps[-1] == stopped
    # Process 1 prints nothing but Gloo's only sentence, whose lines may be torn apart,
    # because several threads write them. So the words are compared.
    words = set(re.findall("[A-Za-z]+", second.out))
    assert words <= set(GLOO_CONNECTS.split()), second
    assert "restored from the checkpoint of step" in first.out
    assert "4 in 2 processes, each 2 simulated CPU devices" in first.out
    end = ["--steps", 26 * (stopped // 26 + 1)]
    for flags in (
        ["--devices", 4, "--workdir", two],
        ["--strategy", "single", "--workdir", one],
    ):
        done = entry.run_command("train", *job, *end, *flags)
        assert done.status == 0, done.err
    for a, b in zip(
        *(jax.tree.leaves(load_run(folder)[1]) for folder in (one, two)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)
    theirs, ours = (
        entry.epochs_in(folder / "metrics.jsonl")[-1] for folder in (one, two)
    )
    assert theirs["train"]["examples"] == ours["train"]["examples"] == 101
    for name in ("train", "test"):
        assert theirs[name] == pytest.approx(ours[name], rel=1e-9)


def test_the_parts_of_all_processes_make_up_the_batch():
    def batches(here):
        return entry.batches(
            entry.examples_for("cnn", 83, 1),
            18,
            seed=3,
            devices=6,
            local_shards=here,
            accumulate=2,
        )

    for whole, *parts in zip(*map(batches, (None, range(4), range(4, 6))), strict=True):
        for name in whole._fields:
            joined = np.concatenate([getattr(part, name) for part in parts])
            np.testing.assert_array_equal(getattr(whole, name), joined)


@pytest.mark.parametrize("launcher", [SLURM, OPEN_MPI], ids=["slurm", "open mpi"])
def test_a_launcher_without_the_flag_is_named(monkeypatch, capsys, launcher):
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    with connect_processes(ProcessesOptions(), Config()) as processes:
        assert processes.count == 1
    assert re.fullmatch(
        r"warning: \w+=2 processes were started, .* add --distributed\n",
        capsys.readouterr().err,
    )
    with (
        pytest.raises(
            UserError,
            match="add distributed, or leave workdir out, which they would share",
        ),
        connect_processes(ProcessesOptions(), Config(workdir="runs/first")),
    ):
        pass


CONNECTED = """
import sys, jax
from points import loss
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
print("said", loss(strategy=sys.argv[3], devices=2, workdir=sys.argv[4]), flush=True)
jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_a_program_that_has_connected_its_processes(tmp_path):
    (tmp_path / "two.py").write_text(CONNECTED)
    address = f"localhost:{free_port()}"
    hands = [[address, process, "pmap", tmp_path / "run"] for process in (0, 1)]
    ended = train_together(hands=hands, program=tmp_path / "two.py")
    said = {
        line
        for end in ended
        for line in end.out.splitlines()
        if line.startswith("said ")
    }
    assert [float(line.split()[1]) for line in said] == [
        pytest.approx(loss(strategy="single", devices=1), abs=1e-5)
    ]
    assert "by the program, 2 processes" in (tmp_path / "run" / "log.txt").read_text()


PAGES = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "tasks"), [("2", "1"), ("4", "2")])
def test_the_program_of_the_page_under_slurm(tmp_path, gpus, tasks):
    """With the files of docs/custom.md, 2 devices in each process, and one epoch.

    A process is alone on its node of two, or has half of a node of four.
    """
    page = (PAGES / "processes.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(# my_train.py.*?)```", page, re.DOTALL)
    changes = {
        'workdir="': 'epochs=1,\n        progress=False,\n        workdir="',
        "/shared/runs/cars": str(tmp_path / "run"),
    }
    for old, new in changes.items():
        assert program.count(old) == 1
        program = program.replace(old, new)
    # As `python my_train.py` does.
    folder_first = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
    (tmp_path / "my_train.py").write_text(folder_first + program)
    custom = (PAGES / "custom.md").read_text(encoding="utf-8")
    for file in ("data.py", "net.py"):
        (text,) = re.findall(rf"```python\n(# {file}\n.*?)```", custom, re.DOTALL)
        (tmp_path / file).write_text(text)
    node = {"SLURM_GPUS_ON_NODE": gpus, "SLURM_NTASKS_PER_NODE": tasks}
    env = launched(SLURM | node)["env"]
    first, second = train_together(
        hands=[[], []], env=env, program=tmp_path / "my_train.py"
    )
    assert "4 in 2 processes, each 2 simulated CPU devices" in first.out
    assert "by the program, 2 processes" in first.out
    assert "epoch 1/1" in first.out
    assert "epoch 1/1" not in second.out


@pytest.mark.slow
def test_the_program_that_measures_the_network(tmp_path):
    """With less to send. The sum is N in every place."""
    page = (PAGES / "processes.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(# bandwidth.py.*?)```", page, re.DOTALL)
    assert program.count("64 * 2**20") == 1
    program = program.replace("64 * 2**20", "2**20")
    two_devices = "import jax\njax.config.update('jax_num_cpu_devices', 2)\n"
    check = "assert total.shape == (1, size) and (total.addressable_data(0) == 4).all()"
    path = tmp_path / "bandwidth.py"
    path.write_text(two_devices + program + check)
    env = launched(SLURM)["env"]
    first, second = train_together(hands=[[], []], env=env, program=path)
    assert re.search(r"^4 GPUs: \S+ s, \S+ GB/s from each$", first.out, re.MULTILINE)
    assert "GB/s" not in second.out


# Refusals


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (["--seed", 1], "in --seed (1 there, 0 here)"),
        pytest.param(
            ["--devices", 3],
            "in its devices ('3 x cpu' there, '2 x cpu' here)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_process_that_differs_is_refused(tmp_path, other, sentence):
    first, second = by_hand()
    hands = [first, [*second, *other]]
    for end in train_together(
        "--devices", 2, "--workdir", tmp_path / "run", hands=hands, status=2
    ):
        assert end.err.startswith(
            f"error: process 1 differs from process 0 {sentence}"
        ), end
        assert end.err.count("\n") == 0, end
    assert not (tmp_path / "run" / "config.json").exists()


def test_not_all_come():
    """Process 0 alone."""
    with running([*by_hand()[0], "--join-timeout", 1]) as (alone,):
        ended = end_of(alone)
    assert ended.status == 2, ended
    assert ended.err.startswith(
        "error: not all processes have come (waited 1 s): start each once, with"
    ), ended
    assert ended.err.count("\n") == 0, ended


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"coordinator": "localhost:9", "num_processes": 2, "process_id": 2},
            "process_id=2, num_processes=2",
        ),
        (
            {"coordinator": "localhost:9"},
            "(Number of processes must be defined.): start each once, with "
            "--distributed",
        ),
        (
            {"process_id": 0},
            "(coordinator_address should be defined.): start each once, with "
            "--distributed",
        ),
        (
            {"distributed": True},
            "or with its number from 0 and a free port of process 0's machine, as in "
            "--coordinator",
        ),
        (
            {"coordinator": "here", "num_processes": 2, "process_id": 0},
            "cannot be connected (invalid literal for int",
        ),
        (
            {"coordinator": "BUSY", "num_processes": 2, "process_id": 0},
            "cannot be connected (Address already in use",
        ),
    ],
)
def test_flags_that_cannot_be(options, sentence, monkeypatch):
    """JAX finds most of it."""
    monkeypatch.setattr(
        "jax._src.xla_bridge.backends_are_initialized", lambda: False
    )  # of the other tests
    with socket.create_server(("127.0.0.1", 0)) as server:
        if options.get("coordinator") == "BUSY":
            options = options | {"coordinator": f"127.0.0.1:{server.getsockname()[1]}"}
        with (
            pytest.raises(UserError) as error,
            connect_processes(ProcessesOptions(**options), Config()),
        ):
            pass
    assert sentence in error.value.message  # as on the command line


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({"coordinator": "h:9", "num_processes": 2, "process_id": 0}, 4),
        ({"distributed": True}, None),
    ],
)
def test_a_mesh_over_processes_needs_a_part_of_its_devices_in_each(
    monkeypatch, options, number
):
    """JAX starts with all, because nobody knows yet how many processes there are."""
    asked = []

    def start_devices(config, number, launcher):
        asked.append(number)
        return distributed.SINGLE_PROCESS

    monkeypatch.setattr(distributed, "initialize_jax", lambda options: None)
    monkeypatch.setattr(distributed, "start_devices", start_devices)
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: None)
    config = Config(strategy="jit", mesh="data=4,model=2")
    with connect_processes(ProcessesOptions(**options), config):
        pass  # an error here would end the process
    assert asked == [number]


def test_a_run_that_processes_cannot_share():
    with pytest.raises(
        UserError, match='runs in one process only: use strategy="shard_map"'
    ):
        start_devices(Config(strategy="single", devices=1), None, "by hand")


def test_the_coordinator_listens_no_wider_than_it_must():
    """On the address alone if that is a number.

    A name may mean another address elsewhere.
    """
    for host in ("127.0.0.1", "localhost", "[::1]"):
        address = f"{host}:{free_port()}"
        assert find_bind_address(address, 0) == address
    assert find_bind_address(f"node-1.cluster:{free_port()}", 0) is None


# Faults


# The program of `pmapdp.train`, one process of which is slower.
SLOWER = """
import sys, time
from pmapdp import cli, metrics
from pmapdp.train import main

add = metrics.Meter.add

def add_slowly(*values):
    time.sleep(float(sys.argv[1]))
    add(*values)

metrics.Meter.add = add_slowly
sys.exit(cli.run(main, sys.argv[2:]))
"""


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_both_after_the_same_update(small_run, tmp_path):
    """Else the update that one of them has started alone waits for the other for
    ever.
    """
    (tmp_path / "slower.py").write_text(SLOWER)
    job = [*small_run, "--dtype", "float32", "--devices", 2, "--learning-rate", 1e38]
    hands = [
        [seconds, *job, *hand]
        for seconds, hand in zip((0, 0.05), by_hand(), strict=True)
    ]
    first, second = train_together(
        hands=hands, status=3, program=tmp_path / "slower.py"
    )
    assert first.err == second.err
    assert "error: the loss is " in first.err


# The program of `pmapdp.train` on a disk that is full after the first epoch.
FULL_DISK = """
import shutil, sys
from pmapdp import cli
from pmapdp.train import main

usage = shutil.disk_usage
free = iter([10**12])

def almost_full(path):
    return usage(path)._replace(free=next(free, 1000))

shutil.disk_usage = almost_full
sys.exit(cli.run(main, sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_full_disk_ends_all_and_the_checkpoints_before_it_are_intact(
    small_run, tmp_path
):
    """As docs/long_runs.md says."""
    (tmp_path / "full.py").write_text(FULL_DISK)
    workdir = tmp_path / "run"
    job = [*small_run, "--devices", 2, "--epochs", 2, "--workdir", workdir]
    hands = [[*job, *hand] for hand in by_hand()]
    for ended in train_together(hands=hands, status=2, program=tmp_path / "full.py"):
        assert f"could not be written to {workdir}/checkpoints" in ended.err
    assert entry.checkpoint_steps(workdir) == [6]
    first, _ = train_together(*job)
    assert "restored from the checkpoint of step 6" in first.out


# Process 0 takes the mean of x. Process 1 leaves it out, and is at its next collective,
# the sum of y.
OUT_OF_STEP = """
import sys
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

process = int(sys.argv[2])
jax.config.update("jax_num_cpu_devices", 1)
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=process)
mesh = Mesh(np.array(jax.devices()), ("data",))
numbers = np.full((1, 4), [1, 100][process], np.float32)
array = jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), numbers)
function = [lambda x: x.mean(0), lambda y: y.sum(0)][process]
found = jax.jit(function, out_shardings=NamedSharding(mesh, P()))(array)
print(process, np.asarray(found).tolist(), file=sys.stderr)
jax.distributed.shutdown()
"""


@pytest.mark.slow
def test_two_collectives_of_processes_out_of_step_are_mixed_without_an_error(tmp_path):
    """As lesson 17 says of a collective that one process alone calls."""
    (tmp_path / "program.py").write_text(OUT_OF_STEP)
    coordinator = f"127.0.0.1:{free_port()}"
    ended = train_together(
        hands=[[coordinator, 0], [coordinator, 1]], program=tmp_path / "program.py"
    )
    for process, mixed in (
        (0, (1 + 100) / 2),
        (1, 1.0 + 100),
    ):  # the mean of x is 1, the sum of y is 200
        assert f"{process} {[mixed] * 4}" in ended[process].err
