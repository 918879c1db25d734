"""`Config` checks the types of its values. For bounds, see tests/test_mistakes.py."""

from pathlib import Path

import pytest

from pmapdp.config import Config
from pmapdp.errors import UserError


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("learning_rate", None, "learning_rate must be float, not None: try 0.005,"),
        ("learning_rate", "0.1", "learning_rate must be float, not '0.1': try 0.005,"),
        ("epochs", "5", "epochs must be int, not '5': try 20, the default"),
        ("epochs", 5.0, "epochs must be int, not 5.0: try 20,"),
        ("epochs", True, "epochs must be int, not True: try 20,"),
        ("devices", "8", "devices must be int | None, not '8': try None,"),
        ("clip_norm", "1", "clip_norm must be float | None, not '1': try None,"),
        ("model", None, "model must be str, not None: try 'cnn',"),
        ("workdir", 5, "workdir must be str | None, not 5: try None,"),
        ("progress", "no", "progress must be bool, not 'no': try True,"),
        (
            "trainable",
            "head",
            "trainable must be tuple[str, ...], not 'head': try ('head',)",
        ),
        ("switch_epochs", ["3"], "switch_epochs must be tuple[int, ...], not ('3',):"),
        ("strategy", 5, "unknown strategy '5': choose from pmap,"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_default(name, value, message):
    with pytest.raises(UserError) as caught:
        Config(**{name: value})
    assert str(caught.value).startswith(message)


def test_paths_lists_and_whole_numbers_are_accepted():
    config = Config(workdir=Path("runs/first"), trainable=["head"], learning_rate=1)
    assert config == Config(
        workdir="runs/first", trainable=("head",), learning_rate=1.0
    )
