"""docs/simulated_devices.md: its program shows eight devices, with enough threads."""

import re
from pathlib import Path

import jax
from launch import python

PAGE = Path(__file__).parents[2] / "docs" / "simulated_devices.md"


def test_the_program_has_eight_devices_and_two_threads_for_each():
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    shown = "import os\nprint(os.environ.get('NPROC'))\n"
    done = python("-c", program + shown)
    assert done.returncode == 0, done.stderr
    devices, threads = done.stdout.split()
    assert devices == "8"
    before_0_12 = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 12)
    if before_0_12:
        assert int(threads) >= 16
    else:
        assert threads == "None"
