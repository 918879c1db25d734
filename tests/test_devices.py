"""Simulating devices: as many as asked for, with threads enough, and whatever the user set is respected."""

import pytest
from launch import python
from marks import quick

from pmapdp.devices import COLLECTIVES_HOLD_THREADS, cores

SHOW = "import os, jax; from pmapdp.devices import choose; print(len(choose({})), os.environ.get('NPROC'))"


def choose(count="", **env):
    return python("-c", SHOW.format(count), env=env)


@quick(
    2,
    ("count", "env", "devices", "threads"),
    [
        ("", {}, 8, 16),
        ("3", {}, 3, 6),
        ("", {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, 3, 6),
        ("2", {"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, 2, 6),
        ("", {"JAX_NUM_CPU_DEVICES": "5"}, 5, 10),
    ],
)
def test_as_many_devices_as_asked_for_and_threads_where_collectives_hold_them(count, env, devices, threads):
    done = choose(count, **env)
    expected = max(cores(), threads) if COLLECTIVES_HOLD_THREADS else None
    assert done.stdout.split() == [str(devices), str(expected)], done.stderr
    assert "Warning" not in done.stderr


def test_a_thread_pool_of_the_users_is_kept():
    done = choose("2", NPROC="40")
    assert done.stdout.split() == ["2", "40"]
    assert "Warning" not in done.stderr


def test_too_small_a_thread_pool_is_made_larger_where_it_may_deadlock():
    done = choose("4", NPROC="4")
    assert done.stdout.split() == ["4", "8" if COLLECTIVES_HOLD_THREADS else "4"]


@pytest.mark.slow
def test_a_loop_that_runs_far_ahead_of_its_devices_ends():
    """The plainest loop: nothing waits for a step before the last. With one thread a device jax 0.10 aborted in each of
    four runs of it."""
    code = """
import jax, numpy as np
from jax import lax
from pmapdp.devices import choose

step = jax.pmap(lambda W, x: (W + lax.pmean(x.T @ x, "d"), lax.pmean((x @ W).sum(), "d")),
                axis_name="d", in_axes=(None, 0), out_axes=None, devices=choose(4))
W, x = np.zeros((256, 256), np.float32), np.ones((4, 8, 256), np.float32)
for _ in range(1500):
    W, _ = step(W, x)
print(W.min(), W.max())
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["12000.0", "12000.0"]  # 1,500 times the 8 rows of ones


@pytest.mark.parametrize(
    ("variable", "value"),
    [("XLA_FLAGS", "--xla_force_host_platform_device_count=3"), ("JAX_NUM_CPU_DEVICES", "3")],
)
def test_more_than_the_environment_allows_is_refused(variable, value):
    done = choose("8", **{variable: value})
    assert done.returncode != 0
    assert f"8 devices were asked for, but {variable} in the environment allows 3" in done.stderr


def test_asked_too_late_it_says_so():
    code = "import jax; jax.devices(); from pmapdp.devices import simulate; simulate(8)"
    done = python("-c", code)
    assert done.returncode != 0
    assert "8 devices cannot be simulated any more: JAX has already started with 1; call pmapdp.devices" in done.stderr


def test_xla_flags_set_too_late_says_so():
    code = "import jax, os; jax.devices(); os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'; "
    done = python("-c", code + "from pmapdp.devices import simulate; simulate(8)")
    assert done.returncode != 0
    assert "JAX has already started with 1; set XLA_FLAGS before any other use of JAX" in done.stderr
    assert "restart the kernel" in done.stderr


def test_asked_late_for_what_is_there_already_is_fine():
    code = "from pmapdp.devices import simulate; simulate(4); import jax; jax.devices(); simulate(4); print('fine')"
    assert python("-c", code).stdout == "fine\n"


def test_importing_starts_nothing_and_sets_nothing():
    code = (
        "import os; before = dict(os.environ); import pmapdp.train, pmapdp.steps.pmap;"
        "assert os.environ == before; import jax; jax.config.update('jax_num_cpu_devices', 6);"
        "print(len(jax.devices()))"
    )
    done = python("-c", code)
    assert done.stdout == "6\n", done.stderr
