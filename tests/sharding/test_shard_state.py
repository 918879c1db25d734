"""--mesh, --layout and --shard-state on the command line, and the share of bytes in the header."""

import pytest

from pmapdp import cli
from pmapdp.config import Config
from pmapdp.train import main, train


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--mesh", "data=8"], "--strategy jit, because --strategy pmap splits the batch alone"),
        (["--layout", "model", "--strategy", "single"], "--strategy jit, because --strategy single splits the batch"),
        (
            ["--mesh", "data:8", "--strategy", "jit"],
            "--mesh 'data:8' is not a list of different axes with their sizes",
        ),
        (["--mesh", "data=2,data=4", "--strategy", "jit"], "is not a list of different axes"),
        (["--mesh", "data=" + "9" * 5000, "--strategy", "jit"], "...9999999999999' is not a list of different axes"),
        (["--mesh", "data=4,model=2", "--strategy", "jit", "--devices", "4"], "has 8 places for 4 device(s): try"),
        (["--layout", "modle", "--strategy", "jit"], "did you mean 'model'?"),
        (["--layout", "hidden=", "--strategy", "jit"], "unknown layout 'hidden='"),
        (
            ["--layout", "model,hidden=none", "--strategy", "jit"],
            "contradicts itself, because hidden=model and hidden=",
        ),
        (["--shard-state", "parameters"], "does not work with --strategy pmap: use --strategy jit"),
        (["--shard-state", "optimizer", "--strategy", "single"], "does not work with --strategy single"),
    ],
)
def test_mistakes_get_one_sentence(arguments, sentence, capsys):
    assert cli.run(main, arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1


def test_the_header_says_what_a_device_holds(capsys):
    train(Config(model="mlp", devices=8, shard_state="optimizer", steps=1, compile_cache=False))
    header = capsys.readouterr().out
    assert "each device holds 41.7 % of it: parameters 2.68 MB + optimizer state 0.67 MB" in header
