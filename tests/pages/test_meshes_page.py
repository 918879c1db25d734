"""docs/meshes.md: its model trains on every row of its table, with these numbers."""

import importlib.util
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from pmapdp import cli, train
from pmapdp.models import axis_names

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "meshes.md").read_text(encoding="utf-8")
ROWS = re.findall(
    r"^\| `(--[^`]*)`[^|]*\| ([\d.]+ MB) \| ([\d.]+ MB) \| ([\d.]+) %", PAGE, re.M
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


def test_an_embedding_takes_names(folder, capsys):
    """The page's line for layers other than `nnx.Linear`."""
    line = re.search(r"`(nnx\.Embed\(.*?\))` with", PAGE)[1]
    embed = eval(line, {"nnx": nnx, "axis_names": axis_names, "rngs": nnx.Rngs(0)})
    assert embed.embedding.get_metadata("out_sharding") == ("words", "embed")


def test_the_picture_is_in_step_with_its_program():
    path = DOCS / "pictures" / "layouts.py"
    spec = importlib.util.spec_from_file_location("layouts", path)
    layouts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layouts)
    drawn = (DOCS / "pictures" / "layouts.svg").read_text(encoding="utf-8")
    assert drawn == layouts.picture() + "\n"


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
