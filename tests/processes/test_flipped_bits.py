"""--check-replicas among several processes: all of them end with the same sentence."""

import flipped_bit
import pytest
from processes import by_hand, end_of, running

JOB = ["--model", "mlp", "--devices", 2, "--epochs", 1, "--check-replicas", 6, "--checkpoint-every", 4, "--no-progress"]
KERNEL = "params/logits/kernel"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["pmap", "jit", "shard_map"])
def test_a_bit_that_flips_in_one_process_ends_both(strategy, tmp_path):
    job = [10, KERNEL, 3, *JOB, "--strategy", strategy, "--steps-per-dispatch", 1, "--workdir", tmp_path]
    with running(*([*job, *own] for own in by_hand(2)), program=(flipped_bit.__file__,)) as processes:
        ended = [end_of(process) for process in processes]
    for each in ended:
        assert each.status == 5, ended
        assert f"the copies of {KERNEL} differ after step 12: that of device " in each.err
        assert "(process 1) is not that of 3 other device(s)" in each.err
    assert max(int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()) == 8
    assert "the copies of 21 of 21 arrays" in ended[0].out
