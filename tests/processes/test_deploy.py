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


def documents(on_gpus: bool = False) -> list[dict]:
    """Read the manifest. `on_gpus` uncomments the lines that are for GPUs."""
    text = (DEPLOY / "jobset.yaml").read_text()
    if on_gpus:
        text, lines = re.subn(
            r"^( +)# (- --devices|resources:|  limits:|    nvidia)",
            r"\1\2",
            text,
            flags=re.MULTILINE,
        )
        assert lines == 4
    return list(yaml.safe_load_all(text))


def container_of(jobset: dict) -> dict:
    job = jobset["spec"]["replicatedJobs"][0]["template"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.slow
@pytest.mark.parametrize("on_gpus", [False, True])
def test_kubernetes_manifest_is_valid(on_gpus):
    """Against the published schemas, and a JobSet against its v1alpha2 definition."""
    import kubernetes_validate  # takes a second, in every process of pytest

    *others, jobset = documents(on_gpus)
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
    policy = jobset["spec"]["failurePolicy"]
    assert isinstance(policy["maxRestarts"], int)
    # As in JobSet's own examples/failure-policy.
    (rule,) = policy["rules"]
    reasons = ["PodFailurePolicy"]
    assert rule == {"action": "FailJobSet", "onJobFailureReasons": reasons}
    if on_gpus:
        assert container_of(jobset)["resources"]["limits"] == {"nvidia.com/gpu": 8}
    pods = job["spec"]
    assert pods["parallelism"] == pods["completions"]
    # JAX finds process 0 by these labels of Jobs that belong to a JobSet, and numbers
    # by the completion index.
    assert pods["completionMode"] == "Indexed"


def test_command_lines_in_deploy_are_right():
    """Kubernetes starts a command that pmapdp.train takes, and so does the image."""
    for on_gpus, devices in ((False, None), (True, 8)):
        container = container_of(documents(on_gpus)[-1])
        config, options = parse_with_recipe(
            COMMAND, ProcessesOptions, container["args"]
        )
        assert options.distributed
        assert config.devices == devices
        assert config.workdir.startswith(container["volumeMounts"][0]["mountPath"])
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    assert json.loads(lines[-1].removeprefix("ENTRYPOINT ")) == [
        "python",
        "-m",
        "pmapdp.train",
    ]
    image = "\n".join(lines)
    python = re.search(r"^FROM python:([\d.]+)-slim$", image, re.MULTILINE)[1]
    (pinned,) = set(re.findall(r"JAX='jax\[.*\]==([\d.]+)'", image))
    readme = (DEPLOY.parent / "README.md").read_text()
    assert f"| {python} | {pinned} |" in readme  # the versions that are tested
    for source in re.findall(r"^COPY (.*) \S+$", image, re.MULTILINE):
        for path in source.split():
            assert (DEPLOY.parent / path).exists(), path
    text = (DEPLOY / "slurm.sbatch").read_text()
    assert 'python -m pmapdp.train "$@" --distributed' in text
    for script in ("slurm.sbatch", "mpirun.sh"):
        subprocess.run(["bash", "-n", DEPLOY / script], check=True, timeout=20)


FAKE_MPIRUN = """#!/bin/bash
printf '%s\\n' "$@"
"""


def run_mpirun(folder, *arguments):
    """Run the script with a mpirun that only says what it got."""
    (folder / "mpirun").write_text(FAKE_MPIRUN)
    (folder / "mpirun").chmod(0o755)
    return subprocess.run(
        ["bash", DEPLOY / "mpirun.sh", *arguments],
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=20,
    )


COMMENT = (DEPLOY / "mpirun.sh").read_text().partition("launcher=")[0]
MPIRUN_LINES = re.findall(
    r"bash deploy/mpirun\.sh (.*?)  +# ", re.sub(r" \\\n# +", " ", COMMENT)
)


@pytest.mark.parametrize("line", MPIRUN_LINES)
def test_open_mpi_starts_the_commands_of_its_comments(tmp_path, line):
    before, after = line.split(" -- ")
    done = run_mpirun(tmp_path, *line.split())
    assert done.returncode == 0
    launcher, module, train = done.stdout.partition("\n-m\npmapdp.train\n")
    assert module
    *options, python = launcher.splitlines()
    assert Path(python).is_absolute()
    assert " ".join(options).endswith(f"odls_base_sigkill_timeout 60 {before.strip()}")
    assert train.split() == [*after.split(), "--distributed"]
    config, processes = parse_with_recipe(COMMAND, ProcessesOptions, train.split())
    assert processes.distributed
    gpus = re.search(r"DEVICE_IDS=([\d,]+)", before)
    assert config.devices == (len(gpus[1].split(",")) if gpus else None)


def test_open_mpi_without_the_two_hyphens_is_refused(tmp_path):
    assert len(MPIRUN_LINES) == 2
    done = run_mpirun(tmp_path, "-np", "2", "--strategy", "jit")
    assert done.returncode == 2
    assert "write -- between" in done.stderr


def test_docs_show_the_whole_script():
    """And name the parts of it that another script needs."""
    page = (DEPLOY.parent / "docs" / "processes.md").read_text()
    (whole,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    script = (DEPLOY / "slurm.sbatch").read_text()
    assert whole == script
    parts = re.search(r"copy three things into yours:\n\n(.*?)\n\n", page, re.DOTALL)
    names = re.findall(r"`(--[^`]+|export \w+)`", parts[1])
    assert len(names) == 10
    for name in names:
        assert name in script


FAKE_SRUN = """#!/bin/bash
echo "environment $MY_ENVIRONMENT"
echo "nccl $NCCL_DEBUG"
echo "ids $JAX_LOCAL_DEVICE_IDS"
echo "arguments $*"
task=0
for status in $STATUSES; do
    if [ $status != 0 ]; then
        echo "srun: error: node$task: task $task: Exited with exit code $status" >&2
    fi
    task=$((task + 1))
done
exit $(printf '%s\\n' 0 $STATUSES | sort -n | tail -n 1)
"""
FAKE_SCONTROL = """#!/bin/bash
echo "scontrol $*"
"""


def run_script(folder, *arguments, script=DEPLOY / "slurm.sbatch", **variables):
    """Run the job script with a srun and a scontrol that only say what they got.

    `STATUSES` are those with which the processes end. As in a real Slurm, the script
    appends to a log that an earlier start has begun. `ERROR_LOG` names another log for
    what it prints on standard error, as with `--error`.

    Returns:
        The script's status, and what it and its commands print into the log.
    """
    for name, text in {"srun": FAKE_SRUN, "scontrol": FAKE_SCONTROL}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = os.environ | variables
    environment["PATH"] = f"{folder}:{os.environ['PATH']}"
    before = "srun: error: node1: task 1: Exited with exit code 2\n"
    log = folder / "pmapdp-7.log"
    log.write_text(before)
    error_log = folder / variables.get("ERROR_LOG", log.name)
    with log.open("a") as file, error_log.open("a") as error_file:
        done = subprocess.run(
            ["bash", script, *arguments],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=error_file,
            timeout=20,
        )
    return done.returncode, log.read_text().removeprefix(before)


def test_the_job_script_asks_slurm_for_whole_nodes_and_a_signal():
    """Without a time limit Slurm sends no signal, as its manual says."""
    script = (DEPLOY / "slurm.sbatch").read_text()
    options = re.findall(r"^#SBATCH (--[\w-]+(?:=\S+)?)", script, re.MULTILINE)
    asked = {"--ntasks-per-node=1", "--gpus-per-node=8", "--exclusive", "--mem=0"}
    assert asked | {"--requeue", "--signal=TERM@60"} <= set(options)
    assert any(option.startswith("--time=") for option in options)


def test_the_job_script_starts_in_your_environment(tmp_path):
    """And NCCL says what goes wrong, or as much as you ask for."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.write_text("export MY_ENVIRONMENT=active\n")
    _, out = run_script(tmp_path, "mirrored")
    assert "environment active\n" in out
    assert "nccl WARN\n" in out
    _, out = run_script(tmp_path, "mirrored", NCCL_DEBUG="INFO")
    assert "nccl INFO\n" in out


@pytest.mark.parametrize(
    ("gpus", "ids"), [("8", "0,1,2,3,4,5,6,7"), ("4", "0,1,2,3"), ("1", "0")]
)
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


def test_the_job_script_starts_a_process_for_each_gpu(tmp_path):
    """JAX then takes one GPU for each, and the processes share the cores."""
    slurm = {"SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_ON_NODE": "96"}
    _, out = run_script(tmp_path, "mirrored", SLURM_NTASKS_PER_NODE="8", **slurm)
    assert "ids \n" in out
    assert "arguments --cpus-per-task=12 python" in out
    train = out.split("pmapdp.train ")[1]
    config, _ = parse_with_recipe(COMMAND, ProcessesOptions, train.split())
    assert config.devices == 1


def test_the_job_script_starts_a_program_of_yours(tmp_path):
    status, out = run_script(tmp_path, "my_train.py", "--fast", SLURM_CPUS_ON_NODE="4")
    assert status == 0
    arguments = "--cpus-per-task=4 python my_train.py --fast"
    assert f"arguments {arguments}\n" in out


def test_a_job_array_runs_a_seed_in_each_task(tmp_path):
    """With the flags that docs/processes.md adds after the script's own."""
    page = (DEPLOY.parent / "docs" / "processes.md").read_text(encoding="utf-8")
    flags, place = re.search(
        r'`(--seed "\$SLURM_ARRAY_TASK_ID" .*?)` after the script\'s `(.*?)`', page
    ).groups()
    text = (DEPLOY / "slurm.sbatch").read_text()
    assert text.count(place) == 1
    script = tmp_path / "array.sbatch"
    script.write_text(text.replace(place, f"{place} {flags}"))
    status, out = run_script(
        tmp_path, "--epochs", "3", script=script, SLURM_ARRAY_TASK_ID="4"
    )
    assert status == 0
    train = out.split("pmapdp.train ")[1]
    config, _ = parse_with_recipe(COMMAND, ProcessesOptions, train.split())
    assert (config.epochs, config.seed) == (3, 4)
    assert config.workdir == "/shared/runs/4"


def test_all_start_again_after_the_statuses_of_the_page(tmp_path):
    """The script of the page itself has a test in tests/command/test_statuses.py."""
    page = (DEPLOY.parent / "docs" / "statuses.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*\|(.*)\|$", page, re.MULTILINE)
    last = [int(status) for status, advice in rows if "**start again**" not in advice]
    assert last == [0, 1, 2, 3, 130, 141]
    job = documents()[-1]["spec"]["replicatedJobs"][0]["template"]["spec"]
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["values"] == last[1:]
    for status, _ in rows:
        slurm = {"STATUSES": status, "SLURM_JOB_ID": "7"}
        returned, out = run_script(tmp_path, "mirrored", **slurm)
        assert returned == int(status)
        assert ("scontrol requeue" in out) == (int(status) not in last)


@pytest.mark.parametrize(
    ("statuses", "ended", "is_requeued"),
    [
        ("3 3", 3, False),
        ("130 130", 130, False),
        ("4 4", 4, True),
        ("137 134", 137, True),
        # The others have lost the process that failed.
        ("4 1 134", 1, False),
        ("4 2 4", 2, False),
        ("134 3", 3, False),
    ],
)
def test_the_job_script_goes_on_after_a_loss(tmp_path, statuses, ended, is_requeued):
    slurm = {"STATUSES": statuses, "SLURM_JOB_ID": "7"}
    returned, out = run_script(tmp_path, "mirrored", **slurm)
    assert returned == ended
    assert ("scontrol requeue 7" in out) == is_requeued
    apart = slurm | {"ERROR_LOG": "pmapdp-7.err"}
    assert run_script(tmp_path, "mirrored", **apart)[0] == ended
    tired = slurm | {"SLURM_RESTART_COUNT": "20"}
    assert "scontrol" not in run_script(tmp_path, "mirrored", **tired)[1]
    few = slurm | {"SLURM_RESTART_COUNT": "3"}
    assert ("scontrol" in run_script(tmp_path, "mirrored", **few)[1]) == is_requeued
    few["MOST_RESTARTS"] = "3"
    assert "scontrol" not in run_script(tmp_path, "mirrored", **few)[1]
    assert "scontrol" not in run_script(tmp_path, "check", **slurm)[1]
