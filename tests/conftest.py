"""Eight simulated devices for the tests that run in pytest's own process, and where the
real MNIST and IMDB are.

A process cannot change its number of devices: tests of other counts start processes of
their own. Many tests compile the same programs: these are kept in pytest's cache, and
`pytest --cache-clear` begins anew.
"""

import gc
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from launch import CALLERS, COMPILED, IN_TESTS

os.environ.setdefault("XLA_FLAGS", IN_TESTS)
os.environ[CALLERS] = "false"
os.environ["JAX_PLATFORMS"] = (
    "cpu"  # also where there are accelerators, which tests/accelerators uses
)

import jax
import numpy as np
import pytest

from pmapdp.data import imdb
from pmapdp.devices import simulate
from pmapdp.registry import default_data_dir

gc.set_threshold(
    50_000, 20, 20
)  # what JAX traces lives long: the usual 700 costs a tenth of the time
signal.signal(
    signal.SIGHUP, signal.SIG_DFL
)  # also where pytest runs under nohup: commands that it starts must end

# The files that take longest, longest first: begun last, one of them would leave the
# other cores idle at the end.
LONGEST = (
    "test_1_one_result.py",
    "test_alone.py",
    "test_processes.py",
    "test_4_same_again.py",
    "test_programs.py",
)
LONGEST += ("test_train.py", "test_6_no_loss.py", "test_8_your_parts.py")


def pytest_xdist_auto_num_workers():
    """As many as there are cores.

    One more would import and collect everything once more.
    """
    return os.cpu_count() or 1


def pytest_collection_modifyitems(items):
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONGEST)))


def pytest_configure(config):
    if config.pluginmanager.hasplugin("cacheprovider"):
        settings = dict(
            zip(COMPILED, (str(config.cache.mkdir("compiled")), "0", "-1"), strict=True)
        )
        os.environ.update(settings)  # for the processes that tests start
        for name, value in settings.items():
            jax.config.update(
                name.lower(), value if name.endswith("DIR") else int(value)
            )
    config.addinivalue_line(
        "markers", "nightly: too long for the gate: `pytest -m nightly`"
    )
    config.addinivalue_line(
        "markers", "mnist: needs the real MNIST (environment variable PMAPDP_DATA)"
    )
    config.addinivalue_line("markers", "torch: needs PyTorch, which torchvision brings")
    config.addinivalue_line(
        "markers",
        "slow: what quick tests cover already, in more cases; `.ci/run` runs it too",
    )
    config.addinivalue_line(
        "markers",
        "imdb: needs the real reviews of IMDB (environment variable PMAPDP_DATA)",
    )


@pytest.fixture(scope="session", autouse=True)
def eight_devices():
    """Simulated before the first test computes anything, because the number cannot be
    changed later.
    """
    simulate(8)
    assert len(jax.devices()) >= 8, (
        "JAX started before the tests could simulate 8 devices"
    )


def data_folder(name: str, files: Iterable[str]) -> Path:
    """The folder of data sets that holds one of `files`.

    With PMAPDP_REQUIRE_NAME=1 it must be there.
    """
    folder = default_data_dir()
    if not any((folder / file).exists() for file in files):
        message = f"{name} IS NOT TESTED: set PMAPDP_DATA to the folder that holds it, "
        message += f"unlike {folder}"
        if os.environ.get(f"PMAPDP_REQUIRE_{name}") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return folder


@pytest.fixture(scope="session")
def mnist_folder() -> Path:
    return data_folder("MNIST", ["MNIST/raw/train-images-idx3-ubyte.gz"])


@pytest.fixture(scope="session")
def imdb_folder() -> Path:
    return data_folder("IMDB", imdb.ARCHIVES)


@pytest.fixture(scope="session")
def compilations():
    """The programs compiled so far in this process, as JAX reports them."""
    seen: list[str] = []

    def listen(event: str, duration: float, **details) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    jax.jit(lambda x: x + 1)(np.ones(3))
    assert seen, "JAX no longer reports compilations under this name"
    return seen


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, the current one during the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def float64():
    """JAX computes with 64 bits during the test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
