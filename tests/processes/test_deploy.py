"""The files in deploy/ are valid, and start commands that pmapdp takes."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from pmapdp import cli
from pmapdp.distributed import ProcessesOptions
from pmapdp.train import COMMAND

DEPLOY = Path(__file__).parents[2] / "deploy"


def documents() -> list[dict]:
    return list(yaml.safe_load_all((DEPLOY / "jobset.yaml").read_text()))


@pytest.mark.slow
def test_kubernetes_manifest_is_valid():
    """Against the published schemas; a JobSet's few fields of its own against its v1alpha2 definition."""
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
    config, options = cli.parse_with_recipe(
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
