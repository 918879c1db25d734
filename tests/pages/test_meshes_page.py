"""docs/meshes.md: its model trains on every row of its table, with these numbers."""

import importlib.util
import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from pmapdp import cli, train
from pmapdp.config import Config
from pmapdp.distributed import ProcessesOptions
from pmapdp.flags import parse_with_recipe
from pmapdp.job import CustomParts, Job, make_job
from pmapdp.models import axes, axis_names
from pmapdp.sharding.layout import bytes_on_a_device
from pmapdp.state import initial_state

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "meshes.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| `(--[^`]*)`[^|]*\| ([\d.]+ MB) \| ([\d.]+ MB) \| ([\d.]+) %", PAGE, re.M
)
SIZES = re.findall(
    r"^\| (none|`--[^`]*`) \| ([\d. |]+) \|$",
    PAGE.partition("## How large may my model be?")[2].partition("## ")[0],
    re.MULTILINE,
)
HEADER = re.search(r"^devices .*, (mesh .*)$", PAGE, re.MULTILINE)[1]


def run_header(flags: str, folder, capsys) -> str:
    """Train the page's model for one update, and return what is printed."""
    (program,) = re.findall(r"```python\n(# net.py.*?)```", PAGE, re.DOTALL)
    (folder / "net.py").write_text(program, encoding="utf-8")
    command = ["--model", "net.py:Net", "--steps", "1", *flags.split()]
    assert cli.run(train.main, command) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("flags", "params", "optimizer", "percent"), ROWS)
def test_a_device_holds_what_the_table_says(
    flags, params, optimizer, percent, folder, capsys
):
    held = "all" if percent == "100" else f"{percent} %"
    expected = f"each device holds {held} of it: "
    expected += f"parameters {params} + optimizer {optimizer}"
    if "--strategy" not in flags:
        flags = f"--strategy jit {flags}"
    printed = run_header(flags, folder, capsys)
    assert expected in printed
    if "--mesh" in flags:
        assert HEADER in printed


def test_the_table_has_all_rows():
    assert len(ROWS) == 5


WIDTH = 256
LAYERS = 8
PARAMETERS = LAYERS * WIDTH * WIDTH


class Deep(nnx.Module):
    """`[b, 256]` to `[b, 256]`, as Megatron-LM splits it: columns, then rows."""

    def __init__(self, *, dtype, rngs):
        layers = []
        for number in range(LAYERS):
            names = ("embed", "hidden") if number % 2 == 0 else ("hidden", "embed")
            layer = nnx.Linear(
                WIDTH, WIDTH, use_bias=False, dtype=dtype, rngs=rngs, **axes(*names)
            )
            layers.append(layer)
        self.layers = nnx.List(layers)

    def __call__(self, x):
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return x


def job_of(flags: str, optimizer: str, dtype: str = "float32") -> Job:
    """Make a run of `Deep` on eight devices, with a batch of almost no bytes."""
    command = f"--strategy jit --devices 8 --global-batch-size 8 {flags}"
    command += f" --optimizer {optimizer} --dtype {dtype} --no-compile-cache"
    config, _ = parse_with_recipe(train.COMMAND, ProcessesOptions, shlex.split(command))
    assert isinstance(config, Config)
    inputs = np.zeros((8, WIDTH), np.float32)
    data = {"train": (inputs, np.arange(8))}
    return make_job(config, CustomParts(model=Deep, data=data))


def state_of(job: Job):
    make_state = jax.jit(
        lambda: initial_state(job.task), out_shardings=job.strategy.state_sharding
    )
    return make_state()


def bytes_in_a_step(job: Job) -> float:
    """Return what the compiler plans for each parameter, beside the state."""
    batch = job.strategy.place_batch(next(job.batches["train"].epoch(0)))
    compiled = job.strategy.train_step.lower(state_of(job), batch).compile()
    return compiled.memory_analysis().temp_size_in_bytes / PARAMETERS


def test_the_sizes_have_all_rows():
    assert len(SIZES) == 6


@pytest.mark.parametrize(("flags", "cells"), SIZES)
def test_the_sizes_are_those_of_a_real_state(flags, cells):
    """And the columns of GB follow from them."""
    flags = flags.strip("`").removeprefix("none")
    *state_bytes, in_a_step, gb_24, gb_80, gb_141 = map(float, cells.split(" | "))
    for optimizer, shown in zip(("sgd", "momentum", "adam"), state_bytes, strict=True):
        state = state_of(job_of(flags, optimizer))
        assert bytes_on_a_device(state) / PARAMETERS == pytest.approx(shown, abs=0.01)
    for memory, billions in ((24, gb_24), (80, gb_80), (141, gb_141)):
        most = 0.9 * memory / (state_bytes[2] + in_a_step)
        assert billions == pytest.approx(most, abs=0.051)


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "cells"), SIZES)
def test_a_step_needs_the_bytes_of_the_table(flags, cells):
    """In both types."""
    flags = flags.strip("`").removeprefix("none")
    in_a_step = float(cells.split(" | ")[3])
    for dtype in ("float32", "bfloat16"):
        measured = bytes_in_a_step(job_of(flags, "adam", dtype))
        assert measured == pytest.approx(in_a_step, rel=0.05)


def test_an_embedding_takes_names(folder, capsys):
    """The page's line for layers other than `nnx.Linear`."""
    line = re.search(r"`(nnx\.Embed\(.*?\))` with", PAGE)[1]
    embed = eval(line, {"nnx": nnx, "axis_names": axis_names, "rngs": nnx.Rngs(0)})
    assert embed.embedding.get_metadata("out_sharding") == ("words", "embed")


def load_layouts():
    """Import the program that draws the picture."""
    path = DOCS / "pictures" / "layouts.py"
    spec = importlib.util.spec_from_file_location("layouts", path)
    layouts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layouts)
    return layouts


def test_the_picture_is_in_step_with_its_program():
    layouts = load_layouts()
    drawn = (DOCS / "pictures" / "layouts.svg").read_text(encoding="utf-8")
    assert drawn == layouts.picture() + "\n"


def part_of(array: jax.Array, device: jax.Device) -> tuple[int, int]:
    """Return into how many parts an array is split, and which one a device holds."""
    indices = array.sharding.devices_indices_map(array.shape)
    slices = []
    for per_axis in indices.values():
        starts = [
            part.indices(size)[:2]
            for part, size in zip(per_axis, array.shape, strict=True)
        ]
        slices.append(tuple(starts))
    different = sorted(set(slices))
    own = slices[list(indices).index(device)]
    return len(different), different.index(own)


@pytest.mark.parametrize(
    ("row", "flags"),
    [
        (0, ""),
        (1, "--shard-state optimizer"),
        (2, "--shard-state parameters"),
        (3, "--mesh data=4,model=2 --layout model"),
    ],
)
def test_the_picture_shows_what_jax_places_on_each_device(row, flags):
    """The batch, the first layer's kernel and its moment in Adam."""
    layouts = load_layouts()
    _, splits = layouts.ROWS[row]
    job = job_of(flags, "adam")
    batch = job.strategy.place_batch(next(job.batches["train"].epoch(0)))
    state = state_of(job)
    kernels = [
        leaf
        for part in (state.params, state.optimizer_state)
        for leaf in jax.tree.leaves(part)
        if leaf.ndim == 2
    ]
    arrays = batch.inputs, kernels[0], kernels[LAYERS]
    for array, (parts, part) in zip(arrays, splits, strict=True):
        for number, device in enumerate(jax.devices()[:8]):
            assert part_of(array, device) == (parts, part(number))


def test_auto_and_explicit_axes_give_the_update_of_one_device(capsys):
    """JAX asks for the sharding of one product, and of no other."""
    blocks = re.findall(r"```python\n(?!# net.py)(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    names: dict = {}
    exec("".join(blocks), names)
    assert capsys.readouterr().out == "float32[6,32@model]\n"
    arrays = [names[name] for name in ("first", "second", "inputs", "labels")]
    first, second, inputs, labels = (np.float32(array) for array in arrays)
    expected = names["auto_step"]((first, second), inputs, labels)
    for updates in (names["auto"], names["explicit"]):
        for update, wanted in zip(updates, expected, strict=True):
            np.testing.assert_allclose(update, wanted, rtol=1e-5, atol=1e-6)
            assert len(update.sharding.device_set) == 8
    weights, batch = names["placed"][:2], names["placed"][2:]
    mesh = weights[0].sharding.mesh
    with jax.set_mesh(mesh), pytest.raises(Exception, match="ambiguous how the output"):
        names["auto_step"](weights, *batch)
