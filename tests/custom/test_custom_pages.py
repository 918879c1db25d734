"""The pages about your own model run as printed, and so does the README's example."""

import re
import shlex
import sys
from pathlib import Path

import entry
import numpy as np
import pytest
from flax import nnx

from pmapdp.custom.data import make_data_set
from pmapdp.train import load_run

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(python|console)\n(.*?)```", re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder, from which the page imports its files."""
    for module in ("net", "data"):  # of other tests
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("pmapdp.train.keep_compiled_programs", lambda: None)
    return tmp_path


def without_numbers(text: str) -> str:
    return re.sub(r"[0-9][0-9.e-]*", "N", text)


def run_commands(block: str) -> None:
    """They print what the page shows, line by line, but for the numbers, which depend
    on the machine, and what is cut off at the right."""
    for command, shown in re.findall(r"\$ (.*)\n((?:[^$].*\n)*)", block):
        _, _, module, *arguments = command.split()
        done = entry.run_command(module.removeprefix("pmapdp."), *arguments)
        assert done.status == 0, done.err
        printed = [without_numbers(line) for line in done.out.splitlines()]
        for line in shown.splitlines():
            wanted = without_numbers(line)
            assert line == "..." or any(row.startswith(wanted) for row in printed), line


def run_page(name: str) -> dict:
    """Run a page's blocks in their order. A block may begin with its file's name."""
    names: dict = {}
    for language, block in BLOCK.findall((ROOT / "docs" / name).read_text()):
        if language == "console":
            run_commands(block)
        elif file := re.match(r"# (\w+\.py)\n", block):
            Path(file[1]).write_text(block)
        else:
            exec(compile(block, name, "exec"), names)
    return names


@pytest.mark.slow
def test_the_quick_start(folder):
    """The exported file answers as the page says. The model has the run's test loss."""
    names = run_page("custom.md")
    np.testing.assert_allclose(names["answers"]["metres"], [66, 107], rtol=0.05)
    inputs, distances = names["data"].make()["test"]
    outputs = names["trained"](np.asarray(inputs, np.float32))
    loss = np.square(outputs - distances).mean()
    assert names["metrics"]["loss"] == pytest.approx(loss, rel=1e-4)
    assert loss < 40


@pytest.mark.slow
def test_the_reference(folder, capsys):
    names = run_page("custom_reference.md")
    printed = capsys.readouterr().out
    for metric in ("weighted accuracy", "recall of 0"):
        assert metric in printed
    assert len(names["accuracies"]) == 4
    # 192 examples in batches of 64, 40 times.
    assert len(names["losses"]) == 120
    assert min(names["losses"]) < 0.7 * names["losses"][0]
    assert max(names["losses"][-20:]) > 2 * min(names["losses"])
    assert 0.2 < names["accuracy"] <= 1
    # The average lies between the first weights and the last ones.
    first = names["Net"](rngs=nnx.Rngs(0)).head.kernel[...]
    average = names["average"]["head"]["kernel"]
    last = names["result"].state.params["head"]["kernel"]
    assert 0 < np.abs(average - first).max() < np.abs(last - first).max()
    # Fine-tuning moves the head alone.
    _, state, _ = load_run("runs/first", model=names["Net"])
    first = state.params
    tuned = names["tuned"].state
    np.testing.assert_array_equal(
        tuned.model_state["body"]["kernel"], first["body"]["kernel"]
    )
    assert not np.allclose(tuned.params["head"]["kernel"], first["head"]["kernel"])
    data = make_data_set(names["photos"])
    assert data.train.select(np.array([7])).inputs.max() == 7


# PyTorch 2.14's answers by the page's network, with what `write_weights` draws.
OF_PYTORCH = [
    [-0.6080760955810547, 0.17920619249343872, -1.338866949081421],
    [0.7314133048057556, 2.3738584518432617, 0.003546774387359619],
]
SHAPES = {
    "conv.weight": (4, 3, 3, 3),
    "conv.bias": (4,),
    "norm.weight": (4,),
    "norm.bias": (4,),
    "norm.running_mean": (4,),
    "norm.running_var": (4,),
    "norm.num_batches_tracked": (),
    "layers.0.weight": (8, 64),
    "layers.0.bias": (8,),
    "layers.1.weight": (3, 8),
    "layers.1.bias": (3,),
}


def write_weights() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Write and return a state_dict and images, drawn by NumPy."""
    random = np.random.default_rng(0)
    weights = {}
    for name, shape in SHAPES.items():
        if name == "norm.running_var":
            weights[name] = random.uniform(0.5, 1.5, shape).astype(np.float32)
        elif shape:
            weights[name] = random.normal(0, 0.5, shape).astype(np.float32)
        else:
            weights[name] = np.array(7)
    images = random.normal(size=(2, 3, 8, 8)).astype(np.float32)
    np.savez("weights.npz", **weights)
    np.save("images.npy", images)
    return weights, images


def test_weights_of_pytorch_give_its_answers(folder):
    write_weights()
    names = run_page("pytorch.md")
    np.testing.assert_allclose(names["answers"], OF_PYTORCH, rtol=1e-5, atol=1e-5)


@pytest.mark.torch
def test_the_stored_answers_are_those_of_pytorch(folder):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
            self.norm = nn.BatchNorm2d(4)
            self.layers = nn.ModuleList([nn.Linear(64, 8), nn.Linear(8, 3)])

        def forward(self, x):
            x = nn.functional.relu(self.norm(self.conv(x))).flatten(1)
            return self.layers[1](nn.functional.gelu(self.layers[0](x)))

    weights, images = write_weights()
    model = Net()
    model.load_state_dict(
        {name: torch.tensor(value) for name, value in weights.items()}
    )
    answers = model.eval()(torch.tensor(images)).detach().numpy()
    np.testing.assert_allclose(answers, OF_PYTORCH, rtol=1e-5, atol=1e-5)


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_of_the_readme_runs_as_printed(folder):
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", README, re.DOTALL)[1], names)
    assert names["result"].epochs[-1]["test"]["accuracy"] > 0.8


@pytest.mark.slow
def test_the_commands_of_the_readme_run_one_after_the_other(folder):
    """They need no other file than those that they write."""
    block = re.search(r"## Commands\n\n```\n(.*?)```", README, re.DOTALL)[1]
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert len(commands) == 7
    for _, _, module, *arguments in commands:
        done = entry.run_command(module.removeprefix("pmapdp."), *arguments)
        assert done.status == 0, done.err
