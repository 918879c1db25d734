"""docs/gpus.md: its program trains, its header is what the command prints, and its
recipes against too little memory save some and change nothing else.
"""

import functools
import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib import xla_client
from launch import python

from pmapdp import cli, train
from pmapdp.config import Config
from pmapdp.custom import map_style
from pmapdp.data.batches import Batch
from pmapdp.optimizer import make_schedule
from pmapdp.scaling import A100, RESNET_FLOPS, RESNET_SHARES
from pmapdp.state import Task, build, initial_state
from pmapdp.steps import STRATEGIES

PAGE = (Path(__file__).parents[2] / "docs" / "gpus.md").read_text()
PAGE = re.sub(r" \\\n *", " ", PAGE)  # a command's lines become one
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
HEADER = re.search(r"```\n(run  .*?)```", PAGE, re.DOTALL)[1]
COMMAND, CARS_COMMAND = re.findall(
    r"^    python -m pmapdp\.train (.*)$", PAGE, re.MULTILINE
)


def test_the_program_trains_on_all_devices_and_measures(capsys):
    """Reading one by one is slower than an array in memory."""
    names: dict = {}
    exec(PROGRAM, names)
    assert 0 < names["reached"] < names["needed"]
    shown = capsys.readouterr().out
    updates = 2 * 4096 // (128 * len(jax.devices()))
    assert shown.count(f"updates  {updates}, ") == 2
    assert "nan" not in shown
    end_of_a_run = r"; last epoch [\d,]+ examples/s$"
    assert len(re.findall(end_of_a_run, shown, re.MULTILINE)) == 2
    assert re.search(r"`last epoch [\d,]+ examples/s`", PAGE)
    assert re.search(r"^[\d,]+ of [\d,]+ examples/s", shown, re.MULTILINE)


def test_how_many_examples_eight_gpus_need():
    """By NVIDIA's speed of one A100 that `pmapdp.scaling` takes, and our threads."""
    speed = RESNET_SHARES["bfloat16"] * A100.peak["bfloat16"] / RESNET_FLOPS
    assert f"trains on {speed:,.0f} images a second with one A100" in PAGE
    assert f"eight need up to {round(8 * speed, -4):,.0f}" in PAGE
    assert "with up to 16 threads" in PAGE
    assert map_style.THREADS <= 16


def test_what_others_got_with_eight_gpus():
    """The page shows the rows of the notes, which tests/scaling computes."""
    notes = (Path(__file__).parents[2] / "benchmarks" / "README.md").read_text("utf-8")
    computed = re.findall(r"^\| (?:8|256) .* \| (0\.\d+) \| (0\.\d+) \|", notes, re.M)
    shown = re.findall(
        r"^\| .* \| (\d+) % ?(?:, or ([\d,]+) images/s)? \| ([\d.]+) % \|$",
        PAGE.replace(" %, or", " % , or"),
        re.MULTILINE,
    )
    rows = [shown[2], *shown[:2]]  # the notes have Goyal et al. first
    assert len(computed) == len(rows) == 3
    for (predicted, found), (percent, speed, most) in zip(computed, rows, strict=True):
        assert percent == f"{100 * float(found):.0f}"
        assert float(most) == pytest.approx(100 * float(predicted), abs=0.05)
        if speed:
            on_one = 938 if percent == "97" else 2470
            eight = float(speed.replace(",", ""))
            assert eight / (8 * on_one) == pytest.approx(float(found), abs=5e-4)
    assert "84 %, which is 6.7 times" in " ".join(PAGE.split())


CARS = (Path(__file__).parents[2] / "docs" / "custom.md").read_text(encoding="utf-8")
TOO_FEW = """

def too_few():
    inputs, labels = make()["train"]
    return {"train": (inputs[:1000], labels[:1000])}
"""


def write_cars(folder, more=""):
    """Write the two files of the page before, and `more` below the data."""
    for file, end in (("net.py", ""), ("data.py", more)):
        (text,) = re.findall(rf"```python\n(# {file}\n.*?)```", CARS, re.DOTALL)
        (folder / file).write_text(text + end, encoding="utf-8")


def test_the_command_trains_the_files_of_the_page_before(folder, capsys):
    """One batch needs as many examples as the page says."""
    write_cars(folder, TOO_FEW)
    assert "One batch has 1,024 examples" in PAGE
    arguments = [*CARS_COMMAND.split(), "--steps", "1"]
    assert cli.run(train.main, arguments) == 0
    shown = capsys.readouterr().out
    assert "1,024 over all devices, at most 128 on one" in shown
    assert "bfloat16" in shown
    arguments[arguments.index("data.py:make")] = "data.py:too_few"
    assert cli.run(train.main, arguments) == 2
    assert "takes 1024 examples" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("flags", "loss_on_page", "updates_on_page"),
    [
        ("", r"a test loss of about ([\d.]+)\.", r"instead of ([\d,]+)\."),
        (
            "--devices 1",
            r"`--devices 1`, the same command ends at about ([\d.]+):",
            r"so it makes ([\d,]+) updates",
        ),
        (
            "--epochs 720",
            r"and end at about ([\d.]+), too",
            r"`--epochs 720`, eight devices make ([\d,]+) updates",
        ),
    ],
)
def test_the_command_reaches_the_loss_that_the_page_says(
    folder, capsys, flags, loss_on_page, updates_on_page
):
    """With few updates on eight devices, and with many on one or eight."""
    write_cars(folder)
    arguments = [*CARS_COMMAND.split(), *flags.split()]
    if flags.startswith("--epochs"):
        arguments = CARS_COMMAND.replace("--epochs 90", flags).split()
    assert cli.run(train.main, arguments) == 0
    shown = capsys.readouterr().out
    loss = float(re.search(r"^test loss: .*last ([\d.]+)", shown, re.MULTILINE)[1])
    page = " ".join(PAGE.split())
    stated = float(re.search(loss_on_page, page)[1])
    assert loss == pytest.approx(stated, rel=0.1)
    updates = re.search(r"^updates  ([\d,]+), ", shown, re.MULTILINE)[1]
    assert updates == re.search(updates_on_page, page)[1]


def test_jax_knows_both_names_of_the_memory_setting():
    source = inspect.getsource(xla_client.generate_pjrt_gpu_plugin_options)
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        assert f"'{name}'" in source
        assert name in PAGE
    if f"jax {jax.__version__}" in PAGE or f"and {jax.__version__}" in PAGE:
        assert "memory_fraction_policy" not in source  # the setting that lets it grow


@pytest.mark.nightly
def test_the_header_is_what_the_command_prints():
    """Line by line; the number of cores depends on the machine."""
    done = python("-m", "pmapdp.train", *COMMAND.split(), "--no-progress")
    assert done.returncode == 0, done.stderr
    printed = re.sub(r"on \d+ cores?", "on 2 cores", done.stdout)
    assert printed.startswith(HEADER)


def test_the_command_makes_fewer_updates_than_one_without_flags(capsys):
    assert "updates  20, " in HEADER
    assert cli.run(train.main, ["--steps", "1", "--no-progress"]) == 0
    shown = capsys.readouterr().out
    per_epoch = re.search(r"^updates  1, (\d+) an epoch", shown, re.MULTILINE)[1]
    updates = int(per_epoch) * Config().epochs
    stated = f"without flags, `python -m pmapdp.train` makes {updates}"
    assert stated in " ".join(PAGE.split())


def test_the_check_says_if_there_is_only_a_cpu():
    program = re.search(r'^python -c "(import jax; .*?)"', PAGE, re.MULTILINE)[1]
    done = python("-c", program)
    assert done.stdout == "[CpuDevice(id=0)]\n"
    assert f"`{done.stdout.strip()}`" in PAGE


def test_the_version_lists_the_devices():
    done = python("-m", "pmapdp.train", "--version")
    assert re.search(r"^device info: cpu", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("gpus", [1, 8, 32])
def test_the_learning_rates_of_the_table(gpus):
    row = re.search(rf"^\| {gpus} \| (.*) \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
    B = int(row[1].replace(",", ""))
    assert 128 * gpus == B
    columns = (("linear", 0.1, 256, row[2]), ("sqrt", 0.001, 128, row[3]))
    for rule, rate, base, shown in columns:
        assert f"{rate} for a batch of {base}" in " ".join(PAGE.split())
        config = Config(
            learning_rate=rate,
            scale_learning_rate=rule,
            base_batch_size=base,
            schedule="constant",
        )
        schedule = make_schedule(config, B, 10, 100)
        assert float(schedule(0)) == pytest.approx(float(shown), rel=0.02)


class Block(nnx.Module):
    """`[b, 256]` to `[b, 256]`."""

    def __init__(self, *, dtype, rngs):
        self.wide = nnx.Linear(256, 1024, dtype=dtype, rngs=rngs)
        self.narrow = nnx.Linear(1024, 256, dtype=dtype, rngs=rngs)
        self.norm = nnx.BatchNorm(256, dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        hidden = nnx.relu(self.wide(x))
        return x + self.dropout(self.norm(self.narrow(hidden)))


class Net(nnx.Module):
    """`[b, 64]` to ten logits."""

    def __init__(self, *, dtype=None, rngs):
        self.first = nnx.Linear(64, 256, dtype=dtype, rngs=rngs)
        blocks = [Block(dtype=dtype, rngs=rngs) for _ in range(4)]
        self.blocks = nnx.List(blocks)
        self.logits = nnx.Linear(256, 10, dtype=dtype, rngs=rngs)

    def __call__(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.logits(x)


class NetThatRecomputes(Net):
    """The same, by the line of the page."""

    def __call__(self, x):
        (line,) = re.findall(r"`(x = nnx\.remat.*)` instead of", PAGE)
        names = {"nnx": nnx, "Block": Block, "x": self.first(x)}
        for block in self.blocks:
            exec(line, names | {"block": block}, names)
        return self.logits(names["x"])


def temporary_memory(accumulate: int) -> int:
    """Return the bytes that the compiler plans on a device beside the arguments."""
    task = Task(build(Net), optax.adam(1e-3), accumulate=accumulate)
    strategy = STRATEGIES["jit"](task, jax.devices()[:8])
    mesh = strategy.state_sharding.mesh
    B = 8 * 512

    def rows(shape, dtype):
        split = NamedSharding(mesh, PartitionSpec(*mesh.axis_names))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=split)

    numbers = rows((B,), np.int32)
    batch = Batch(rows((B, 64), np.float32), numbers, numbers, rows((B,), np.float32))
    state = jax.eval_shape(lambda: initial_state(task))
    step = strategy.train_step
    compiled = step.lower(state, batch).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_micro_batches_take_the_temporary_memory_that_the_page_says():
    found = re.search(r"from (\d+) MB to (\d+) MB", PAGE)
    for accumulate, megabytes in ((1, found[1]), (4, found[2])):
        measured = temporary_memory(accumulate) / 1e6
        assert measured == pytest.approx(float(megabytes), rel=0.25)
    params = jax.tree.leaves(nnx.state(Net(rngs=nnx.Rngs(0)), nnx.Param))
    assert measured < 1.1 * 2 * sum(leaf.nbytes for leaf in params) / 1e6


def test_recomputing_keeps_less_for_the_backward_pass():
    """The residuals of a step are what `jax.vjp` keeps."""
    x = jnp.ones((512, 64))
    sizes = {}
    for network in (Net, NetThatRecomputes):
        model = network(rngs=nnx.Rngs(0))
        model.eval()
        graph, params, rest = nnx.split(model, nnx.Param, ...)

        def outputs(params, graph=graph, rest=rest):
            return nnx.merge(graph, params, rest, copy=True)(x)

        _, backward = jax.vjp(outputs, params)
        sizes[network] = sum(leaf.nbytes for leaf in jax.tree.leaves(backward))
    assert sizes[NetThatRecomputes] < 0.6 * sizes[Net]


def train_losses(model, **settings) -> list[float]:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(512, 64)).astype(np.float32)
    data = {"train": (inputs, np.arange(512) % 10)}
    config = Config(
        strategy="jit",
        per_device_batch_size=16,
        epochs=2,
        progress=False,
        compile_cache=False,
        **settings,
    )
    result = train.train(config, model=model, data=data)
    return [epoch["train"]["loss"] for epoch in result.epochs]


@pytest.mark.nightly
def test_the_recipes_change_nothing_else():
    """Micro-batches change batch norm, so their losses are only close."""
    losses = train_losses(Net)
    for model, settings in (
        (NetThatRecomputes, {}),
        (Net, {"shard_state": "optimizer"}),
        (Net, {"shard_state": "parameters"}),
    ):
        assert train_losses(model, **settings) == pytest.approx(losses, rel=1e-3)
    assert train_losses(Net, accumulate=4) == pytest.approx(losses, rel=0.3)
    assert train_losses(Net, dtype="bfloat16") == pytest.approx(losses, rel=0.1)


@pytest.mark.parametrize(("number", "percent"), [("4", 41.7), ("5", 12.5)])
def test_a_split_state_takes_the_part_that_the_page_says(number, percent, capsys):
    """A model with arrays that all divide by 8, up to the logits' bias."""
    flags = re.search(rf"^{number}\. `(.*?)`", PAGE, re.MULTILINE)[1]
    assert cli.run(train.main, [*flags.split(), "--steps", "1"]) == 0
    shown = re.search(r"each device holds ([\d.]+) % of it", capsys.readouterr().out)
    assert float(shown[1]) == pytest.approx(percent, abs=0.5)
    assert re.search(rf"recipe {number} left {percent:.0f}|left {percent} %", PAGE)


class Bottleneck(nnx.Module):
    def __init__(self, inputs, width, stride, **options):
        conv = functools.partial(nnx.Conv, use_bias=False, **options)
        norm = functools.partial(nnx.BatchNorm, **options)
        outputs = 4 * width
        self.conv1 = conv(inputs, width, (1, 1))
        self.conv2 = conv(width, width, (3, 3), strides=stride)
        self.conv3 = conv(width, outputs, (1, 1))
        self.norms = nnx.List([norm(width), norm(width), norm(outputs)])
        shortcut = []
        if inputs != outputs:
            shortcut = [conv(inputs, outputs, (1, 1), strides=stride), norm(outputs)]
        self.shortcut = nnx.List(shortcut)

    def __call__(self, x):
        norm1, norm2, norm3 = self.norms
        hidden = nnx.relu(norm1(self.conv1(x)))
        hidden = nnx.relu(norm2(self.conv2(hidden)))
        hidden = norm3(self.conv3(hidden))
        for layer in self.shortcut:
            x = layer(x)
        return nnx.relu(hidden + x)


class ResNet50(nnx.Module):
    """`[b, 224, 224, 3]` uint8 to 1,000 logits, as torchvision's, stride in conv2."""

    def __init__(self, **options):
        self.conv = nnx.Conv(3, 64, (7, 7), strides=2, use_bias=False, **options)
        self.norm = nnx.BatchNorm(64, **options)
        blocks = []
        inputs = 64
        for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for number in range(count):
                stride = 2 if number == 0 and width > 64 else 1
                blocks.append(Bottleneck(inputs, width, stride, **options))
                inputs = 4 * width
        self.blocks = nnx.List(blocks)
        self.logits = nnx.Linear(2048, 1000, **options)

    def __call__(self, images):
        x = nnx.relu(self.norm(self.conv(images)))
        x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for block in self.blocks:
            x = block(x)
        return self.logits(x.mean((1, 2)))


class GPTBlock(nnx.Module):
    def __init__(self, **options):
        self.norm1 = nnx.LayerNorm(768, **options)
        self.norm2 = nnx.LayerNorm(768, **options)
        self.attention = nnx.MultiHeadAttention(12, 768, decode=False, **options)
        self.hidden = nnx.Linear(768, 3072, **options)
        self.out = nnx.Linear(3072, 768, **options)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.out(nnx.gelu(self.hidden(self.norm2(x))))


class GPT2Small(nnx.Module):
    """`[b, 1024]` tokens to as many logits of 50,257, with the embedding's weights."""

    def __init__(self, **options):
        self.tokens = nnx.Embed(50257, 768, **options)
        self.places = nnx.Embed(1024, 768, **options)
        self.blocks = nnx.List([GPTBlock(**options) for _ in range(12)])
        self.norm = nnx.LayerNorm(768, **options)

    def __call__(self, tokens):
        x = self.tokens(tokens) + self.places(jnp.arange(1024))
        for block in self.blocks:
            x = block(x)
        return self.tokens.attend(self.norm(x))


def kept_bytes(network, inputs_shape, b: int) -> tuple[int, int]:
    """Return the parameters of a network in bfloat16, and the bytes that its backward
    pass keeps of b examples. Nothing is computed.
    """
    model = nnx.eval_shape(lambda: network(dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params, rest, inputs, labels):
        logits = nnx.merge(graph, params, rest, copy=True)(inputs)
        return optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), labels
        ).mean()

    def backward(params, *others):
        return jax.vjp(lambda params: loss(params, *others), params)[1]

    inputs = jax.ShapeDtypeStruct((b, *inputs_shape), np.uint8)
    labels_shape = (b,)
    if network is GPT2Small:
        inputs = jax.ShapeDtypeStruct((b, 1024), np.int32)
        labels_shape = (b, 1024)
    labels = jax.ShapeDtypeStruct(labels_shape, np.int32)
    leaves = jax.tree.leaves(jax.eval_shape(backward, params, rest, inputs, labels))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return sum(leaf.size for leaf in jax.tree.leaves(params)), size


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "network", "shape"),
    [("ResNet-50", ResNet50, (224, 224, 3)), ("GPT-2 small", GPT2Small, (1024,))],
)
def test_the_memory_of_two_real_models(name, network, shape):
    row = re.search(
        rf"^\| {name}, .* \| ([\d.]+) million \| ([\d.]+) GB \| ([\d.]+) GB "
        r"\| (\d+) \w+ \|$",
        PAGE,
        re.MULTILINE,
    )
    millions, state, activations, fit = map(float, row.groups())
    parameters, two = kept_bytes(network, shape, 2)
    _, three = kept_bytes(network, shape, 3)
    each = (three - two) / 1e9
    assert parameters / 1e6 == pytest.approx(millions, abs=0.05)
    assert 20 * parameters / 1e9 == pytest.approx(state, rel=0.02)
    assert each == pytest.approx(activations, rel=0.05)
    assert (0.9 * 80 - state) / each == pytest.approx(fit, rel=0.1)
