"""What `python -m pmapdp.compare` says of a mistake."""

from launch import python
from marks import quick


@quick(
    2,
    ("arguments", "words"),
    [
        (["--strategies", "pmpa"], "did you mean 'pmap'"),
        (["--steps", "0"], "try --steps 100"),
        (["--devices", "8", "0"], "try --devices 8"),
        (["old.py:program"], "old.py:program alone has nothing to be compared with"),
        (["old.py", "new.py"], "old.py does not say what to take from which file"),
        (["--model", "mlp", "--dataset", "gone.py:data"], "--dataset gone.py:data: there is no file gone.py"),
        (["--device-counts", "8"], "did you mean '--devices'"),
        (["--html", "/proc/nowhere/page.html"], "/proc/nowhere/page.html cannot be written"),
        (["--model", "cnm"], "did you mean 'cnn'"),
        (["digts"], "did you mean 'digits'"),
        (["--global-batch-size", "5000"], "the training set of digits has 1437"),
        (["--steps", "1"], "a single update is too few to time"),
    ],
    by_day=7,
)
def test_bad_input_gets_one_sentence(arguments, words):
    done = python("-m", "pmapdp.compare", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
