"""`--init-from`: the weights of another run, or of an exported file, in place of random ones."""

import jax
import numpy as np
import pytest
from points import DATA, FiveClasses, Net, run

from pmapdp.config import Config
from pmapdp.errors import UserError
from pmapdp.export import export_run
from pmapdp.run.checkpoints import load_weights
from pmapdp.state import build
from pmapdp.train import Custom, make_task


@pytest.fixture(scope="module")
def source(finished, tmp_path_factory):
    """The folder of a run of two epochs, and its exported file; and its last state."""
    file = tmp_path_factory.mktemp("source") / "model.zip"
    export_run(str(finished[0]), file, model=Net, data=DATA)
    return {"run": finished[0], "file": file}, finished[1].state


def test_it_starts_from_the_weights_and_says_so(source, tmp_path):
    """With a learning rate of 0 the weights stay as they were, and update counts and moments start anew."""
    paths, state = source
    settings = {"workdir": str(tmp_path / "run"), "init_from": str(paths["run"]), "learning_rate": 0.0}
    found = run(**settings)
    jax.tree.map(np.testing.assert_array_equal, found.state.params, state.params)
    assert int(found.state.step) == 5
    log, metrics = ((tmp_path / "run" / each).read_text() for each in ("log.txt", "metrics.jsonl"))
    assert f"starts from 4 arrays of {paths['run']}, which had made 10 updates\n" in log
    assert '"event": "init_from"' in metrics
    again = run(**settings, steps=5)  # resumed: it starts from its own checkpoint
    assert int(again.state.step) == 5
    assert (tmp_path / "run" / "log.txt").read_text().count("starts from") == 1
    with pytest.raises(UserError, match="differs in init_from"):  # what a run began with belongs to it
        run(**settings | {"init_from": None})


@pytest.mark.parametrize("kind", ["run", "file"])
def test_another_head_starts_as_the_seed_makes_it(source, kind):
    paths, state = source
    task, news = load_weights(make_task(Config(), Custom(model=FiveClasses)), str(paths[kind]))
    np.testing.assert_array_equal(task.model.hidden.kernel[...], state.params["hidden"]["kernel"])
    np.testing.assert_array_equal(task.model.head.kernel[...], build(FiveClasses).head.kernel[...])
    assert news.startswith(f"starts from 2 arrays of {paths[kind]}, which had made 10 updates")
    assert news.endswith("; as the seed makes them: head.bias, head.kernel")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("cut", -100, r"cut cannot be read \("),
        ("model.zip", None, "has no array of MLP, for example no hidden1.bias: name"),
    ],
)
def test_a_wrong_path_is_one_sentence(source, name, content, sentence):
    file = source[0]["file"]
    path = file.with_name(name)
    if content:
        path.write_bytes(file.read_bytes()[:content])
    with pytest.raises(UserError, match=sentence):
        load_weights(make_task(Config(model="mlp"), Custom()), str(path))
