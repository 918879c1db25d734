"""docs/simulated_devices.md: its programs have eight devices, with enough threads."""

import re
from pathlib import Path

import jax
from launch import python

PAGE = Path(__file__).parents[2] / "docs" / "simulated_devices.md"
BY_PMAPDP, PLAIN = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_program_has_eight_devices_and_two_threads_for_each():
    shown = "import os\nprint(os.environ.get('NPROC'))\n"
    done = python("-c", BY_PMAPDP + shown)
    assert done.returncode == 0, done.stderr
    devices, threads = done.stdout.split()
    assert devices == "8"
    before_0_12 = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 12)
    if before_0_12:
        assert int(threads) >= 16
    else:
        assert threads == "None"


def test_the_program_in_plain_jax_adds_up_over_eight_devices():
    done = python("-c", PLAIN)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"[{' '.join(8 * ['28'])}]\n"
