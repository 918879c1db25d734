"""`train` as programs and notebooks call it: after other uses of JAX, twice, and in a notebook that is stopped."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from launch import python
from own_program import PROGRAM

ROOT = Path(__file__).parents[2]


def lines(code: str, **env: str) -> list[str]:
    """What a program prints, of which `PROGRAM` is the beginning, without what its runs show."""
    done = python("-c", PROGRAM + code, env=env)
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("said ") for line in done.stdout.splitlines() if line.startswith("said ")]


@pytest.mark.slow
def test_one_device_then_four_after_simulate():
    """Case 09: a run on one device left JAX with one, and the advice was what had been done."""
    code = """
from pmapdp.devices import simulate
simulate(4)
print("said", loss(strategy="single"))
print("said", loss(devices=4))
print("said", loss(devices=4))
"""
    assert len(set(lines(code))) == 1


def test_a_line_of_jnp_before_train():
    """Case 23: the run takes the device that JAX started with, and its header says how to have more."""
    before = "import jax.numpy as jnp; jnp.ones(3)\n" + PROGRAM
    done = python("-c", before + "loss()")
    assert done.returncode == 0, done.stderr
    assert "1 CPU device on" in done.stdout
    assert "with which JAX had started: call pmapdp.devices.simulate(8) before its first use for more" in done.stdout


def reply(client, request: str) -> dict:
    """What the kernel answers to a request."""
    while (message := client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != request:
        pass
    return message["content"]


@pytest.mark.slow
def test_a_notebook_that_is_stopped(tmp_path):
    """The kernel's stop button ends a run after its update, with a checkpoint from which the next cell resumes."""
    from jupyter_client.manager import start_new_kernel

    run = tmp_path / "run"
    manager, client = start_new_kernel(env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"})
    try:
        first = client.execute(
            PROGRAM + f"settings = dict(devices=2, workdir={str(run)!r}, epochs=10**6)\nloss(**settings)"
        )
        deadline = time.monotonic() + 120
        while not list(run.glob("checkpoints/[0-9]*")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        manager.interrupt_kernel()
        answer = reply(client, first)
        assert answer["ename"] == "StoppedError"
        assert "a checkpoint is in" in answer["evalue"]
        kept = max(int(path.name) for path in run.glob("checkpoints/[0-9]*") if path.name.isdigit())
        assert f"after step {kept:,}:" in answer["evalue"]
        again = client.execute(f"loss(**settings, steps={kept} + 3)")
        answer = reply(client, again)
        assert answer["status"] == "ok", answer
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert f"restored from the checkpoint of step {kept:,}" in (run / "log.txt").read_text()
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert events[-1]["steps"] == kept + 3
    assert np.isfinite(events[-2]["test"]["loss"])
