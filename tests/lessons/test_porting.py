"""docs/porting.md and lesson 11 say the same, and its snippets do what the page says."""

import re
from pathlib import Path

import build
import jax
import numpy as np
import pytest
from jax import P, lax

PAGE = Path(build.FOLDER.parent / "docs" / "porting.md")
LESSON = build.FOLDER / "11_port_a_pmap_program.py"


def rows(text: str) -> list[str]:
    """The rows of the table of constructs."""
    lines = [line.removeprefix("# ") for line in text.splitlines()]
    start = lines.index("| pmap | shard_map | jit |")
    return lines[start : next(n for n in range(start, len(lines)) if not lines[n].startswith("|"))]


def test_the_table_is_that_of_the_lesson():
    assert len(rows(PAGE.read_text())) > 15
    assert rows(PAGE.read_text()) == rows(LESSON.read_text())


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE.read_text().replace("\n", " ")):
        if "://" not in target:
            assert (PAGE.parent / target).exists(), target


def test_the_snippets_run_and_give_the_old_result():
    def loss(w, batch):
        return ((batch["x"] @ w - batch["y"]) ** 2).mean()

    def step(w, batch, key):
        value, gradient = lax.pmean(jax.value_and_grad(loss)(w, batch), "batch")
        return w - 0.1 * gradient, value

    def plain_step(w, batch, key):
        value, gradient = jax.value_and_grad(loss)(w, batch)
        return w - 0.1 * gradient, value

    random = np.random.default_rng(0)
    w = random.normal(size=3).astype(np.float32)
    batch = {"x": random.normal(size=(16, 3)).astype(np.float32), "y": random.normal(size=16).astype(np.float32)}
    to_shard_map, to_jit, check = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    page = {"step": step, "plain_step": plain_step, "state": w, "batch": batch, "key": jax.random.key(0)}
    stacked = jax.tree.map(lambda x: x.reshape(8, 2, *x.shape[1:]), batch)
    old = jax.pmap(step, axis_name="batch", in_axes=(None, 0, None), out_axes=None)
    wanted = w
    for snippet in (to_shard_map, to_jit):
        exec(snippet, page)
        wanted, value = old(wanted, stacked, page["key"])
        np.testing.assert_allclose(page["state"], wanted, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(page["metrics"], value, rtol=1e-5)
    exec(check, page)


def test_the_names_are_those_of_this_jax():
    for gone in ("tree_map",):
        with pytest.raises(AttributeError):
            getattr(jax, gone)
    with pytest.raises(AttributeError):
        _ = lax.pvary
    assert callable(lax.pcast)
    assert callable(lax.axis_size)


def test_pmap_refuses_another_device_and_a_pmap_inside_a_pmap():
    chosen = jax.devices()
    with pytest.raises(ValueError, match="does not match"):
        jax.pmap(lambda x: x, devices=chosen[:4])(jax.device_put(np.ones((4, 3)), chosen[7]))
    nested = jax.pmap(lambda x: jax.pmap(lambda y: lax.psum(y, "b"), axis_name="b")(x), axis_name="a")
    with pytest.raises(ValueError, match=r"context mesh .* should match"):
        nested(np.ones((2, 4)))


def test_axis_groups_are_a_mesh_of_two_axes():
    def sums(x):
        return lax.psum(x, "batch", axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]])

    x = np.arange(8.0, dtype=np.float32)
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 4), ("group", "batch"))
    options = {"mesh": mesh, "in_specs": P(("group", "batch")), "out_specs": P(("group", "batch")), "check_vma": False}
    ported = jax.shard_map(lambda x: lax.psum(x, "batch"), **options)(x)
    np.testing.assert_array_equal(jax.pmap(sums, axis_name="batch")(x), ported)


def test_gather_with_tiled_gives_the_batch():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
    x = np.arange(16.0, dtype=np.float32)
    gather = jax.shard_map(
        lambda x: lax.all_gather(x, "batch", tiled=True), mesh=mesh, in_specs=P("batch"), out_specs=P(), check_vma=False
    )
    np.testing.assert_array_equal(gather(x), x)
