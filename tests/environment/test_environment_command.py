"""What the command prints is what this process finds by other ways."""

import json
from importlib.metadata import version

from launch import python

VARIABLES = {"JAX_NUM_CPU_DEVICES": "3", "NPROC": "6", "XLA_FLAGS": ""}


def test_versions_devices_and_variables():
    done = python("-m", "pmapdp.environment", "--json", env=VARIABLES)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    for package in ("jax", "jaxlib", "flax", "optax", "numpy"):
        assert found[package] == version(package)
    assert found["devices"] == "3 x cpu (cpu)"
    # The caller's own settings are reported too: .ci/run sets PMAPDP_REQUIRE_...
    assert found["variables"].items() >= (VARIABLES | {"JAX_PLATFORMS": "cpu"}).items()
    assert "PATH" not in found["variables"]


def test_lines_for_people():
    done = python("-m", "pmapdp.environment", env=VARIABLES)
    assert done.returncode == 0
    assert f"jax              {version('jax')}" in done.stdout.splitlines()
    assert "NPROC=6" in done.stdout.splitlines()


def test_it_reports_also_where_jax_cannot_start():
    done = python("-m", "pmapdp.environment", "--json", env={"JAX_PLATFORMS": "quantum"})
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["devices"].startswith("none, JAX cannot start: ")
    assert "quantum" in found["devices"]
    assert found["jax"] == version("jax")


def test_the_console_script_knows_it_and_a_wrong_flag_is_one_sentence():
    done = python("-c", "import sys; from pmapdp.command.program import main; sys.argv[1:] = ['environment']; main()")
    assert (done.returncode, done.stderr) == (0, "")
    done = python("-m", "pmapdp.environment", "--jsn")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--json" in done.stderr
