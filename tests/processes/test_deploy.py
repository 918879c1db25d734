"""The files in deploy/ are valid, and start commands that pmapdp takes."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from pmapdp.distributed import ProcessesOptions
from pmapdp.flags import parse_with_recipe
from pmapdp.train import COMMAND

DEPLOY = Path(__file__).parents[2] / "deploy"


def documents() -> list[dict]:
    return list(yaml.safe_load_all((DEPLOY / "jobset.yaml").read_text()))


@pytest.mark.slow
def test_kubernetes_manifest_is_valid():
    """Against the published schemas, and a JobSet against its v1alpha2 definition."""
    import kubernetes_validate  # takes a second, in every process of pytest

    *others, jobset = documents()
    job = jobset["spec"]["replicatedJobs"][0]["template"]
    alone = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "one"},
        **job,
    }
    for document in (*others, alone):
        kubernetes_validate.validate(
            document, kubernetes_validate.latest_version(), strict=True
        )
    assert (jobset["apiVersion"], jobset["kind"]) == (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
    )
    assert set(jobset["spec"]) <= {
        "failurePolicy",
        "network",
        "replicatedJobs",
        "successPolicy",
        "startupPolicy",
    }
    assert set(jobset["spec"]["replicatedJobs"][0]) == {"name", "replicas", "template"}
    assert isinstance(jobset["spec"]["failurePolicy"]["maxRestarts"], int)
    pods = job["spec"]
    assert pods["parallelism"] == pods["completions"]
    # JAX finds process 0 by these labels of Jobs that belong to a JobSet, and numbers
    # by the completion index.
    assert pods["completionMode"] == "Indexed"


def test_command_lines_in_deploy_are_right():
    """Kubernetes starts a command that pmapdp.train takes, and so does the image."""
    pod = documents()[-1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"][
        "spec"
    ]
    config, options = parse_with_recipe(
        COMMAND, ProcessesOptions, pod["containers"][0]["args"]
    )
    assert options.distributed
    assert config.workdir.startswith(
        pod["containers"][0]["volumeMounts"][0]["mountPath"]
    )
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    assert json.loads(lines[-1].removeprefix("ENTRYPOINT ")) == [
        "python",
        "-m",
        "pmapdp.train",
    ]
    for source in re.findall(r"^COPY (.*) \S+$", "\n".join(lines), re.MULTILINE):
        for path in source.split():
            assert (DEPLOY.parent / path).exists(), path
    for script in ("slurm.sbatch", "mpirun.sh"):
        text = (DEPLOY / script).read_text()
        assert 'python -m pmapdp.train "$@" --distributed' in text
        subprocess.run(["bash", "-n", DEPLOY / script], check=True, timeout=20)


def test_docs_show_the_whole_script():
    page = (DEPLOY.parent / "docs" / "processes.md").read_text()
    assert f"```bash\n{(DEPLOY / 'slurm.sbatch').read_text()}```" in page


FAKE_SRUN = """#!/bin/bash
echo "ids $JAX_LOCAL_DEVICE_IDS"
echo "arguments $*"
exit ${SRUN_STATUS:-0}
"""
FAKE_SCONTROL = """#!/bin/bash
echo "scontrol $*"
"""


def run_script(folder, *arguments, **variables):
    """Run the job script with a srun and a scontrol that only say what they got."""
    for name, text in {"srun": FAKE_SRUN, "scontrol": FAKE_SCONTROL}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = os.environ | variables
    environment["PATH"] = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", DEPLOY / "slurm.sbatch", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=20,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(("gpus", "ids"), [("8", "0,1,2,3,4,5,6,7"), ("1", "0")])
def test_the_job_script_gives_each_process_all_gpus_of_its_node(tmp_path, gpus, ids):
    """The commands that srun gets are taken by pmapdp.train, with all devices asked
    for.
    """
    slurm = {"SLURM_GPUS_ON_NODE": gpus, "SLURM_CPUS_ON_NODE": "96"}
    for arguments in (["mirrored", "--workdir", "runs/first"], ["check"]):
        status, out = run_script(tmp_path, *arguments, **slurm)
        assert status == 0
        assert f"ids {ids}\n" in out
        line = out.split("arguments ")[1]
        options, _, train = line.partition(" python -m pmapdp.train ")
        assert options == "--cpus-per-task=96"
        config, processes = parse_with_recipe(COMMAND, ProcessesOptions, train.split())
        assert (config.devices, processes.distributed) == (int(gpus), True)


def test_the_job_script_starts_a_program_of_yours(tmp_path):
    status, out = run_script(tmp_path, "my_train.py", "--fast", SLURM_CPUS_ON_NODE="4")
    assert status == 0
    arguments = "--cpus-per-task=4 python my_train.py --fast"
    assert f"arguments {arguments}\n" in out


@pytest.mark.parametrize(
    ("status", "is_requeued"),
    [(0, False), (1, False), (2, False), (3, False), (4, True), (143, True)],
)
def test_the_job_script_goes_on_after_a_loss(tmp_path, status, is_requeued):
    slurm = {"SRUN_STATUS": str(status), "SLURM_JOB_ID": "7"}
    returned, out = run_script(tmp_path, "mirrored", **slurm)
    assert returned == status
    assert ("scontrol requeue 7" in out) == is_requeued
    tired = slurm | {"SLURM_RESTART_COUNT": "20"}
    assert "scontrol" not in run_script(tmp_path, "mirrored", **tired)[1]
    assert "scontrol" not in run_script(tmp_path, "check", **slurm)[1]
