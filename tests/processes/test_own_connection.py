"""A program that has called `jax.distributed.initialize` itself and then trains."""

import pytest
from launch import python
from marks import quick
from own_program import PROGRAM
from processes import end_of, free_port, running

DISTRIBUTED = """
import sys, jax
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
print("said", loss(strategy=sys.argv[3], devices=2, workdir=sys.argv[4]), flush=True)
"""


@quick(0, "strategy", ["pmap", "jit"], by_day=1)
def test_a_program_that_has_connected_its_processes(tmp_path, strategy):
    """Case 17: two processes share one run and its folder, and give what one process gives on four devices."""
    (tmp_path / "two.py").write_text(PROGRAM + DISTRIBUTED)
    address = f"localhost:{free_port()}"
    commands = [[address, process, strategy, tmp_path / "run"] for process in (0, 1)]
    with running(*commands, program=(tmp_path / "two.py",)) as processes:
        ended = [end_of(process) for process in processes]
    assert [each.status for each in ended] == [0, 0], ended
    said = {line for each in ended for line in each.out.splitlines() if line.startswith("said ")}
    alone = python("-c", PROGRAM + "print('said', loss(strategy='single'))").stdout.splitlines()[-1]
    assert [float(line.split()[1]) for line in said] == [pytest.approx(float(alone.split()[1]), abs=1e-5)]
    assert "by the program, 2 processes" in (tmp_path / "run" / "log.txt").read_text()
