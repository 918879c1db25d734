"""The same command under Open MPI, a real Slurm of two nodes and Kubernetes: what lies in deploy/.

Open MPI and Slurm are started where they are installed (Slurm needs root). With PMAPDP_REQUIRE_LAUNCHERS=1, as in
.ci/run where they could be installed, these tests must run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import slurm_cluster
import yaml
from launch import environment
from processes import free_port
from running import run

from pmapdp import cli
from pmapdp.processes.options import ProcessesOptions
from pmapdp.run.trained import load_run

DEPLOY = Path(__file__).parents[2] / "deploy"
JOB = ["--model", "mlp", "--devices", "2", "--epochs", "2", "--checkpoint-every", "5", "--no-progress"]
HERE = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "JAX_PLATFORMS": "cpu"}


def require(missing: str | None, what: str) -> None:
    """Skip, loudly, unless it was promised to be here."""
    if missing:
        message = f"{what} IS NOT TESTED: {missing}; apt-get install openmpi-bin slurm-wlm munge, as root"
        if os.environ.get("PMAPDP_REQUIRE_LAUNCHERS") == "1":
            pytest.fail(message)
        pytest.skip(message)


def launched(*command: object, env: dict[str, str], status: int | None = 0) -> str:
    """Run a launcher; its output, and a failure where its status is another."""
    done = subprocess.run(
        list(map(str, command)), env=environment(HERE | env), capture_output=True, text=True, timeout=240, check=False
    )
    assert status is None or done.returncode == status, done
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The same job in one process with as many devices."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    run(*JOB, "--devices", 4, "--workdir", folder)
    return folder


def assert_same(first: Path, second: Path) -> None:
    """Contract 1 in float32 over 46 updates of Adam; every epoch over exactly all examples."""
    for a, b in zip(*(jax.tree.leaves(load_run(folder)[1]) for folder in (first, second)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-3)
    events = [json.loads(line) for line in (second / "metrics.jsonl").read_text().splitlines()]
    assert {event["train_examples"] for event in events if event["event"] == "epoch"} == {1437}
    assert events[-1]["event"] == "end"


@pytest.mark.slow
def test_open_mpi(straight, tmp_path):
    require(None if shutil.which("mpirun") else "mpirun is not installed", "OPEN MPI")
    env = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_oob_tcp_if_include": "lo",
        "JAX_COORDINATOR_PORT": str(free_port()),
    }
    out = launched("bash", DEPLOY / "mpirun.sh", "-np", 2, "--", *JOB, "--workdir", tmp_path / "run", env=env)
    assert "4 in 2 processes" in out
    assert_same(straight, tmp_path / "run")


@pytest.mark.slow
def test_slurm(straight, tmp_path):
    """A batch job over two nodes is preempted by SIGTERM: it saves, and is in the queue again. Then one with srun."""
    require(slurm_cluster.missing(), "SLURM")
    with slurm_cluster.cluster(tmp_path / "slurm") as env:
        env |= {"JAX_COORDINATOR_PORT": str(free_port())}
        log, workdir = tmp_path / "log.txt", tmp_path / "run"
        script = ["--output", log, DEPLOY / "slurm.sbatch", *JOB, "--workdir", workdir]
        job = re.search(r"\d+", launched("sbatch", "--chdir", tmp_path, *script, "--epochs", 400, env=env))[0]
        slurm_cluster.wait_until(lambda: list((workdir / "checkpoints").glob("[0-9]*")), tmp_path, timeout=120)
        launched("scancel", "--signal=TERM", job, env=env)
        slurm_cluster.wait_until(lambda: "PENDING" in launched("squeue", "-h", "-o", "%T", env=env), tmp_path)
        launched("scancel", job, env=env)
        text = log.read_text()
        step = int(re.search(r"stopped by SIGTERM after step ([\d,]+)", text)[1].replace(",", ""))
        assert (workdir / "checkpoints" / str(step)).is_dir()
        assert text.count("stopped by SIGTERM after step") == 2, text  # both processes
        assert "4 in 2 processes" in text
        srun = ["srun", "--nodes=2", "--ntasks=2", sys.executable, "-m", "pmapdp.train", *JOB, "--distributed"]
        out = launched(*srun, "--workdir", tmp_path / "second", env=env)
        assert "4 in 2 processes" in out
    assert_same(straight, tmp_path / "second")


def documents() -> list[dict]:
    return list(yaml.safe_load_all((DEPLOY / "jobset.yaml").read_text()))


def test_kubernetes_manifest_is_valid():
    """Against the published schemas; a JobSet's own fields, of which there are few, against its v1alpha2 definition."""
    import kubernetes_validate  # takes a second, in every process of pytest

    *others, jobset = documents()
    job = jobset["spec"]["replicatedJobs"][0]["template"]
    alone = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "one"}, **job}
    for document in (*others, alone):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert set(jobset["spec"]) <= {"failurePolicy", "network", "replicatedJobs", "successPolicy", "startupPolicy"}
    assert set(jobset["spec"]["replicatedJobs"][0]) == {"name", "replicas", "template"}
    assert isinstance(jobset["spec"]["failurePolicy"]["maxRestarts"], int)
    pods = job["spec"]
    assert pods["parallelism"] == pods["completions"]
    # JAX finds process 0 by these labels of Jobs that belong to a JobSet, and numbers by the completion index.
    assert pods["completionMode"] == "Indexed"


def test_command_lines_in_deploy_are_right():
    """What Kubernetes starts is a command that pmapdp.train takes, and the image starts it."""
    pod = documents()[-1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    config, options = cli.parse_with_recipe(ProcessesOptions, pod["containers"][0]["args"], None)
    assert options.distributed
    assert config.workdir.startswith(pod["containers"][0]["volumeMounts"][0]["mountPath"])
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    assert json.loads(lines[-1].removeprefix("ENTRYPOINT ")) == ["python", "-m", "pmapdp.train"]
    for source in re.findall(r"^COPY (.*) \S+$", "\n".join(lines), re.MULTILINE):
        for path in source.split():
            assert (DEPLOY.parent / path).exists(), path
    for script in ("slurm.sbatch", "mpirun.sh"):
        text = (DEPLOY / script).read_text()
        assert 'python -m pmapdp.train "$@" --distributed' in text
        subprocess.run(["bash", "-n", DEPLOY / script], check=True, timeout=20)
