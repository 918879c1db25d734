"""--check-replicas and --on-nan rollback among several processes: all of them do the same."""

import json

import flipped_bit
import numpy as np
import pytest
from marks import quick
from processes import by_hand, end_of, free_port, running, train_together
from running import run

JOB = ["--model", "mlp", "--devices", 2, "--epochs", 1, "--check-replicas", 6, "--checkpoint-every", 4, "--no-progress"]
KERNEL = "params/logits/kernel"


@quick(0, "strategy", ["pmap", "jit", "shard_map"], by_day=1)
def test_a_bit_that_flips_in_one_process_ends_both(strategy, tmp_path):
    job = [10, KERNEL, 3, *JOB, "--strategy", strategy, "--workdir", tmp_path]
    with running(*([*job, *own] for own in by_hand(2)), program=(flipped_bit.__file__,)) as processes:
        ended = [end_of(process) for process in processes]
    for each in ended:
        assert each.status == 5, ended
        assert f"the copies of {KERNEL} differ after step 12: that of device " in each.err
        assert "(process 1) is not that of 3 other device(s)" in each.err
    assert max(int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()) == 8
    assert "the copies of 21 of 21 arrays" in ended[0].out


@pytest.mark.slow
@pytest.mark.parametrize("checkpoints", [[], ["--checkpoint-every", 2]])
def test_a_loss_that_is_not_finite_ends_both_alike(checkpoints, tmp_path):
    job = ["--model", "mlp", "--devices", 2, "--learning-rate", 1e38, "--no-progress"]
    if checkpoints:
        job += [*checkpoints, "--workdir", tmp_path]
    with running(*([*job, *own] for own in by_hand(2))) as processes:
        ended = [end_of(process) for process in processes]
    assert [each.status for each in ended] == [3, 3], ended
    assert ended[0].err == ended[1].err
    assert "error: the loss is " in ended[0].err


# The program of `pmapdp.train`, which reads metrics when they are so many seconds old.
READ_AFTER = """
import sys
from pmapdp import metrics
from pmapdp import cli
from pmapdp.train import main

metrics.SECONDS_UNREAD = float(sys.argv[1])
sys.exit(cli.run(main, sys.argv[2:]))
"""


@pytest.mark.slow
def test_it_ends_both_after_the_same_update_where_one_is_faster():
    """Else the update that one of them has started alone waits for the other for ever."""
    job = ["--model", "mlp", "--devices", 2, "--learning-rate", 1e38, "--no-progress"]
    jobs = ([seconds, *job, *own] for seconds, own in zip((0, "inf"), by_hand(2), strict=True))
    with running(*jobs, program=("-c", READ_AFTER)) as processes:
        ended = [end_of(process) for process in processes]
    assert [each.status for each in ended] == [3, 3], ended
    assert ended[0].err == ended[1].err


MODEL = """
from flax import nnx

class Net(nnx.Module):
    def __init__(self, *, rngs, dtype, param_dtype):
        self.out = nnx.Linear(6, 3, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

    def __call__(self, inputs, context):
        return self.out(inputs)
"""


@quick(0, "strategy", ["pmap", "jit"], by_day=1)
def test_all_processes_roll_back_as_one_does(strategy, tmp_path):
    """Losses in float64 differ by less than 1e-10 from those of one process with as many devices."""
    (tmp_path / "net.py").write_text(MODEL)
    x = np.random.default_rng(1).normal(size=(100, 6))
    x[61] = 1e308  # overflows in the network
    labels = np.arange(100) % 3
    np.savez(tmp_path / "data.npz", train_inputs=x, train_labels=labels, test_inputs=x[:60], test_labels=labels[:60])
    job = ["--model", f"{tmp_path / 'net.py'}:Net", "--dataset", tmp_path / "data.npz", "--dtype", "float64"]
    job += ["--epochs", 3, "--global-batch-size", 10, "--checkpoint-every", 4, "--on-nan", "rollback", "--no-progress"]
    found = []
    train_together(2, *job, "--devices", 2, "--strategy", strategy, "--workdir", tmp_path / "two")
    run(*job, "--devices", 4, "--strategy", strategy, "--workdir", tmp_path / "one")
    for name in ("one", "two"):
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        rollbacks = [line["skipped"] for line in lines if line["event"] == "rollback"]
        found.append((rollbacks, [line["train_loss"] for line in lines if line["event"] == "epoch"]))
    assert found[0][0] == found[1][0]
    assert len(found[0][0]) == 3
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=0, atol=1e-10)


# Process 0 takes the mean of x. Process 1 leaves it out, and is at its next collective, the sum of y.
OUT_OF_STEP = """
import sys
import jax
import numpy as np
from jax import P
from jax.sharding import Mesh, NamedSharding

process = int(sys.argv[2])
jax.config.update("jax_num_cpu_devices", 1)
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=process)
mesh = Mesh(np.array(jax.devices()), ("data",))
split, replicated = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
x, y = (jax.make_array_from_process_local_data(split, np.full((1, 4), each, np.float32)) for each in (1, 100))
function, array = [(lambda x: x.mean(0), x), (lambda y: y.sum(0), y)][process]
result = jax.jit(function, out_shardings=replicated)(array)
print(process, np.asarray(result).tolist(), file=sys.stderr)
"""


@pytest.mark.slow
def test_two_collectives_of_processes_out_of_step_are_mixed_without_an_error():
    """As lesson 17 says of a collective that one process alone calls."""
    coordinator = f"127.0.0.1:{free_port()}"
    with running([coordinator, 0], [coordinator, 1], program=("-c", OUT_OF_STEP)) as processes:
        ended = [end_of(process) for process in processes]
    assert [each.status for each in ended] == [0, 0], ended
    for process, mixed in ((0, (1 + 100) / 2), (1, 1.0 + 100)):  # the mean of x is 1, the sum of y is 200
        assert f"{process} {[mixed] * 4}" in ended[process].err
