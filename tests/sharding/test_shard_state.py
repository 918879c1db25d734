"""--mesh, --layout and --shard-state on the command line, and the share of bytes in the header and the comparison."""

import pytest
from launch import python, train


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--mesh", "data=8"], "pmap maps over a single axis: use --strategy jit"),
        (["--mesh", "data=8", "--strategy", "shard_map"], "its collectives are written for the single axis 'data'"),
        (["--layout", "model", "--strategy", "single"], "a single device splits nothing: use --strategy jit"),
        (["--mesh", "data:8", "--strategy", "jit"], "is not a list of axis=size (at 'data:8'): try --mesh data=4"),
        (["--mesh", "data=2,data=4", "--strategy", "jit"], "names the axis 'data' twice"),
        (["--mesh", "data=4,model=2", "--strategy", "jit", "--devices", "4"], "has 8 places for 4 device(s): try"),
        (["--layout", "modle", "--strategy", "jit"], "did you mean 'model'?"),
        (["--layout", "hidden=", "--strategy", "jit"], "which is no rule: try --layout hidden=model"),
        (["--layout", "model,hidden=none", "--strategy", "jit"], "contradicts itself: hidden=model and hidden=none"),
        (["--shard-state", "parameters"], "use --strategy jit, or --shard-state optimizer"),
        (["--shard-state", "optimizer", "--strategy", "single"], "needs several devices"),
    ],
)
def test_mistakes_get_one_sentence(arguments, sentence, capsys):
    from pmapdp.errors import run_command
    from pmapdp.train import main

    assert run_command(main, arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1


def test_the_header_says_what_a_device_holds():
    out = train("--model", "mlp", "--shard-state", "optimizer", "--steps", 1)
    assert out.returncode == 0, out.stderr
    assert "parameters 2.68 MB + optimizer state 0.67 MB on a device, 0.417 of the whole" in out.stdout


@pytest.mark.slow
def test_the_comparison_says_what_share_a_device_holds():
    arguments = ["--model", "mlp", "--steps", 3, "--strategies", "jit", "pmap", "--shard-state", "parameters"]
    out = python("-m", "pmapdp.compare", *arguments)
    assert out.returncode == 0, out.stderr
    (row,) = [line.split() for line in out.stdout.splitlines() if line[2:].startswith("share ")]
    assert "1.000" in row
    assert "0.125" in row
    assert "pmap × 8 failed: --shard-state parameters is left to the compiler" in out.stdout
