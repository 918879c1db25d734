"""docs/processes.md: what it says of JAX's connections is true of the installed JAX."""

import inspect
import re
from pathlib import Path

import jax
from jax._src import distributed
from jax._src.clusters.slurm_cluster import SlurmCluster

from pmapdp.distributed import ProcessesOptions

PAGE = (Path(__file__).parents[2] / "docs" / "processes.md").read_text(encoding="utf-8")


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


def test_how_long_the_others_wait():
    defaults = ProcessesOptions()
    assert f"`--heartbeat-timeout` ({defaults.heartbeat_timeout} s)" in PAGE
    assert f"`--join-timeout` ({defaults.join_timeout} s)" in PAGE
    assert "waits five minutes" in PAGE
    parameters = inspect.signature(jax.distributed.initialize).parameters
    seconds = parameters["heartbeat_timeout_seconds"].default
    assert f"decides: {seconds} seconds" in PAGE


def test_jax_warns_about_proxies():
    source = inspect.getsource(distributed)
    assert "may cause a hang of distributed.initialize" in source


def test_certificates_are_for_0_12():
    version = tuple(map(int, jax.__version__.split(".")[:2]))
    parameters = inspect.signature(jax.distributed.initialize).parameters
    (line,) = re.findall(r"^export (JAX_MTLS.*)$", PAGE, re.MULTILINE)
    variables = re.findall(r"(\w+)=", line)
    assert len(variables) == 3
    for variable in variables:
        argument = variable.removeprefix("JAX_").lower()
        assert f"`{argument}`" in PAGE
        assert (argument in parameters) == (version >= (0, 12))
        assert hasattr(jax.config, variable.lower()) == (version >= (0, 12))
