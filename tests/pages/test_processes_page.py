"""docs/processes.md, docs/long_runs.md and SECURITY.md: what they say of JAX's
connections is true of the installed JAX.
"""

import inspect
import re
import sys
from pathlib import Path

import jax
import pytest
from jax._src import distributed
from jax._src.clusters import cluster, ompi_cluster
from jax._src.clusters.k8s_cluster import K8sCluster
from jax._src.clusters.ompi_cluster import OmpiCluster
from jax._src.clusters.slurm_cluster import SlurmCluster

from pmapdp.distributed import ProcessesOptions
from pmapdp.flags import parse_with_recipe
from pmapdp.registry import load_data
from pmapdp.train import COMMAND

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "processes.md").read_text(encoding="utf-8")
LONG_RUNS = (DOCS / "long_runs.md").read_text(encoding="utf-8")
SECURITY = DOCS.with_name("SECURITY.md").read_text(encoding="utf-8")


def test_the_data_fill_a_batch_on_four_nodes():
    """The commands and the program take 32 or 64 examples on each of 32 GPUs."""
    custom = (DOCS / "custom.md").read_text(encoding="utf-8")
    (cars,) = re.findall(r"```python\n(# data.py\n.*?)```", custom, re.DOTALL)
    names: dict = {}
    exec(cars, names)
    examples = {
        "data.py:make": len(names["make"]()["train"][0]),
        "digits": len(load_data("digits").train.labels),
    }
    lines = re.findall(r"slurm\.sbatch (--.*?)(?: +#.*)?$", PAGE, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        config, _ = parse_with_recipe(COMMAND, ProcessesOptions, line.split())
        assert config.per_device_batch_size in (32, 64)
        assert 32 * config.per_device_batch_size <= examples[config.dataset]
    (size,) = re.findall(r"per_device_batch_size=(\d+)", PAGE)
    assert 32 * int(size) <= examples["data.py:make"]
    assert f"digits have {examples['digits']:,} training examples" in PAGE
    assert f"{examples['data.py:make']:,} training examples" in PAGE


def test_the_port_under_slurm(monkeypatch):
    """It's the one in the command that tries the connection."""
    job, node, port = re.search(r"--jobid=(\d+) .*/dev/tcp/(\w+)/(\d+)", PAGE).groups()
    first, divisor = re.search(
        r"port (\d+) plus the remainder of the job\s+number divided by (\d+)", PAGE
    ).groups()
    assert int(port) == int(first) + int(job) % int(divisor)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_STEP_NODELIST", f"{node},another")
    assert SlurmCluster.get_coordinator_address(60, None) == f"{node}:{port}"
    variable, another = re.search(r"`export (JAX_\w+_PORT)=(\d+)`", PAGE).groups()
    assert SlurmCluster.get_coordinator_address(60, another) == f"{node}:{another}"
    assert variable in inspect.getsource(cluster)


def test_how_long_the_others_wait():
    defaults = ProcessesOptions()
    assert f"`--heartbeat-timeout` ({defaults.heartbeat_timeout} s)" in LONG_RUNS
    assert f"`--join-timeout` ({defaults.join_timeout} s)" in LONG_RUNS
    assert "(`--join-timeout`)" in PAGE
    assert "waits five minutes" in PAGE
    parameters = inspect.signature(jax.distributed.initialize).parameters
    seconds = parameters["heartbeat_timeout_seconds"].default
    assert f"`heartbeat_timeout_seconds` ({seconds} s)" in LONG_RUNS


def test_what_jax_needs_on_kubernetes(monkeypatch):
    """It warns about the missing client, and asks for pods and jobs."""
    (extra,) = re.findall(r'`pip install "(jax\[\w+\])"`', PAGE)
    warning = re.search(r"JAX warns `(Kubernetes .*), but \.\.\.`", PAGE)[1]
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.warns(UserWarning, match=warning) as warned:
        assert not K8sCluster.is_env_present()
    assert extra in str(warned[0].message)
    source = inspect.getsource(K8sCluster)
    assert "list_namespaced_pod" in source
    assert "read_namespaced_job" in source
    assert "headless service" in source


def test_open_mpi_5_needs_the_jax_that_the_page_says(monkeypatch):
    """Only from that version on JAX recognizes it, and then asks for mpi4py."""
    needed = re.search(r"^\| Open MPI 5 \| .* \| jax ([\d.]+), and", PAGE, re.MULTILINE)
    first = tuple(map(int, needed[1].split(".")))
    version = jax.__version_info__
    monkeypatch.delenv("OMPI_MCA_orte_hnp_uri", raising=False)
    for name in ("SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", "1")
    assert OmpiCluster.is_env_present() == (version >= first)
    source = inspect.getsource(ompi_cluster)
    assert ("requires mpi4py" in source) == (version >= first)


def test_jax_warns_about_proxies():
    source = inspect.getsource(distributed)
    assert "may cause a hang of distributed.initialize" in source


def test_certificates_need_the_jax_that_the_page_says():
    (since,) = re.findall(r"From jax ([\d.]+) on, the processes can show", SECURITY)
    first = tuple(map(int, since.split(".")))
    is_new = jax.__version_info__ >= first
    assert f"from jax {since} on" in LONG_RUNS
    parameters = inspect.signature(jax.distributed.initialize).parameters
    (line,) = re.findall(r"^export (JAX_MTLS.*)$", SECURITY, re.MULTILINE)
    variables = re.findall(r"(\w+)=", line)
    assert len(variables) == 3
    for variable in variables:
        argument = variable.removeprefix("JAX_").lower()
        assert f"`{argument}`" in SECURITY
        assert (argument in parameters) == is_new
        assert hasattr(jax.config, variable.lower()) == is_new
