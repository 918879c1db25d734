"""docs/newer_jax.md: what it says of JAX is true of the JAX that is installed."""

import pkgutil
import re
import warnings
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

PAGE = (Path(__file__).parents[2] / "docs" / "newer_jax.md").read_text(encoding="utf-8")
TRAP, MESHES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ROWS = re.findall(r"^\| `(jax\.[\w.]+)` \| (gone|warns).*? \| (.*) \|$", PAGE, re.M)


def test_the_trap_multiplies_the_gradient_by_the_number_of_devices():
    names: dict = {}
    exec(TRAP, names)
    assert float(names["too_large"]) == len(jax.devices()) > 1
    assert float(names["correct"]) == 1


@pytest.mark.parametrize(("old", "today", "new"), ROWS)
def test_a_name_is_gone_or_warns_and_the_new_one_exists(old, today, new):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        error = AttributeError if today == "gone" else DeprecationWarning
        with pytest.raises(error):
            resolve(old)
        pkgutil.resolve_name(re.match(r"`(jax\.[\w.]+)", new)[1])


def resolve(name: str) -> None:
    """Import a name, and call it if it warns only then."""
    found = pkgutil.resolve_name(name)
    if name.endswith("shard_map"):
        mesh = Mesh(np.array(jax.devices()), ("data",))
        found(lambda x: x, mesh, in_specs=P(), out_specs=P())
    else:
        found(lambda x: x)


def test_the_table_is_read_whole():
    assert len(ROWS) == 13


def test_the_arguments_that_are_gone():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from jax.experimental.pjit import pjit

        with pytest.raises(TypeError):
            pjit(lambda x: x, in_axis_resources=None)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    with pytest.raises(TypeError):
        jax.shard_map(lambda x: x, mesh=mesh, in_specs=P(), out_specs=P(), check_rep=0)
    with pytest.warns(DeprecationWarning, match="jax.set_mesh"), mesh:
        pass
    with pytest.raises(AttributeError):
        jax.config.update("jax_pmap_shmap_merge", False)


def gradient_on(mesh):
    """Return a gradient of Optax's cross-entropy, with the batch split over `mesh`."""

    def loss(w, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(x @ w, y).mean()

    x = np.arange(48, dtype=np.float32).reshape(16, 3) / 48
    batch = jax.device_put((x, np.arange(16) % 3), NamedSharding(mesh, P("data")))
    w = jax.device_put(np.ones((3, 3), np.float32), NamedSharding(mesh, P()))
    return np.asarray(jax.jit(jax.grad(loss))(w, *batch))


def test_meshes_that_work_as_before():
    names: dict = {"jax": jax, "np": np, "Mesh": Mesh}
    first, second = re.split(r"\n(?=mesh = jax)", MESHES)
    found = []
    for line in (first, second):
        exec(line, names)
        found.append(gradient_on(names["mesh"]))
    np.testing.assert_array_equal(*found)


def test_an_explicit_mesh_asks_from_jax_0_12_on():
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    assert mesh.axis_types == (jax.sharding.AxisType.Explicit,)
    version = tuple(map(int, jax.__version__.split(".")[:2]))
    if version >= (0, 12):
        with pytest.raises(Exception, match=r"Use `\.at\[\.\.\.\]"):
            gradient_on(mesh)
    else:
        gradient_on(mesh)


def test_what_pmap_refuses():
    x = np.ones((2, 2))

    def inner(row):
        return jax.pmap(lambda b: b, axis_name="j")(row)

    with pytest.raises(ValueError, match=r"The context mesh .* should match"):
        jax.pmap(inner, axis_name="i")(x)
    elsewhere = jax.device_put(np.ones((2, 2)), jax.devices()[5])
    with pytest.raises(ValueError, match="Sharding passed to jit does not match"):
        jax.pmap(lambda a: a, devices=jax.devices()[:2])(elsewhere)
