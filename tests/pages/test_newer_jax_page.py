"""docs/newer_jax.md: what it says of JAX is true of the JAX that is installed."""

import contextlib
import inspect
import os
import pkgutil
import re
import warnings
from importlib.metadata import metadata
from pathlib import Path

import flax
import jax
import numpy as np
import optax
import pytest
from flax import jax_utils, linen, nnx
from flax.training import checkpoints
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pmapdp.devices import COLLECTIVES_HOLD_THREADS, simulate
from pmapdp.port.rows import ROWS

simulate(8)  # before the constants below use JAX
OLD_NAMES = (
    "jax.tree_map",
    "jax.device_put_replicated",
    "jax.device_put_sharded",
    "jax.sharding.use_mesh",
    "jax.lax.pvary",
    "jax.experimental.maps",
    "jax.experimental.PartitionSpec",
    "jax.experimental.pjit.pjit",
    "jax.experimental.shard_map",
)
PAGE = (Path(__file__).parents[2] / "docs" / "newer_jax.md").read_text(encoding="utf-8")
MESHES, TRAP, NEW_NAMES, MIXED_STEPS, NNX_STEP = re.findall(
    r"```python\n(.*?)```", PAGE, re.DOTALL
)
NAMES = [  # the names that are gone or warn, from the table of `port`
    (name, row.status, row.shard_map)
    for row in ROWS.values()
    for name in row.names
    if name in OLD_NAMES
]
LISTS = PAGE.partition("\n## No message")[0].partition("\n## Find your")[2]
MESSAGES = re.findall(r"^(?:- |\| )(`+)(.+?) ?\1", LISTS, re.MULTILINE)
VERSION = tuple(map(int, jax.__version__.split(".")[:2]))


def test_the_trap_multiplies_the_gradient_by_the_number_of_devices(capsys):
    names: dict = {}
    exec(TRAP, names)
    assert float(names["too_large"]) == len(jax.devices()) > 1
    assert float(names["correct"]) == float(names["unchecked"]) == 1
    assert capsys.readouterr().out == "8.0 1.0 1.0\n"
    assert "# 8.0 1.0 1.0\n" in TRAP


@pytest.mark.parametrize(("old", "today", "new"), NAMES)
def test_a_name_is_gone_or_warns_and_the_new_one_exists(old, today, new):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        error: tuple = (AttributeError, ImportError)
        if today == "old":
            error = (DeprecationWarning,)
        with pytest.raises(error):
            resolve(old)
        for name in re.findall(r"`(jax\.[\w.]+)", new):
            pkgutil.resolve_name(name)


def resolve(name: str) -> None:
    """Import a name, and call it if it warns only then."""
    module = pkgutil.resolve_name(name.rpartition(".")[0])
    if hasattr(module, "__getattr__"):  # JAX warns once in a process
        module.__getattr__.cache_clear()
    found = pkgutil.resolve_name(name)
    if name.endswith("shard_map"):
        found = found.shard_map
        mesh = Mesh(np.array(jax.devices()), ("data",))
        found(lambda x: x, mesh, in_specs=P(), out_specs=P())
    else:
        found(lambda x: x)


def test_the_lists_and_the_table_are_read_whole():
    assert len(NAMES) == 9
    rows = LISTS.count("\n| ") - 2  # without the head of the table
    assert LISTS.count("\n- ") + rows == len(MESSAGES)


def test_new_names_do_what_the_page_says(capsys):
    exec(NEW_NAMES, {"jax": jax, "x": np.ones(8, np.float32)})
    assert capsys.readouterr().out == "float32[8@data]\n8.0\n"
    mesh = jax.make_mesh((8,), ("data",))
    assert jax.P is P

    def double(x):
        assert jax.sharding.get_abstract_mesh() == mesh.abstract_mesh
        with pytest.raises(ValueError, match=r"outside of `jax\.jit`"):
            jax.sharding.get_mesh()
        return 2 * x

    with jax.set_mesh(mesh):
        assert jax.sharding.get_mesh() == mesh
        split = jax.device_put(np.ones((16, 3), np.float32), P("data"))
        jax.jit(double)(split)
        assert str(jax.typeof(jax.reshard(split, P()))) == "float32[16,3]"
        shapes = []
        jax.smap(
            lambda x: shapes.append(x.shape) or x,
            in_axes=0,
            out_axes=0,
            axis_name="data",
        )(split)
        assert shapes[-1] == (2, 3)
    for name in ("get_mesh", "get_abstract_mesh"):
        (since,) = re.findall(rf"From ([\d.]+) also `jax\.{name}\(\)`", PAGE)
        assert hasattr(jax, name) == (jax.__version_info__ >= version_info(since))
    with pytest.raises(TypeError, match="positional"):
        jax.shard_map(double, mesh, P(), P())


def test_auto_and_explicit_functions_in_one_step(capsys):
    """Explicit axes alone stop at the reading, until it says how to place the rows."""
    names: dict = {"jax": jax, "np": np}
    exec(MIXED_STEPS, names)
    (shown,) = re.findall(r"Both print `(.*?)`", PAGE)
    assert capsys.readouterr().out == f"{shown}\n{shown}\n"
    assert float(names["second"]) == 1
    (reading,) = re.findall(r"by an `out_sharding`: here `(.*?)`\.", PAGE)
    with jax.set_mesh(EXPLICIT):
        indices = jax.device_put(names["indices"], P("data"))
        table = jax.device_put(names["table"], P())
        with pytest.raises(Exception, match=r"\.get\(out_sharding=\)"):
            names["read_rows"](table, indices)
        rows = eval(reading, {"jax": jax, "table": table, "indices": indices})
    assert str(jax.typeof(rows)) == shown


def version_info(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_the_table_from_0_10_to_0_12():
    """In its column of the installed JAX."""
    cells = dict(
        re.findall(r"^\| (\w[^|`]*?) \| (.* \| .* \| .*) \|$", PAGE, re.MULTILINE)
    )
    pythons = cells["Python"].split(" | ")
    column = min(VERSION[1], 12) - 10
    (python,) = re.findall(r"(3\.\d+) or newer", pythons[column])
    assert metadata("jax")["Requires-Python"] == f">={python}"
    parameters = inspect.signature(jax.make_mesh).parameters
    assert ("axis_sizes" in parameters) == (jax.__version_info__ >= (0, 11, 1))
    assert ("axis_shapes" in parameters) == (jax.__version_info__ < (0, 11, 1))
    for name in ("sizes of a mesh, by name", "the mesh that is set"):
        assert "from 0.11.1" in cells[name]
    initialize = inspect.signature(jax.distributed.initialize).parameters
    assert ("mtls_cert_file" in initialize) == (jax.__version_info__ >= (0, 11, 2))
    assert "from 0.11.2" in cells["Open MPI 5, and certificates"]
    assert (VERSION < (0, 12)) == COLLECTIVES_HOLD_THREADS


def test_an_nnx_step_trains_as_on_one_device():
    """Once as printed, once with batch norm, and in the modes of `nnx.jit`."""
    norm = NNX_STEP.replace(
        "nnx.Linear(8, 3, rngs=rngs)",
        "nnx.Sequential(nnx.Linear(8, 3, rngs=rngs), nnx.BatchNorm(3, rngs=rngs))",
    )
    trees, graphs = (
        NNX_STEP.replace("@nnx.jit", f"@nnx.jit({mode}=False)")
        for mode in ("graph", "graph_updates")
    )
    assert NNX_STEP not in (norm, trees, graphs)
    for program in (NNX_STEP, norm, trees, graphs):
        losses = []
        for devices in (jax.devices(), jax.devices()[:1]):
            mesh = jax.make_mesh((len(devices),), ("data",), devices=devices)
            names: dict = {"jax": jax, "np": np, "mesh": mesh}
            exec(program, names)
            losses.append(names["losses"])
        np.testing.assert_allclose(*losses, rtol=1e-4)
        assert losses[0][-1] < 0.5 * losses[0][0]


def test_the_modes_of_nnx_and_shared_layers():
    class Shared(nnx.Module):
        def __init__(self):
            self.first = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
            self.second = self.first

    def add_layer(model):
        model.third = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    def read(model):
        return model.first.kernel[...]

    with pytest.raises(ValueError, match="Duplicate Param"):
        nnx.jit(read, graph=False)(Shared())
    nnx.jit(read, graph_updates=False)(Shared())
    model = Shared()
    nnx.jit(add_layer)(model)
    assert hasattr(model, "third")
    model = Shared()
    with contextlib.suppress(Exception):
        nnx.jit(add_layer, graph_updates=False)(model)
    assert not hasattr(model, "third")


def test_old_and_new_keys_draw_the_same_numbers():
    new, old = jax.random.key(3), jax.random.PRNGKey(3)
    assert (new.shape, old.shape) == ((), (2,))
    draws = [jax.random.normal(key, 4) for key in (new, old)]
    np.testing.assert_array_equal(*draws)
    np.testing.assert_array_equal(jax.random.key_data(new), old)
    assert jax.random.wrap_key_data(old) == new
    draw = jax.pmap(jax.random.normal)
    rows = [draw(jax.random.split(key, 8)) for key in (new, old)]
    np.testing.assert_array_equal(*rows)


def test_shard_map_leaves_the_other_axes_to_the_compiler():
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=auto)

    def add_up(x):
        return lax.psum(x, "data")

    added = jax.shard_map(
        add_up, mesh=mesh, in_specs=P("data"), out_specs=P(), axis_names={"data"}
    )
    np.testing.assert_array_equal(jax.jit(added)(np.arange(8.0)), [12, 16])


def enter(context):
    """Enter a context. A warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with context:
            pass


def test_with_mesh_warns_and_still_works():
    mesh = Mesh(np.array(jax.devices()), ("data",))
    with pytest.warns(DeprecationWarning, match="jax.set_mesh"), mesh:
        pass


def cross_entropy(w, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(x @ w, y).mean()


NOT_JITTED = "Length of device assignment"
HOST_WEIGHTS = np.ones((3, 3), np.float32)


def batch_on(mesh):
    x = np.arange(48, dtype=np.float32).reshape(16, 3) / 48
    return jax.device_put((x, np.arange(16) % 3), NamedSharding(mesh, P("data")))


def gradient_on(mesh):
    """Return a gradient of Optax's cross-entropy, with the batch split over `mesh`."""
    w = jax.device_put(HOST_WEIGHTS, NamedSharding(mesh, P()))
    return np.asarray(jax.jit(jax.grad(cross_entropy))(w, *batch_on(mesh)))


def test_explicit_axes_stop_the_gradient_and_not_the_loss():
    """With weights on the host. `explicit_gradient` has them on the mesh."""
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    jax.jit(cross_entropy)(HOST_WEIGHTS, *batch_on(mesh))
    message = "Contracting dimensions are sharded"
    assert f"`{message}`" in PAGE
    if VERSION >= (0, 11):
        message = re.escape("Use `.at[...]")
    with pytest.raises(Exception, match=message):
        jax.jit(jax.grad(cross_entropy))(HOST_WEIGHTS, *batch_on(mesh))


@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("weights_on_mesh", [True, False])
def test_the_gradient_runs_once_the_mesh_is_set(weights_on_mesh, jitted):
    """It equals the gradient on one device. Not jitted, it stops without the mesh."""
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    assert f"`{NOT_JITTED}" in PAGE
    gradient = jax.grad(cross_entropy)
    x, y = batch_on(mesh)
    expected = gradient(HOST_WEIGHTS, np.asarray(x), np.asarray(y))
    w = HOST_WEIGHTS
    if weights_on_mesh:
        w = jax.device_put(w, NamedSharding(mesh, P()))
    if jitted:
        gradient = jax.jit(gradient)
    else:
        with pytest.raises(ValueError, match=NOT_JITTED):
            gradient(w, x, y)
    with jax.set_mesh(mesh):
        found = gradient(w, x, y)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_meshes_that_work_as_before():
    names: dict = {}
    first, second = re.split(r"\n(?=mesh = jax)", MESHES)
    found = []
    for line in (first, second):
        exec(line, names)
        found.append(gradient_on(names["mesh"]))
    np.testing.assert_array_equal(*found)


MESH = Mesh(np.array(jax.devices()), ("data",))
ROWS = np.ones((8, 2), np.float32)
MODEL = nnx.Linear(2, 2, rngs=nnx.Rngs(0))


def on_mesh(step, **options):
    return jax.shard_map(step, mesh=MESH, in_specs=P("data"), **options)(ROWS)


EXPLICIT = jax.make_mesh((len(jax.devices()),), ("data",))


def on_explicit_mesh(x):
    specs = {"mesh": EXPLICIT, "in_specs": P("data"), "out_specs": P("data")}
    return jax.shard_map(lambda x: x, **specs)(x)


def put(device):
    return jax.device_put(ROWS, device)


def add_up(start, x):
    return lax.scan(lambda total, _: (total + x.sum(), None), start, None, length=2)[0]


def pjit(**arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return jax.experimental.pjit.pjit(lambda x: x, **arguments)


def nested_pmap():
    return jax.pmap(lambda row: jax.pmap(lambda x: x, "j")(row), "i")(ROWS[:2])


def explicit_gradient():
    return gradient_on(jax.make_mesh((len(jax.devices()),), ("data",)))


def set_explicit(step, *arguments):
    with jax.set_mesh(EXPLICIT):
        return step(*arguments)


def gradient_of_step(x):
    """Return the gradient without jit, with the labels and the weights on the mesh."""
    w = jax.device_put(HOST_WEIGHTS, NamedSharding(EXPLICIT, P()))
    return jax.grad(cross_entropy)(w, x, batch_on(EXPLICIT)[1])


def square(**arguments):
    x, _ = batch_on(EXPLICIT)
    return jax.numpy.matmul(x.T, x, **arguments)


def make_layers(container):
    class Layers(nnx.Module):
        def __init__(self):
            self.layers = container([nnx.Linear(2, 2, rngs=nnx.Rngs(0))])

    return Layers()


def average(x):
    return lax.pmean(x.mean(), "data")


def optimizer(**arguments):
    return nnx.Optimizer(MODEL, optax.sgd(0.1), **arguments)


def split_variables(pop):
    """Take the parameters of three layers out of what Linen's `init` returns."""
    network = linen.Sequential([linen.Dense(2), linen.Dense(2), linen.Dense(2)])
    stats, params = pop(network.init(jax.random.key(0), ROWS))
    assert len(params) == 3
    assert "params" not in stats


def init_dense():
    return linen.Dense(2).init(jax.random.key(0), ROWS)


def look_up(placement=None):
    """Read rows of a table at split indices: in a layer, and without one."""
    _, ids = batch_on(EXPLICIT)
    embed = nnx.Embed(3, 2, rngs=nnx.Rngs(0))
    table = jax.numpy.asarray(embed.embedding[...])
    if placement is None:
        return table[ids]
    rows = table.at[ids].get(out_sharding=placement)
    np.testing.assert_array_equal(rows, embed(ids, out_sharding=placement))
    return rows


def save(folder):
    return checkpoints.save_checkpoint(os.path.join(folder, "saved"), {"w": ROWS}, 1)


# A part of the message, what raises it, and the cure.
FAILURES = {
    "Sharding passed to jit": (
        lambda: jax.pmap(lambda x: x)(put(jax.devices()[5])),
        lambda: jax.pmap(lambda x: x)(ROWS),
    ),
    "Received incompatible": (
        lambda: jax.jit(jax.numpy.add)(
            put(jax.devices()[5]), put(NamedSharding(MESH, P()))
        ),
        lambda: jax.jit(jax.numpy.add)(
            put(NamedSharding(MESH, P("data"))), put(NamedSharding(MESH, P()))
        ),
    ),
    "The context mesh": (nested_pmap, None),
    "Unrecognized config": (
        lambda: jax.config.update("jax_pmap_shmap_merge", False),
        None,
    ),
    "can't be statically inferred": (
        lambda: on_mesh(lambda x: x.mean(), out_specs=P()),
        lambda: on_mesh(average, out_specs=P()),
    ),
    "in_specs passed": (
        lambda: on_explicit_mesh(ROWS),
        lambda: on_explicit_mesh(put(NamedSharding(EXPLICIT, P("data")))),
    ),
    "Length of device": (
        lambda: gradient_of_step(batch_on(EXPLICIT)[0]),
        lambda: set_explicit(gradient_of_step, batch_on(EXPLICIT)[0]),
    ),
    "Expected cotangent": (
        lambda: set_explicit(gradient_of_step, np.ones((16, 3), np.float32)),
        lambda: set_explicit(gradient_of_step, batch_on(EXPLICIT)[0]),
    ),
    "Contracting dimensions": (
        lambda: set_explicit(square),
        lambda: set_explicit(lambda: square(out_sharding=P())),
    ),
    "scan body function": (
        lambda: on_mesh(lambda x: add_up(0.0, x)[None], out_specs=P("data")),
        lambda: on_mesh(
            lambda x: add_up(lax.pcast(0.0, "data", to="varying"), x)[None],
            out_specs=P("data"),
        ),
    ),
    "context manager has": (
        lambda: enter(MESH),
        lambda: enter(jax.set_mesh(MESH)),
    ),
    "'check_rep'": (
        lambda: on_mesh(lambda x: x, out_specs=P("data"), check_rep=False),
        lambda: on_mesh(lambda x: x, out_specs=P("data"), check_vma=False),
    ),
    "'in_axis_resources'": (
        lambda: pjit(in_axis_resources=None),
        lambda: pjit(in_shardings=None, out_shardings=None),
    ),
    "`wrt`": (optimizer, lambda: optimizer(wrt=nnx.Param)),
    "`grads`": (
        lambda: optimizer(wrt=nnx.Param).update(nnx.state(MODEL)),
        lambda: optimizer(wrt=nnx.Param).update(MODEL, nnx.state(MODEL)),
    ),
    "Checkpoint path": (lambda: save(""), lambda: save(os.getcwd())),
    ".get(out_sharding=)": (
        lambda: set_explicit(look_up),
        lambda: set_explicit(look_up, P("data")),
    ),
    "Resource axis": (look_up, lambda: set_explicit(look_up, P("data"))),
    "Found data on value": (lambda: make_layers(list), lambda: make_layers(nnx.List)),
    "clip()": (
        lambda: jax.numpy.clip(ROWS, a_min=0, a_max=1),
        lambda: jax.numpy.clip(ROWS, 0, 1),
    ),
    "'unfreeze'": (
        lambda: init_dense().unfreeze(),
        lambda: flax.core.copy(flax.core.unfreeze(init_dense()), {"a": 1}),
    ),
    "too many values to unpack": (
        lambda: split_variables(lambda variables: variables.pop("params")),
        lambda: split_variables(lambda variables: flax.core.pop(variables, "params")),
    ),
}
# On jax 0.10.2 these two run.
FAILURES_OF_0_11 = {
    ".set/add/mul": (
        explicit_gradient,
        lambda: set_explicit(gradient_on, EXPLICIT),
    ),
    "'axis_shapes'": (
        lambda: jax.make_mesh(axis_shapes=(8,), axis_names=("data",)),
        lambda: jax.make_mesh((8,), ("data",)),
    ),
}


def test_every_message_of_the_page_is_raised():
    texts = [text for _, text in MESSAGES]
    for part in [*FAILURES, *FAILURES_OF_0_11]:
        assert len([text for text in texts if part in text]) == 1, part
    assert len(texts) == len(FAILURES) + len(FAILURES_OF_0_11)


@pytest.mark.parametrize("part", [*FAILURES, *FAILURES_OF_0_11])
def test_a_message_is_raised_and_cured(part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fail, cure = {**FAILURES, **FAILURES_OF_0_11}[part]
    if part in FAILURES_OF_0_11 and VERSION < (0, 11):
        fail()
    else:
        (text,) = [text for _, text in MESSAGES if part in text]
        pattern = ".*".join(map(re.escape, re.split(r" ?\.\.\. ?", text)))
        if part in (".get(out_sharding=)", ".set/add/mul"):
            pattern = re.escape(text)
        with pytest.raises(Exception, match=f"(?s){pattern}"):
            fail()
    if cure:
        cure()


def test_shardy_splits_a_step_and_gspmd_can_still_be_asked():
    (setting,) = re.findall(r'config\.update\("(jax_use_\w+)", False\)', PAGE)
    split = put(NamedSharding(MESH, P("data")))

    def lowered():
        return jax.jit(lambda x: x.sum()).lower(split).as_text()

    assert "sdy.sharding" in lowered()
    jax.config.update(setting, False)
    try:
        assert "sdy." not in lowered()
        assert "mhlo.sharding" in lowered()
    finally:
        jax.config.update(setting, True)


def test_weight_norm_trains_its_scales_from_the_version_of_the_page():
    since = re.search(
        r"WeightNorm` has trained its scales since Flax (\d+\.\d+\.\d+)", PAGE
    )
    rngs = nnx.Rngs(0)
    norm = nnx.WeightNorm(nnx.Linear(8, 4, rngs=rngs), rngs=rngs)
    is_trained = "scales" in nnx.state(norm, nnx.Param)
    versions = [flax.__version__, since[1]]
    installed, first = ([int(part) for part in text.split(".")] for text in versions)
    assert is_trained == (installed >= first)


def test_the_first_row_is_read_where_it_lies():
    stacked = jax.pmap(lambda x: 2 * x)(ROWS)
    shard = stacked.addressable_shards[0].data
    np.testing.assert_array_equal(shard[0], stacked[0])
    with jax.transfer_guard("disallow"):
        row = jax_utils.unreplicate(stacked)
    assert row.devices() == {jax.devices()[0]}
    assert stacked[0].devices() == set(jax.devices())


def test_a_mesh_of_make_mesh_is_explicit():
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    assert mesh.axis_types == (jax.sharding.AxisType.Explicit,)
