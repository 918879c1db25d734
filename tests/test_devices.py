"""Simulating devices: as many as asked for, with threads enough, and whatever the user
set is respected.
"""

import json

import pytest
from launch import python

from pmapdp.devices import COLLECTIVES_HOLD_THREADS, count_cores

FLAG = "--xla_force_host_platform_device_count"
# Each case in a child of one process that has imported JAX, and not started it.
# `started`: JAX starts with one device.
CASES = """
import json, os, sys, jax
from pmapdp.devices import choose_devices, simulate
for function, count, env, started in json.loads(sys.argv[1]):
    if os.fork() == 0:
        if started:
            jax.devices()
        else:
            jax.config.update("jax_num_cpu_devices", int(env.get("PROGRAM", -1)))
        os.environ.update(env)
        try:
            (simulate if function == "simulate" else choose_devices)(count)
            print(len(jax.local_devices()), os.environ.get("NPROC"), flush=True)
        except Exception as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
"""
MANY = [
    ("choose_devices", None, {}, 8, max(count_cores(), 16)),
    (
        "choose_devices",
        None,
        {"PROGRAM": "2"},
        2,
        max(count_cores(), 4),
    ),  # what the program has asked JAX for
    ("choose_devices", 3, {}, 3, max(count_cores(), 6)),
    (
        "choose_devices",
        2,
        {"NPROC": "40"},
        2,
        40,
    ),  # a thread pool of the user's is kept
    (
        "choose_devices",
        4,
        {"NPROC": "4"},
        4,
        8,
    ),  # unless it is so small that collectives may deadlock
    ("choose_devices", 2, {"XLA_FLAGS": f"{FLAG}=3"}, 3, max(count_cores(), 6)),
    ("choose_devices", None, {"XLA_FLAGS": f"{FLAG}=3"}, 3, max(count_cores(), 6)),
]
FEW = [
    (
        "simulate",
        8,
        {},
        True,
        "8 devices cannot be simulated any more: JAX has already started with 1; call "
        "pmapdp.",
    ),
    (
        "choose_devices",
        8,
        {"XLA_FLAGS": f"{FLAG}=3"},
        False,
        "8 devices were asked for, but XLA_FLAGS in the environment allo",
    ),
    (
        "choose_devices",
        8,
        {"JAX_NUM_CPU_DEVICES": "3"},
        False,
        "8 devices were asked for, but JAX_NUM_CPU_DEVICES in the envi",
    ),
    ("simulate", 1, {}, True, "1 "),  # what is there already may be asked for late
]


def test_as_many_devices_and_threads_as_it_takes_or_a_sentence():
    cases = [(*case[:3], False) for case in MANY] + [case[:4] for case in FEW]
    done = python("-c", CASES, json.dumps(cases))
    lines = done.stdout.splitlines()
    assert len(lines) == len(cases), done.stderr
    for line, (*case, devices, threads) in zip(lines, MANY, strict=False):
        wanted = threads if COLLECTIVES_HOLD_THREADS else case[2].get("NPROC")
        assert line == f"{devices} {wanted}", case
    for line, (*case, sentence) in zip(lines[len(MANY) :], FEW, strict=True):
        assert sentence in line, case


def test_accelerators_are_enough_once_jax_has_started():
    """They take the place of CPU devices, of which no more can be added then."""
    code = """
import jax
from pmapdp.devices import choose_devices

one_cpu = jax.local_devices()
jax.local_devices = lambda backend=None: one_cpu if backend else ["GPU"] * 8
print(len(choose_devices(8)))
"""
    done = python("-c", code, env={"XLA_FLAGS": None})
    assert done.stdout == "8\n", done.stderr


@pytest.mark.slow
def test_a_loop_that_runs_far_ahead_of_its_devices_ends():
    """The plainest loop: nothing waits for a step before the last. With one thread a
    device jax 0.10 aborted in each of four runs of it."""
    code = """
import jax, numpy as np
from jax import lax
from pmapdp.devices import choose_devices

def update(W, x):
    return W + lax.pmean(x.T @ x, "d"), lax.pmean((x @ W).sum(), "d")

step = jax.pmap(update, axis_name="d", in_axes=(None, 0), out_axes=None,
                devices=choose_devices(4))
W, x = np.zeros((256, 256), np.float32), np.ones((4, 8, 256), np.float32)
for _ in range(1500):
    W, _ = step(W, x)
print(W.min(), W.max())
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [
        "12000.0",
        "12000.0",
    ]  # 1,500 times the 8 rows of ones


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_platform_that_is_not_there_is_one_message(platform):
    command = ["-m", "pmapdp.train", "--epochs", "1"]
    done = python(*command, env={"JAX_PLATFORMS": platform})
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert f"JAX finds no device with JAX_PLATFORMS={platform}" in last
    assert "Traceback" not in done.stderr
