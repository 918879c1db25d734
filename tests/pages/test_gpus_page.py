"""docs/gpus.md: its program trains, and the header is the one that the command
prints.
"""

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from launch import python

from pmapdp.data.dataset import DataSet, Split

PAGE = (Path(__file__).parents[2] / "docs" / "gpus.md").read_text()
NETWORK, PROGRAM = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
HEADER = re.search(r"```\n(run  .*?)```", PAGE, re.DOTALL)[1]


def test_the_program_trains_on_all_devices(folder):
    """With 16 examples on each of 8 devices in place of 128.

    The rate is 128 / 16 times as large.
    """
    random = np.random.default_rng(0)
    inputs = random.normal(size=(256, 6)).astype(np.float32)
    data = DataSet(Split(inputs, inputs[:, :3].argmax(1).astype(np.int32)))
    code = PROGRAM
    for old, new in {
        "size=128,\n    scale": "size=16,\n    scale",
        "base_batch_size=128": "base_batch_size=16",
        "warmup_steps=500": "warmup_steps=2, epochs=2, progress=False",
    }.items():
        assert code.count(old) == 1
        code = code.replace(old, new)
    names = {"data": data}
    exec(NETWORK + code, names)
    last = names["result"].epochs[-1]
    assert last["step"] == 2 * 256 // (16 * len(jax.devices()))
    assert np.isfinite(last["train"]["loss"])


@pytest.mark.slow
def test_the_header_is_what_the_command_prints():
    """Line by line; the number of cores depends on the machine."""
    command = re.search(
        r"    python -m (pmapdp\.train.*)", PAGE.split(HEADER)[0][-400:]
    )
    done = python("-m", *command[1].split(), "--no-progress")
    assert done.returncode == 0, done.stderr
    printed = re.sub(r"on \d+ cores?", "on 2 cores", done.stdout)
    for line in HEADER.splitlines():
        assert line in printed.splitlines()
