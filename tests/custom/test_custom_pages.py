"""The pages about your own model run as printed, and so does the README's example."""

import ast
import re
import shlex
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import entry
import jax
import numpy as np
import optax
import pytest
from flax import nnx
from launch import python
from PIL import Image

from pmapdp.config import Config
from pmapdp.custom.data import make_data_set
from pmapdp.train import load_run, train

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(python|console)\n(.*?)```", re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder, from which the page imports its files."""
    for module in ("net", "data", "weights"):  # of other tests
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


def run_page(name: str, changes: dict[str, str] | None = None) -> dict:
    """Run a page's blocks in their order. A block may begin with its file's name.

    `changes` makes the job smaller.
    """
    names: dict = {}
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    for old, new in (changes or {}).items():
        assert old in page
        page = page.replace(old, new)
    for language, block in BLOCK.findall(page):
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
    np.testing.assert_allclose(names["answers"]["metres"], [64, 105], rtol=0.05)
    inputs, distances = names["data"].make()["test"]
    outputs = names["trained"](np.asarray(inputs, np.float32))
    loss = np.square(outputs - distances).mean()
    assert names["metrics"]["loss"] == pytest.approx(loss, rel=1e-4)
    assert loss < 40


@pytest.mark.nightly
def test_the_reference(folder, capsys):
    for name in ("birds", "cats", "dogs"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(16):
            picture = Image.new("RGB", (20, 16), (7 + number % 4, 0, 0))
            picture.save(folder / "photos" / name / f"{number:02}.png")
    names = run_page("custom_reference.md")
    printed = capsys.readouterr().out
    assert "warning" not in printed
    for metric in ("weighted accuracy", "recall of 0"):
        assert metric in printed
    data = make_data_set(names["flipped"])
    assert data.train.select(np.array([7])).inputs.max() == 7
    # The label of a token is the next token.
    tokens = make_data_set(names["next_tokens"]).train
    assert tokens.inputs.shape == tokens.labels.shape == (312, 32)
    np.testing.assert_array_equal(tokens.labels[2], np.arange(65, 97))
    np.testing.assert_array_equal(tokens.inputs[2], np.arange(64, 96))
    # A memory-mapped array stays in its file.
    converted = make_data_set(names["mapped"]).train.inputs
    assert isinstance(names["pixels"], np.memmap)
    assert np.shares_memory(converted, names["pixels"])
    np.testing.assert_array_equal(names["pixels"][:, 0, 0, 0], [7, 8, 9, 10] * 12)
    labels = make_data_set(names["mapped"]).train.labels
    np.testing.assert_array_equal(labels, np.arange(48) // 16)


@pytest.mark.nightly
def test_customizing_training(folder, capsys, monkeypatch):
    logger = Mock()
    monkeypatch.setitem(sys.modules, "wandb", logger)
    names = run_page("custom_training.md")
    logger.init.assert_called_once()
    (results,), step = logger.log.call_args
    assert {"step", "learning_rate", "train", "test"} <= set(results)
    assert step == {"step": results["step"]}
    assert "warning" not in capsys.readouterr().out
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
    # `nnx.EMA` computes it, too.
    ema = nnx.EMA({"head": nnx.Param(first)}, decay=0.99)
    ema.update({"head": nnx.Param(last)})
    expected = optax.incremental_update(last, first, step_size=0.01)
    np.testing.assert_allclose(ema.params["head"][...], expected, rtol=1e-6)
    # Weight decay moves matrices alone.
    decay = names["decay_matrices"](0.1)
    params = {"kernel": np.ones((2, 2)), "bias": np.ones(2)}
    zeros = {"kernel": np.zeros((2, 2)), "bias": np.zeros(2)}
    updates, _ = decay.update(zeros, decay.init(params), params)
    np.testing.assert_allclose(updates["kernel"], -0.1 * 0.01, rtol=1e-6)
    np.testing.assert_array_equal(updates["bias"], 0)
    # Fine-tuning moves the head alone.
    _, state, _ = load_run("runs/first", model=names["Net"])
    first = state.params
    tuned = names["tuned"].state
    np.testing.assert_array_equal(
        tuned.model_state["body"]["kernel"], first["body"]["kernel"]
    )
    assert not np.allclose(tuned.params["head"]["kernel"], first["head"]["kernel"])
    # A run that is evaluated in the middle of its epochs ends like one that isn't.
    whole = train(
        replace(names["often"], workdir=None), model=names["Net"], data=names["data"]
    )
    often = names["ended"]
    jax.tree.map(np.testing.assert_array_equal, often.state.params, whole.state.params)
    assert [epoch["test"] for epoch in often.epochs] == [
        epoch["test"] for epoch in whole.epochs
    ]
    metrics = Path("runs/often/metrics.jsonl").read_text()
    steps = re.findall(r'"event": "epoch", "epoch": \d+, "step": (\d+)', metrics)
    evaluated = [3, 6, 9, 10, 12, 15, 18, 20, 21, 24, 27, 30]
    assert [int(step) for step in steps] == evaluated


@pytest.mark.nightly
def test_the_page_about_exported_models(folder):
    """The file of the text model has only what the page reads from it."""
    with zipfile.ZipFile("texts.zip", "w") as file:
        file.writestr("view.json", '{"vocabulary": ["a", "wonderful"]}')
    names = run_page("export.md")
    assert len(names["classes"]) == 3
    assert set(names["classes"]) <= set(names["metadata"]["labels"])


# The first logits of torchvision 0.29's ResNet-18 for two images, with what
# `draw_resnet` draws. PyTorch 2.13.
OF_TORCHVISION = [
    [0.7642272114753723, 0.30942413210868835, -3.334965467453003, 1.8339968919754028],
    [0.37452200055122375, 0.4876093566417694, -3.348867177963257, 2.2465968132019043],
]


def norm_shapes(name: str, features: int) -> dict[str, tuple]:
    parts = ("weight", "bias", "running_mean", "running_var")
    shapes: dict[str, tuple] = {f"{name}.{part}": (features,) for part in parts}
    return shapes | {f"{name}.num_batches_tracked": ()}


def resnet_shapes(width: int) -> dict[str, tuple]:
    """Return the shapes of a ResNet-18, in the order of torchvision's state_dict."""
    shapes = {"conv1.weight": (width, 3, 7, 7)} | norm_shapes("bn1", width)
    inputs = width
    for layer, outputs in enumerate((width, 2 * width, 4 * width, 8 * width), 1):
        for number in range(2):
            block = f"layer{layer}.{number}"
            shapes[f"{block}.conv1.weight"] = (outputs, inputs, 3, 3)
            shapes |= norm_shapes(f"{block}.bn1", outputs)
            shapes[f"{block}.conv2.weight"] = (outputs, outputs, 3, 3)
            shapes |= norm_shapes(f"{block}.bn2", outputs)
            if inputs != outputs:
                shapes[f"{block}.downsample.0.weight"] = (outputs, inputs, 1, 1)
                shapes |= norm_shapes(f"{block}.downsample.1", outputs)
            inputs = outputs
    return shapes | {"fc.weight": (1000, 8 * width), "fc.bias": (1000,)}


def draw_resnet(width: int = 64) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draw a state_dict, whose logits from 4 on are constants, and two images.

    `width` is torchvision's, or a smaller one.
    """
    random = np.random.default_rng(0)
    weights = {}
    for name, shape in resnet_shapes(width).items():
        if name.endswith("running_var"):
            values = random.uniform(0.5, 1.5, shape)
        elif len(shape) > 1:
            values = random.normal(0, np.prod(shape[1:]) ** -0.5, shape)
        elif name.endswith("weight"):
            values = random.uniform(0.5, 1.5, shape)
        elif shape:
            values = random.normal(0, 0.2, shape)
        else:
            values = np.array(7.0)
        weights[name] = values.astype(np.float32)
    weights["fc.weight"][4:] = 0
    return weights, random.integers(0, 256, (2, 64, 64, 3), np.uint8)


def write_photos(folder: Path) -> None:
    """Write 32 images for training and 16 to test, dark ones and bright ones."""
    random = np.random.default_rng(0)
    for part, n in {"train": 16, "test": 8}.items():
        for label, lowest in {"bright": 120, "dark": 0}.items():
            (folder / part / label).mkdir(parents=True)
            for number in range(n):
                pixels = random.integers(lowest, lowest + 100, (40, 48, 3), np.uint8)
                path = folder / part / label / f"{number}.png"
                Image.fromarray(pixels).save(path)


@pytest.mark.nightly
def test_the_copied_resnet_gives_the_logits_of_torchvision(folder):
    """The page itself compares them, in its check."""
    weights, images = draw_resnet()
    np.savez("weights.npz", **weights)
    logits = np.tile(weights["fc.bias"], (2, 1))
    logits[:, :4] = OF_TORCHVISION
    np.savez("answers.npz", images=images, logits=logits)
    page = (ROOT / "docs" / "pytorch_loop.md").read_text(encoding="utf-8")
    for _, block in BLOCK.findall(page):
        if file := re.match(r"# (\w+\.py)\n", block):
            Path(file[1]).write_text(block)
    names: dict = {}
    exec(Path("check.py").read_text(), names)
    np.testing.assert_allclose(names["answers"], logits, rtol=1e-4, atol=1e-4)


def block_of(page: str, name: str) -> str:
    """Return the block of docs/pytorch_loop.md that has this line."""
    (block,) = [block for _, block in BLOCK.findall(page) if name in block]
    return block


@pytest.mark.nightly
def test_the_first_program_of_the_loop_learns_and_resumes(folder):
    """Its comments have the defaults of `Config`."""
    page = (ROOT / "docs" / "pytorch_loop.md").read_text(encoding="utf-8")
    first = block_of(page, "# first.py\n")
    defaults = re.findall(r"(\w+)=.*,  # default: ([^,\n]+)", first)
    assert len(defaults) == 8
    for field, default in defaults:
        assert getattr(Config(), field) == ast.literal_eval(default), field
    names: dict = {}
    exec(first, names)
    epochs = names["result"].epochs
    assert len(epochs) == 10
    assert epochs[-1]["test"]["accuracy"] > 0.9
    exec(first, names)
    assert names["result"].epochs == epochs


def test_a_crop_of_the_loop_is_a_part_of_the_image():
    """Its rows and columns rise evenly, by less than 1, and half are mirrored."""
    page = (ROOT / "docs" / "pytorch_loop.md").read_text(encoding="utf-8")
    program = block_of(page, "def crop_and_flip").partition("train_photos")[0]
    names: dict = {}
    exec(program, names)
    rows, columns = np.mgrid[:40, :40]
    image = np.stack([rows, columns, 0 * rows], axis=-1).astype(np.uint8)
    keys = jax.random.split(jax.random.key(0), 200)
    crops = jax.vmap(names["crop_and_flip"], (None, 0))(image, keys)
    assert crops.shape == (200, 40, 40, 3)
    inner = np.asarray(crops)[:, 4:-4, 4:-4]
    heights = np.diff(inner[..., 0], axis=1)
    widths = np.diff(inner[..., 1], axis=2)
    assert max(np.ptp(heights, (1, 2)).max(), np.ptp(widths, (1, 2)).max()) < 1e-3
    np.testing.assert_allclose(heights[:, 0, 0], abs(widths[:, 0, 0]), atol=1e-3)
    assert 0.49 < heights.min() < 0.55
    assert 0.9 < heights.max() < 1.01
    assert 70 < (widths[:, 0, 0] < 0).sum() < 130


@pytest.mark.nightly
def test_the_program_of_the_loop_trains_on_eight_simulated_devices(folder):
    """It runs as `python my_train.py` does, where JAX hasn't started before."""
    weights, _ = draw_resnet(width=8)
    np.savez("weights.npz", **weights)
    write_photos(folder / "photos")
    page = (ROOT / "docs" / "pytorch_loop.md").read_text(encoding="utf-8")
    for old, new in {**SMALLER, "epochs=4": "epochs=1"}.items():
        assert old in page, old
        page = page.replace(old, new)
    program = []
    for _, block in BLOCK.findall(page):
        if file := re.match(r"# (\w+\.py)\n", block):
            Path(file[1]).write_text(block)
        else:
            program.append(block)
    *program, evaluation = program
    assert "evaluate_run" in evaluation
    Path("my_train.py").write_text("".join(program))
    done = python("my_train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^devices +8 simulated CPU devices", done.stdout, re.MULTILINE)


# An eighth of the channels, and smaller images.
SMALLER = {
    "(3, 64, 7, 2": "(3, 8, 7, 2",
    "norm(64, ": "norm(8, ",
    "(64, 64, 1, ": "(8, 8, 1, ",
    "(64, 128, 2, ": "(8, 16, 2, ",
    "(128, 256, 2, ": "(16, 32, 2, ",
    "(256, 512, 2, ": "(32, 64, 2, ",
    "nnx.Linear(512, ": "nnx.Linear(64, ",
    "size=(224, 224)": "size=(32, 32)",
    "per_device_batch_size=32": "per_device_batch_size=2",
    # Of the full network: the test above.
    "rtol=1e-2, atol=1e-2": "atol=np.inf",
}


@pytest.mark.nightly
def test_a_loop_of_pytorch_becomes_a_run(folder):
    """It learns, and running it again resumes."""
    weights, images = draw_resnet(width=8)
    np.savez("weights.npz", **weights)
    np.savez("answers.npz", images=images, logits=0)
    write_photos(folder / "photos")
    names = run_page("pytorch_loop.md", SMALLER)
    exec(Path("check.py").read_text(), {})
    epochs = names["result"].epochs
    assert [epoch["step"] for epoch in epochs] == [2, 4, 6, 8]
    assert epochs[-1]["train"]["loss"] < epochs[0]["train"]["loss"]
    assert names["metrics"]["accuracy"] == epochs[-1]["test"]["accuracy"]
    assert run_page("pytorch_loop.md", SMALLER)["result"].epochs == epochs


# The layers of docs/pytorch.md that ResNet-18 doesn't have: PyTorch 2.14's answers by
# the network below, with what `draw_small` draws.
OF_PYTORCH = [
    [-0.6080760955810547, 0.17920619249343872, -1.338866949081421],
    [0.7314133048057556, 2.3738584518432617, 0.003546774387359619],
]
SHAPES = {
    "conv.weight": (4, 3, 3, 3),
    "conv.bias": (4,),
    **norm_shapes("norm", 4),
    "layers.0.weight": (8, 64),
    "layers.0.bias": (8,),
    "layers.1.weight": (3, 8),
    "layers.1.bias": (3,),
}


class Net(nnx.Module):
    """`[b, 8, 8, 3]` to three logits."""

    def __init__(self, *, rngs):
        self.conv = nnx.Conv(3, 4, (3, 3), strides=2, padding=1, rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        first = nnx.Linear(64, 8, rngs=rngs)
        self.layers = nnx.List([first, nnx.Linear(8, 3, rngs=rngs)])

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)  # PyTorch's order
        first, second = self.layers
        return second(nnx.gelu(first(x), approximate=False))


def draw_small() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draw a state_dict and images by NumPy."""
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
    return weights, images


def names_of_pages() -> dict:
    """Return the functions that copy PyTorch's weights into a Flax model, and back."""
    docs = ROOT / "docs"
    there = (docs / "pytorch_loop.md").read_text(encoding="utf-8")
    back = (docs / "pytorch.md").read_text(encoding="utf-8")
    names: dict = {"np": np, "nnx": nnx}
    for pattern, page in (("# weights.py\n", there), ("def state_dict", back)):
        (program,) = re.findall(rf"```python\n({pattern}.*?)```", page, re.DOTALL)
        exec(program, names)
    return names


def copied_model(names: dict) -> nnx.Module:
    weights, _ = draw_small()
    model = Net(rngs=nnx.Rngs(0))
    names["copy_weights"](model, weights)
    model.eval()
    return model


def test_weights_of_pytorch_give_its_answers():
    model = copied_model(names_of_pages())
    _, images = draw_small()
    answers = model(images.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(answers, OF_PYTORCH, rtol=1e-5, atol=1e-5)


def test_weights_go_back_to_pytorch_as_they_came():
    """So PyTorch gives the answers above. It can count batches anew."""
    names = names_of_pages()
    model = copied_model(names)
    model.noise = nnx.Dropout(0.5, rngs=nnx.Rngs(0))  # whose keys aren't weights
    back = names["state_dict"](model)
    weights, _ = draw_small()
    del weights["norm.num_batches_tracked"]
    assert back.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(back[name], values)


@pytest.mark.torch
def test_the_stored_answers_are_those_of_pytorch():
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

    weights, images = draw_small()
    model = Net()
    names = names_of_pages()
    back = names["state_dict"](copied_model(names))
    for state_dict in (weights, back):
        tensors = {name: torch.tensor(values) for name, values in state_dict.items()}
        model.load_state_dict(tensors)
        answers = model.eval()(torch.tensor(images)).detach().numpy()
        np.testing.assert_allclose(answers, OF_PYTORCH, rtol=1e-5, atol=1e-5)


@pytest.mark.torch
def test_the_stored_logits_are_those_of_torchvision():
    """With the lines of the page, up to the downloaded weights."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torchvision = pytest.importorskip("torchvision", reason="it is not installed")
    weights, images = draw_resnet()
    model = torchvision.models.resnet18(weights=None)
    model.load_state_dict(
        {name: torch.tensor(value) for name, value in weights.items()}
    )
    normalize = torchvision.transforms.Normalize(
        [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    )
    pixels = normalize(torch.tensor(images).permute(0, 3, 1, 2) / 255)
    logits = model.eval()(pixels).detach().numpy()
    np.testing.assert_allclose(logits[:, :4], OF_TORCHVISION, rtol=1e-4, atol=1e-4)


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_of_the_readme_runs_as_printed(folder):
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", README, re.DOTALL)[1], names)
    assert names["result"].epochs[-1]["test"]["accuracy"] > 0.8


@pytest.mark.nightly  # two minutes
def test_the_commands_of_the_readme_run_one_after_the_other(folder):
    """They need no other file than those that they write."""
    block = re.search(r"## Commands\n\n```\n(.*?)```", README, re.DOTALL)[1]
    commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert len(commands) == 7
    for _, _, module, *arguments in commands:
        done = entry.run_command(module.removeprefix("pmapdp."), *arguments)
        assert done.status == 0, done.err
