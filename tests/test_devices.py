"""Simulating devices: as many as asked for, with threads enough, and whatever the user set is respected."""

import pytest
from launch import python
from marks import quick

from pmapdp.devices import COLLECTIVES_HOLD_THREADS, cores

FLAG = "--xla_force_host_platform_device_count"
CHOOSE = "import os, jax; from pmapdp.devices import choose; print(len(choose({})), os.environ.get('NPROC'))"
SIMULATE = "import jax, os; jax.devices(); {}from pmapdp.devices import simulate; simulate(8)"


@quick(
    3,
    ("count", "env", "devices", "threads"),
    [
        ("", {}, 8, max(cores(), 16)),
        ("2", {"NPROC": "40"}, 2, 40),  # a thread pool of the user's is kept
        ("2", {"XLA_FLAGS": f"{FLAG}=3"}, 2, max(cores(), 6)),
        ("4", {"NPROC": "4"}, 4, 8),  # unless it is so small that collectives may deadlock
        ("3", {}, 3, max(cores(), 6)),
        ("", {"XLA_FLAGS": f"{FLAG}=3"}, 3, max(cores(), 6)),
        ("", {"JAX_NUM_CPU_DEVICES": "5"}, 5, max(cores(), 10)),
    ],
)
def test_as_many_devices_as_asked_for_and_threads_where_collectives_hold_them(count, env, devices, threads):
    done = python("-c", CHOOSE.format(count), env=env)
    wanted = threads if COLLECTIVES_HOLD_THREADS else env.get("NPROC")
    assert done.stdout.split() == [str(devices), str(wanted)], done.stderr
    assert "Warning" not in done.stderr


@quick(
    2,
    ("code", "env", "sentence"),
    [
        (CHOOSE.format(8), {"JAX_NUM_CPU_DEVICES": "3"}, "8 devices were asked for, but JAX_NUM_CPU_DEVICES in the"),
        (SIMULATE.format(""), {}, "8 devices cannot be simulated any more: JAX has already started with 1"),
        (CHOOSE.format(8), {"XLA_FLAGS": f"{FLAG}=3"}, "8 devices were asked for, but XLA_FLAGS in the environment"),
        (SIMULATE.format(f"os.environ['XLA_FLAGS'] = '{FLAG}=8'; "), {}, "set XLA_FLAGS before any other use of JAX"),
    ],
)
def test_too_many_or_too_late_is_a_sentence(code, env, sentence):
    done = python("-c", code, env=env)
    assert done.returncode != 0
    assert sentence in done.stderr


def test_asked_late_for_what_is_there_already_is_fine():
    code = "from pmapdp.devices import simulate; simulate(4); import jax; jax.devices(); simulate(4); print('fine')"
    assert python("-c", code).stdout == "fine\n"


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
