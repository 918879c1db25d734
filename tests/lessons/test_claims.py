"""The claims of the lessons about JAX that no cell shows."""

import json
import re
import signal
import time

import build
import flax
import jax
import jax.numpy as jnp
import nbformat
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from launch import python
from notebooks import built, figures, printed

from pmapdp.lessons.programs import dtypes, gpt2, patch
from pmapdp.lessons.programs import launch as launch_processes
from pmapdp.port.__main__ import report_program

TOO_LATE = """
import os, jax
print(jax.device_count())  # JAX starts here
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
print(jax.device_count())
jax.config.update("jax_num_cpu_devices", 8)
"""


def test_of_two_ways_to_ask_for_devices_too_late_only_one_raises_an_error():
    """Lesson 00."""
    run = python("-c", TOO_LATE)
    assert run.stdout.split() == ["1", "1"]
    assert "RuntimeError: jax_num_cpu_devices config should be updated" in run.stderr


def test_pmap_copies_a_committed_array_silently_and_the_guard_refuses_it():
    """Lesson 04."""
    split = NamedSharding(
        jax.sharding.Mesh(jax.devices()[:8], ("data",)), PartitionSpec("data")
    )
    rows, on_5 = (
        jax.device_put(np.ones((8, 3)), split),
        jax.device_put(np.ones(3), jax.devices()[5]),
    )
    mapped = jax.pmap(jnp.vdot, in_axes=(None, 0))
    assert len(mapped(on_5, rows).devices()) == 8
    with (
        jax.transfer_guard("disallow"),
        pytest.raises(jax.errors.JaxRuntimeError, match="device-to-device"),
    ):
        mapped(on_5, rows)


def test_a_function_of_older_tutorials_is_gone():
    """Lesson 04."""
    assert not hasattr(jax, "device_put_replicated")


def test_the_variance_of_large_numbers_in_one_pass_comes_out_negative():
    """Lesson 07: so its root is NaN, unless the variance is at least 0."""
    random = np.random.default_rng(0)
    batches = jnp.asarray(20_000 + random.normal(size=(20, 32)), jnp.float32)
    variances = (batches**2).mean(1) - batches.mean(1) ** 2
    assert (variances < -1e-5).any()
    assert np.isnan(jnp.sqrt(variances + 1e-5)).any()


@pytest.mark.parametrize(("in_one_pass", "is_close"), [(True, False), (False, True)])
def test_the_batch_norm_of_flax_loses_the_variance_of_large_numbers(
    in_one_pass, is_close
):
    """Lesson 07: `E[x^2] - E[x]^2`, which is Flax's default. The variance is 1."""
    large = 20_000 + np.random.default_rng(0).normal(size=(1024, 1))
    layer = nnx.BatchNorm(
        1, momentum=0.0, use_fast_variance=in_one_pass, rngs=nnx.Rngs(0)
    )
    layer(large.astype(np.float32), use_running_average=False)
    assert (0.8 < layer.var[0] < 1.2) == is_close


def test_the_variance_of_large_numbers_is_close_once_the_running_mean_is():
    """Lesson 07: its layer subtracts the running mean before it squares."""
    large = 20_000 + np.random.default_rng(0).normal(size=(1024, 1))
    large = large.astype(np.float32)
    running_mean = 0.0
    errors = []
    for _ in range(60):
        moved = large - np.float32(running_mean)
        variance = np.square(moved).mean() - np.square(moved.mean())
        errors.append(abs(variance / large.var() - 1))
        running_mean = 0.9 * running_mean + 0.1 * large.mean()
    assert max(errors[:5]) > 0.9
    assert max(errors[40:]) < 0.2


@pytest.mark.nightly
def test_a_batch_that_three_devices_cannot_share_stops_the_program(tmp_path):
    """Lesson 05 shows NumPy's error, and a line whose error is plainer."""
    lesson = build.source_of("05").read_text()
    program = (build.FOLDER / "program" / "05_pmap.py").read_text()
    on_three = program.replace('jax_num_cpu_devices", 8', 'jax_num_cpu_devices", 3')
    mesh = 'mesh = Mesh(jax.devices(), ("data",))\n'
    (line,) = re.findall(r"^# (assert B % .*\n)", lesson, re.MULTILINE)
    messages = []
    for text in (on_three, on_three.replace(mesh, mesh + line)):
        path = tmp_path / "on_three.py"
        path.write_text(text)
        messages.append(python(path).stderr.splitlines()[-1])
    reshape, sentence = messages
    assert reshape in lesson.replace("\n# ", " ")
    assert sentence == "AssertionError: B = 128 is not divisible by 3 devices"


@pytest.mark.nightly
@pytest.mark.parametrize("script", ["13_accumulate", "20_fit"])
def test_micro_batches_that_cut_no_device_evenly_stop_the_program(script, tmp_path):
    """Lessons 13 and 20: an `assert` names K, and the error of the reshape doesn't."""
    program = (build.FOLDER / "program" / f"{script}.py").read_text()
    three = program.replace("K = 4  #", "K = 3  #")
    lines = [line for line in three.splitlines() if not line.startswith("assert")]
    messages = []
    for text in (three, "\n".join(lines)):
        path = tmp_path / "three.py"
        path.write_text(text)
        messages.append(python(path).stderr)
    sentence, reshape = messages
    expected = "AssertionError: B = 128 is not divisible by K = 3 x 8 devices"
    assert sentence.splitlines()[-1] == expected
    assert "TypeError: cannot reshape array of shape (16, 64)" in reshape
    assert "K = " not in reshape.splitlines()[-1]


@pytest.mark.slow
def test_the_losses_show_a_missing_cast_with_sgd_and_not_with_adam(tmp_path):
    """Lesson 13: Adam and SGD, each with and without the cast."""
    program = build.program("13_accumulate.py")
    (cast,) = re.findall(r".*lax\.pcast\(.*\n", program)
    sgd = program.replace("optax.adam(3e-3)", "optax.sgd(0.1)")
    results = []
    for text in (program, program.replace(cast, ""), sgd, sgd.replace(cast, "")):
        path = tmp_path / "program.py"
        path.write_text(text)
        results.append(figures(python(path).stdout))
    adam, adam_uncast, sgd, sgd_uncast = results
    np.testing.assert_allclose(adam_uncast, adam, atol=5e-4)
    np.testing.assert_allclose(sgd[1, -1], 0.827, atol=0.02)
    np.testing.assert_allclose(sgd_uncast[1, -1], 0.439, atol=0.1)


@pytest.mark.slow
def test_the_loop_of_lesson_13_goes_into_the_step_of_lesson_05(tmp_path):
    """It adds four micro-batches, and has the figures of lesson 05."""
    lesson = build.source_of("13")
    texts = [cell.source for cell in built(lesson).cells]
    (text,) = [text for text in texts if "**With pmap**" in text]
    difference = re.search(r"```diff\n(.*?)```", text, re.DOTALL)[1]
    (after,) = re.findall(r"^ (.*)$", difference, re.MULTILINE)
    program = build.program("05_pmap.py")
    assert f"{after}\n" in program
    path = tmp_path / "program.py"
    path.write_text(program)
    whole = figures(python(path).stdout)
    path.write_text(f"import jax.numpy as jnp\nK = 4\n{program}")
    patch.apply(path, difference)
    np.testing.assert_allclose(figures(python(path).stdout), whole, atol=1e-3)


def test_under_jit_the_batch_norm_of_flax_uses_the_global_batch():
    """Lesson 07: without an axis name; a ragged batch needs the mask."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))
    x, valid = np.arange(8, dtype=np.float32)[:, None] ** 2, np.arange(8) < 5

    def moments(x, valid):
        layer = nnx.BatchNorm(1, momentum=0.0, rngs=nnx.Rngs(0))
        layer(x, use_running_average=False, mask=valid[:, None])
        return layer.mean[0], layer.var[0]

    found = jax.jit(moments, in_shardings=NamedSharding(mesh, PartitionSpec("data")))(
        x, valid
    )
    np.testing.assert_allclose(found, (x[valid].mean(), x[valid].var()), rtol=1e-5)


def test_inside_pmap_the_batch_norm_of_flax_is_exact_if_devices_have_equal_counts():
    """Lesson 07: with an axis name."""
    x = np.arange(8, dtype=np.float32).reshape(4, 2, 1) ** 2

    def moments(x):
        layer = nnx.BatchNorm(1, axis_name="data", momentum=0.0, rngs=nnx.Rngs(0))
        layer(x, use_running_average=False)
        return layer.mean[0], layer.var[0]

    means, variances = jax.pmap(moments, axis_name="data")(x)
    np.testing.assert_allclose(means, x.mean(), rtol=1e-5)
    np.testing.assert_allclose(variances, x.var(), rtol=1e-5)


def test_inside_pmap_all_devices_draw_the_same_mask_of_the_dropout_of_flax():
    """Lesson 08."""
    structure, state = nnx.split(nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
    dropped = jax.pmap(lambda x: nnx.merge(structure, state, copy=True)(x))(
        np.ones((4, 3, 12), np.float32)
    )
    assert (dropped == 0).any()
    assert (dropped == dropped[0]).all()


def test_a_recurrent_layer_passes_the_check_if_its_start_is_cast():
    """Lesson 10: the box on why pmapdp turns the check off."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))
    specs = {"in_specs": PartitionSpec("data"), "out_specs": PartitionSpec("data")}
    rngs = nnx.Rngs(0)
    layer = nnx.RNN(nnx.GRUCell(4, 4, rngs=rngs), rngs=rngs)
    structure, state = nnx.split(layer)
    rows = np.ones((8, 5, 4), np.float32)

    def start_from_zeros(x):
        return nnx.merge(structure, state, copy=True)(x)

    def cast_start(x):
        zeros = jnp.zeros((len(x), 4))
        varying = jax.lax.pcast(zeros, "data", to="varying")
        return nnx.merge(structure, state, copy=True)(x, initial_carry=varying)

    with pytest.raises(TypeError, match="must have equal types"):
        jax.shard_map(start_from_zeros, mesh=mesh, **specs)(rows)
    found = jax.shard_map(cast_start, mesh=mesh, **specs)(rows)
    np.testing.assert_allclose(found, layer(rows), atol=1e-6)


def test_jax_traces_once_for_each_type():
    """Lesson 02: a Python number is of another type than an array."""
    types = []
    double = jax.jit(lambda x: types.append(type(x)) or 2 * x)
    for number in (1.0, 2.0, jnp.float32(3), jnp.float32(4), 1, 2):
        double(number)
    assert len(types) == 3


def test_grad_and_vmap_run_the_python_function_in_every_call():
    """Lesson 02."""
    calls = []

    def double(x):
        calls.append(x)
        return 2 * x

    for transformed, x in ((jax.grad(double), 1.0), (jax.vmap(double), jnp.ones(2))):
        calls.clear()
        for _ in range(3):
            transformed(x)
        assert len(calls) == 3


def test_only_under_grad_a_tracer_has_a_value():
    """Lesson 02: so `grad` alone takes an `if`, and `vmap` doesn't, nor does `jit`."""

    def python_if(x):
        return 1.0 if x > 1 else x

    assert jax.grad(python_if)(3.0) == 0
    assert jax.grad(python_if)(0.0) == 1
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.vmap(python_if)(jnp.ones(3))
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(jax.grad(python_if))(3.0)


def test_the_branch_that_where_does_not_pick_can_spoil_the_gradient():
    """Lesson 02."""

    def root(x):
        return jnp.where(x > 0, jnp.sqrt(x), 0.0)

    def guarded_root(x):
        return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0)

    assert jnp.isnan(jax.grad(root)(0.0))
    assert jax.grad(guarded_root)(0.0) == 0
    assert jax.grad(guarded_root)(4.0) == 0.25


def test_the_check_of_reused_keys_misses_equal_keys():
    """Lesson 02."""
    with jax.debug_key_reuse(True):
        key = jax.random.key(0)
        split = jax.random.normal(jax.random.split(key)[0])
        folded = jax.random.normal(jax.random.fold_in(key, 0))
        with pytest.raises(jax.errors.KeyReuseError):
            jax.random.normal(key)
    assert split == folded


def test_the_check_of_reused_keys_finds_two_draws_but_not_fold_in_before_split():
    """Lesson 02."""

    def fold_and_split(key):
        return jax.random.fold_in(key, 0), jax.random.split(key)

    def draw_twice(key):
        return jax.random.normal(key) + jax.random.normal(key)

    key = jax.random.key(0)
    with jax.debug_key_reuse(True):
        jax.jit(fold_and_split)(key)
        with pytest.raises(jax.errors.KeyReuseError):
            jax.jit(draw_twice)(key)


def test_grad_of_a_module_takes_averages_for_parameters_and_refuses_keys():
    """Lesson 03: of batch norm and of dropout."""

    class Network(nnx.Module):
        def __init__(self, layer):
            self.layer = layer

        def __call__(self, inputs):
            return self.layer(inputs)

    inputs = jnp.ones((4, 3))
    gradient = jax.grad(lambda network: network(inputs).sum())
    network = Network(nnx.BatchNorm(3, rngs=nnx.Rngs(0)))
    batch_norm = gradient(network)
    assert (batch_norm.layer.mean[...] == 0).all()
    assert (batch_norm.layer.var[...] == 0).all()
    optimizer = optax.adam(0.1)
    updates, _ = optimizer.update(batch_norm, optimizer.init(network), network)
    network = optax.apply_updates(network, updates)
    assert (network.layer.mean[...] == 0).all()  # as they began
    assert (network.layer.var[...] == 1).all()
    with pytest.raises(TypeError, match="uint32"):
        gradient(Network(nnx.Dropout(0.5, rngs=nnx.Rngs(0))))


def test_a_list_of_layers_must_be_an_nnx_list():
    """Lesson 03."""
    layers = [nnx.Linear(3, 3, rngs=nnx.Rngs(0))]

    class Network(nnx.Module):
        def __init__(self, layers):
            self.layers = layers

    with pytest.raises(ValueError, match="static attribute"):
        Network(layers)
    assert len(jax.tree.leaves(Network(nnx.List(layers)))) == 2


def test_jax_returns_before_a_result_is_computed():
    """Lesson 02: so its cell waits before it reads the clock."""
    square = jnp.ones((2000, 2000))
    product = jax.jit(jnp.matmul)
    product(square, square).block_until_ready()  # compiled
    start = time.perf_counter()
    unfinished = product(square, square)
    launch_seconds = time.perf_counter() - start
    unfinished.block_until_ready()
    assert launch_seconds < time.perf_counter() - start


def test_numpy_draws_once_while_jax_traces():
    """Lesson 02."""
    random = np.random.default_rng(0)
    add_noise = jax.jit(lambda x: x + random.normal())
    assert add_noise(0.0) == add_noise(0.0)


def test_keys_made_by_split_and_by_fold_in():
    """Lesson 02: they're new keys, and split's first is fold_in's."""
    key = jax.random.key(0)
    first = jax.random.split(key)[0]
    assert first == jax.random.fold_in(key, 0)
    numbers = {
        float(jax.random.normal(new_key))
        for new_key in (key, first, jax.random.fold_in(key, 7))
    }
    assert len(numbers) == 3


def test_tree_map_pairs_the_leaves_of_two_pytrees():
    """Lesson 02 gives this example."""
    model = {"W": 5, "b": 1}
    gradient = {"W": 10, "b": 20}
    stepped = jax.tree.map(lambda w, g: w - 0.1 * g, model, gradient)
    assert stepped == {"W": 4.0, "b": -1.0}


def test_jax_makes_float32_of_float64_and_never_changes_an_array():
    """Lesson 02 names the first, and lesson 03 the second."""
    numbers = jnp.zeros(3)
    assert numbers.dtype == jnp.asarray(np.zeros(3)).dtype == jnp.float32
    with pytest.raises(TypeError, match="immutable"):
        numbers[1] = 10


def test_debug_nans_names_the_operation_that_made_the_first_nan():
    """Lesson 02: under jit it does, and under pmap it doesn't.

    log(0) is no NaN, 0 times minus infinity is one.
    """

    def entropy(p):
        return -(p * jnp.log(p)).sum()

    p = np.array([1, 0], np.float32)
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="mul"):
        jax.jit(entropy)(p)
    under_pmap = r"Invalid value \(nan\) encountered in sharded computation\.(\n|$)"
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=under_pmap):
        jax.pmap(entropy)(np.tile(p, (8, 1)))


def test_zero_that_gathers_everything_first_is_worse_than_none_with_plain_sgd():
    """Lesson 16 shows it with Adam, where it still saves something."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    replicated, columns = (
        NamedSharding(mesh, PartitionSpec()),
        NamedSharding(mesh, PartitionSpec(None, "data")),
    )
    rows, W = (
        NamedSharding(mesh, PartitionSpec("data")),
        jax.ShapeDtypeStruct((16, 512, 512), np.float32),
    )

    def peak(place):
        def loss(W, x):
            W = jax.lax.with_sharding_constraint(W, replicated)
            return jnp.square(
                jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, W)[0]
            ).mean()

        step = jax.jit(
            lambda W, x: W - 0.1 * jax.grad(loss)(W, x),
            in_shardings=(place, rows),
            out_shardings=place,
            donate_argnums=0,
        )
        plan = (
            step.lower(W, jax.ShapeDtypeStruct((64, 512), np.float32))
            .compile()
            .memory_analysis()
        )
        return plan.argument_size_in_bytes + plan.temp_size_in_bytes

    assert peak(columns) > 1.2 * peak(replicated)


def test_a_checkpoint_of_eight_devices_comes_back_in_the_shards_of_four(tmp_path):
    """Lesson 16: with lesson 14's lines."""
    import orbax.checkpoint as ocp

    saved = np.arange(2_048, dtype=np.float32).reshape(64, 32)
    eight, four = (
        NamedSharding(
            jax.sharding.Mesh(np.array(jax.devices()[:count]), ("data",)),
            PartitionSpec("data"),
        )
        for count in (8, 4)
    )
    with ocp.CheckpointManager(tmp_path) as checkpoints:
        state = {"kernel": jax.device_put(saved, eight)}
        checkpoints.save(0, args=ocp.args.StandardSave(state))
        checkpoints.wait_until_finished()
        today = {"kernel": jax.device_put(np.zeros_like(saved), four)}
        restored = checkpoints.restore(0, args=ocp.args.StandardRestore(today))
    assert restored["kernel"].sharding == four
    shapes = {shard.data.shape for shard in restored["kernel"].addressable_shards}
    assert shapes == {(16, 32)}
    np.testing.assert_array_equal(restored["kernel"], saved)


def test_masks_differ_from_those_before_jax_0_5():
    """The page on porting: `jax_threefry_partitionable` was False then."""
    key, masks = jax.random.key(0), []
    for partitionable in (False, True):
        with jax.threefry_partitionable(partitionable):
            masks.append(np.asarray(jax.random.bernoulli(key, 0.5, (8, 12))))
    assert (masks[0] != masks[1]).any()


def test_the_times_that_lesson_06_shows_are_flat_and_then_grow():
    """In the stored notebook. A reader's times depend on what else runs there."""
    text = "".join(
        printed(cell)
        for cell in built(build.source_of("06")).cells
        if "outputs" in cell
    )
    rows = re.findall(r"simulated devices, +([\d,]+) bytes: ([\d.]+) ms", text)
    milliseconds = {int(size.replace(",", "")): float(time) for size, time in rows}
    assert list(milliseconds) == [10**power for power in range(3, 8)]
    for size in (10**4, 10**5):
        assert milliseconds[10**3] < 2 * milliseconds[size]  # no outlier
    assert milliseconds[10**6] < 100 * milliseconds[10**3]
    assert milliseconds[10**7] > 2 * milliseconds[10**6]


WAITS = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
def step(x):
    is_first = jax.lax.axis_index("data") == 0
    return jax.lax.cond(is_first, lambda: jax.lax.psum(x, "data"), lambda: x)
print(jax.pmap(step, axis_name="data")(jax.numpy.ones((2, 3))))
"""


@pytest.mark.slow
def test_a_device_waits_for_those_that_never_reach_the_collective():
    """Lesson 06: until XLA aborts the process, here after 2 s."""
    stuck = "--xla_cpu_collective_call_warn_stuck_timeout_seconds=1"
    run = python(
        "-c",
        WAITS,
        env={
            "XLA_FLAGS": f"{stuck} "
            "--xla_cpu_collective_call_terminate_timeout_seconds=2"
        },
    )
    assert run.returncode == -signal.SIGABRT
    assert "Expected 2 threads to join the rendezvous" in run.stderr
    assert run.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["Linear", "Conv", "BatchNorm", "LayerNorm", "Dropout", "max_pool", "attention"],
)
def test_layers_that_work_unchanged_with_explicit_axes(name):
    """Lesson 11: forward and backward, with eight examples on four devices."""
    rngs = nnx.Rngs(0)
    layers = {
        "Linear": nnx.Linear(4, 4, rngs=rngs),
        "Conv": nnx.Conv(4, 4, (3, 3), rngs=rngs),
        "BatchNorm": nnx.BatchNorm(4, use_running_average=False, rngs=rngs),
        "LayerNorm": nnx.LayerNorm(4, rngs=rngs),
        "Dropout": nnx.Dropout(0.5, rngs=rngs),
        "max_pool": lambda x: nnx.max_pool(x, (2, 2), (2, 2)),
        "attention": nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs),
    }
    layer = nnx.Sequential(layers[name])
    x = np.ones((8, 6, 4) if name == "attention" else (8, 6, 6, 4), np.float32)
    with jax.set_mesh(jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])):
        x = jax.device_put(x, jax.P("data"))
        assert jax.typeof(layer(x)).sharding.spec[0] == "data"
        differentiate = nnx.grad(lambda layer, x: jnp.square(layer(x)).sum(), argnums=1)
        gradient = differentiate(layer, x)
        assert jax.typeof(gradient) == jax.typeof(x)


def test_an_explicit_axis_refuses_the_cut_that_an_auto_axis_lets_pass():
    """Lessons 11 and 13: the global batch, cut into four."""
    rows, devices = np.ones((128, 4), np.float32), np.array(jax.devices()[:8])
    auto = NamedSharding(jax.sharding.Mesh(devices, ("data",)), jax.P("data"))
    cut = jax.jit(lambda x: x.reshape(4, -1, 4), in_shardings=auto)
    assert cut(rows).shape == (4, 32, 4)
    with jax.set_mesh(jax.make_mesh((8,), ("data",), devices=devices)):
        split_rows = jax.device_put(rows, jax.P("data"))
        with pytest.raises(Exception, match="reshape is not supported") as refusal:
            split_rows.reshape(4, -1, 4)
        assert refusal.typename == "ShardingTypeError"
        assert split_rows.reshape(-1, 4, 4).swapaxes(0, 1).shape == (4, 32, 4)


@pytest.mark.slow
def test_an_embedding_asks_how_to_split_its_rows_and_auto_axes_answers():
    """Lesson 11."""
    with jax.set_mesh(jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])):
        embed = nnx.Embed(10, 8, rngs=nnx.Rngs(0))
        tokens = jax.device_put(np.ones((16, 5), np.int32), jax.P("data"))
        with pytest.raises(Exception, match="out_sharding") as refusal:
            embed(tokens)
        assert refusal.typename == "ShardingTypeError"
        expected = embed(tokens, out_sharding=jax.P("data"))
        call_layer = jax.sharding.auto_axes(
            lambda layer, x: layer(x), out_sharding=jax.P("data")
        )
        found = call_layer(embed, tokens)
        assert jax.typeof(found) == jax.typeof(expected)
        np.testing.assert_array_equal(found, expected)
        closure = jax.sharding.auto_axes(lambda x: embed(x), out_sharding=jax.P("data"))
        with pytest.raises(ValueError, match=r"context mesh .* should match"):
            closure(tokens)


UPDATE_ONCE = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", 8)
models, work = [], []
for path in sys.argv[1:]:
    program, _, _ = open(path).read().partition("for epoch")
    names = {}
    exec(program.replace('jax.config.update("jax_num_cpu_devices", 8)', ""), names)
    batch = next(names["batches"](*names["train_data"], seed=0))
    arguments = names["state"], names["place_batch"](batch)
    step = names["train_step"].lower(*arguments).compile()
    (model, _), _ = step(*arguments)
    models.append(jax.device_get(jax.tree.leaves(model)))
    work.append(step.cost_analysis()["flops"])
errors = [abs(a - b).max() for a, b in zip(*models, strict=True)]
print(max(errors), work[1] / work[0])
"""


@pytest.mark.nightly
def test_explicit_axes_change_neither_the_update_nor_the_work():
    """Lesson 11: the model within 1e-6, and the operations of a device within 2 %."""
    folder = build.FOLDER / "program"
    scripts = (folder / "09_jit.py", folder / "11_explicit.py")
    run = python("-c", UPDATE_ONCE, *map(str, scripts))
    assert run.returncode == 0, run.stderr
    error, ratio = run.stdout.split()[-2:]
    assert float(error) < 1e-6
    np.testing.assert_allclose(float(ratio), 1, rtol=0.02)


@pytest.mark.nightly
def test_the_code_below_lesson_07s_table_prints_its_rows(tmp_path, monkeypatch):
    """16 examples per device are enough for local batch norm, and 2 aren't.

    And the lesson's next cell, with its asserts, still runs.
    """
    lesson = build.source_of("07")
    notebook = build.read(lesson)
    (text,) = [
        cell.source for cell in notebook.cells if "code of this table" in cell.source
    ]
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    table = nbformat.v4.new_code_cell(code)
    (proof,) = [
        number
        for number, cell in enumerate(notebook.cells)
        if build.PROOF in cell.metadata.get("tags", [])
    ]
    notebook.cells.insert(proof, table)
    monkeypatch.setattr(build, "read", lambda lesson: notebook)
    build.execute(lesson, tmp_path)
    accuracies = re.findall(r"\d\.\d+", printed(table))
    found = np.array(accuracies, float).reshape(2, 2, 3)  # [B, layer, copies]
    synchronized, local = found.swapaxes(0, 1)
    rows = re.findall(
        r"^\| \d+ \| \d+ \| (0.*) \| (0.*) to (0.*) \| (0.*) \|$", text, re.M
    )
    ((expected, *expected_local),) = np.array(rows, float)
    (few,) = re.findall(
        r"^\| 16 \| 2 \| (0.*) \| about 0.7 \| about 0.7 \|$", text, re.M
    )
    # Processors round differently, which moves some of the 1,000 test examples.
    np.testing.assert_allclose(synchronized[0], expected, atol=0.01)
    np.testing.assert_allclose(synchronized[1], float(few), atol=0.01)
    np.testing.assert_allclose(local[0], expected_local, atol=0.01)
    assert 0.6 < local[1].min() < local[1].max() < 0.8
    assert np.ptp(synchronized, axis=1).max() == 0
    assert np.ptp(local, axis=1).min() > 0.003


WAIT_ALONE = """
import inspect, jax
parameters = inspect.signature(jax.distributed.initialize).parameters
print(parameters["initialization_timeout"].default)
jax.distributed.initialize("127.0.0.1:PORT", 2, 0, initialization_timeout=2)
print("connected")
"""


@pytest.mark.nightly
def test_a_process_that_nobody_joins_ends_with_an_error_after_five_minutes():
    """Lesson 17: here after two seconds."""
    run = python("-c", WAIT_ALONE.replace("PORT", str(launch_processes.free_port())))
    assert run.stdout.split() == ["300"]
    assert run.returncode != 0
    assert "DEADLINE_EXCEEDED" in run.stderr


CONNECT_TWICE = """
import jax
jax.distributed.initialize()
print("without arguments:", jax.config.read("jax_cuda_visible_devices"))
jax.distributed.shutdown()
jax.distributed.initialize(local_device_ids=range(8))
print("by number:", jax.config.read("jax_cuda_visible_devices"))
"""


@pytest.mark.slow
def test_under_slurm_a_single_task_gets_one_gpu_unless_it_names_them():
    """Lesson 17."""
    slurm = {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": "1",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "JAX_COORDINATOR_PORT": str(launch_processes.free_port()),
    }
    started = launch_processes.start(1, "-c", CONNECT_TWICE, **slurm)
    (lines,) = launch_processes.outputs(started)
    assert lines == ["without arguments: 0", "by number: 0,1,2,3,4,5,6,7"]


def test_port_lists_the_row_of_the_loss_and_the_row_of_the_accuracies():
    """Lesson 12."""
    lines = report_program(str(build.FOLDER / "program" / "12_old_pmap.py"))["lines"]
    rows = [line["code"] for line in lines if line["construct"] == "first-copy"]
    accuracies = "p_eval_step(state, common_utils.shard(batch))[0]"
    assert rows == [accuracies, "metrics['loss'][0]"]


def test_what_gpt2_needs_for_its_parameters_and_activations():
    """Lesson 20: its notebook asserts how much bfloat16 saves."""
    assert round(124.4e6 * 16 / 1e9, 1) == 2.0  # parameters, gradients, two moments
    assert round(12 * 1024 * 768 * 4 / 1e6) == 38  # the blocks' inputs
    gigabytes = gpt2.kept_bytes(jnp.float32).total() / 1e9
    assert 12 * 0.2 < gigabytes < 12 * 0.22
    # Of each block, the scores without and with their softmax.
    attention = 2 * 12 * 12 * 1024 * 1024 * 4 / 1e9
    assert 0.4 < attention / gigabytes < 0.6


@pytest.mark.parametrize("function", [jnp.sum, jnp.mean, jax.nn.softmax])
def test_sums_of_bfloat16_are_in_float32(function):
    """Lesson 20."""
    program = str(jax.make_jaxpr(function)(jnp.ones(4096, jnp.bfloat16)))
    (line,) = (line for line in program.splitlines() if " reduce_sum[" in line)
    assert ":f32[]" in line
    assert function(jnp.ones(4096, jnp.bfloat16)).dtype == jnp.bfloat16


def test_a_loss_of_optax_in_bfloat16_is_rounded_only_at_its_end():
    """Lesson 20: 8.3125 in place of 8.3178."""
    logits = jnp.zeros((1, 4096), jnp.bfloat16)
    labels = np.zeros(1, int)
    loss = optax.softmax_cross_entropy_with_integer_labels
    assert loss(logits, labels) == 8.3125
    assert round(float(loss(logits.astype(jnp.float32), labels)[0]), 4) == 8.3178


def test_the_plan_for_cpus_in_bfloat16_is_larger_before_jax_0_12():
    """Lesson 20."""
    gradient = jax.jit(jax.grad(gpt2.make_loss(gpt2.block)))
    planned = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        compiled = gradient.lower(gpt2.WEIGHTS, gpt2.sequence(dtype)).compile()
        planned[dtype] = compiled.memory_analysis().temp_size_in_bytes
    is_larger = planned[jnp.bfloat16] > planned[jnp.float32]
    assert is_larger == (jax.__version__ < "0.12")


@pytest.mark.parametrize(("rate", "moves"), [(3e-4, False), (3e-3, True)])
def test_large_weights_in_bfloat16_move_at_the_rate_of_the_program(
    rate, moves, monkeypatch
):
    """Lesson 20."""
    monkeypatch.setattr(dtypes, "LEARNING_RATE", rate)
    losses = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        curve, first_model, last_model = dtypes.train(HalfPrecision, dtype, dtype)
        losses[dtype] = np.mean(curve[-20:])
    first, last = first_model.hidden.kernel[...], last_model.hidden.kernel[...]
    is_large = np.abs(first) > 1 / 8
    share = (first != last)[is_large].mean()
    assert share > 0.95 if moves else share == 0
    ratio = losses[jnp.bfloat16] / losses[jnp.float32]
    assert ratio < 1.1 if moves else ratio > 1.3


@pytest.mark.parametrize("wrapper", [lambda layer: layer, jax.checkpoint])
def test_a_layer_that_communicates_does_so_again_when_it_is_recomputed(wrapper):
    """Lesson 20: batch norm with two pmeans in each of three layers, under pmap."""

    def normalized_layer(x, w):
        x = x @ w
        mean = lax.pmean(x.mean(0), "batch")
        variance = lax.pmean(jnp.square(x - mean).mean(0), "batch")
        return jnp.tanh((x - mean) * lax.rsqrt(variance + 1e-5))

    def loss(weights, x):
        for w in weights:
            x = wrapper(normalized_layer)(x, w)
        return jnp.square(x).sum()

    random = np.random.default_rng(0)
    weights = random.normal(size=(3, 16, 16)).astype(np.float32)
    x = random.normal(size=(8, 4, 16)).astype(np.float32)
    gradient = jax.pmap(jax.grad(loss), axis_name="batch", in_axes=(None, 0))
    text = gradient.lower(weights, x).compile().as_text()
    all_reduces = text.count(" all-reduce(")
    if wrapper is jax.checkpoint:
        assert all_reduces > 12
    else:
        assert all_reduces == 12


def test_the_ranges_and_steps_of_two_byte_numbers():
    """Lesson 20."""
    assert f"{jnp.finfo(jnp.float16).tiny:.0e}" == "6e-05"  # the last with all its bits
    assert f"{jnp.finfo(jnp.float16).smallest_subnormal:.0e}" == "6e-08"
    assert np.float16(3e-8) > 0
    assert np.float16(2.9e-8) == 0
    assert f"{jnp.finfo(jnp.bfloat16).tiny:.0e}" == "1e-38"
    for number, step in ((1, 1 / 128), (1 / 8, 1 / 1024), (1 / 32, 1 / 4096)):
        following = jnp.nextafter(jnp.bfloat16(number), jnp.bfloat16(2))
        assert float(following) - number == step


class HalfPrecision(nnx.Module):
    """The network of lesson 20's program."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 32, dtype=jnp.bfloat16, rngs=rngs)
        self.output = nnx.Linear(32, 10, dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, inputs):
        hidden = nnx.remat(lambda layer, x: nnx.relu(layer(x)))(self.hidden, inputs)
        return self.output(hidden).astype(jnp.float32)


def test_gradients_of_bfloat16_layers_are_float32_and_the_hidden_layer_is_recomputed():
    """Lesson 20."""
    model = HalfPrecision(nnx.Rngs(0))
    inputs = np.random.default_rng(0).normal(size=(128, 64)).astype(np.float32)

    def loss(model):
        return jnp.square(model(inputs)).sum()

    for gradient in jax.tree.leaves(jax.grad(loss)(model)):
        assert gradient.dtype == jnp.float32
        assert (gradient == gradient.astype(jnp.bfloat16)).all()  # rounded before
    _, backward = jax.vjp(loss, model)
    shapes = [leaf.shape for leaf in jax.tree.leaves(backward)]
    assert shapes.count((128, 32)) == 1  # of the hidden layer only its result


@pytest.mark.parametrize(
    ("recompute", "keeps_state"), [(nnx.remat, True), (jax.checkpoint, False)]
)
def test_remat_keeps_the_state_of_a_layer_and_checkpoint_drops_it(
    recompute, keeps_state
):
    """Lesson 20."""
    inputs = np.random.default_rng(0).normal(size=(128, 64)).astype(np.float32)
    norm = nnx.BatchNorm(64, rngs=nnx.Rngs(0))
    dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    call = recompute(lambda layer, x: layer(x))
    call(norm, inputs)
    assert norm.mean[...].any() == keeps_state
    masks_differ = (call(dropout, inputs) != call(dropout, inputs)).any()
    assert masks_differ == keeps_state


@pytest.mark.parametrize(
    ("make_layer", "is_refused"),
    [
        (lambda: nnx.Linear(4, 4, rngs=nnx.Rngs(0)), False),
        (lambda: nnx.BatchNorm(4, rngs=nnx.Rngs(0)), True),
        (lambda: nnx.Dropout(0.5, rngs=nnx.Rngs(0)), True),
    ],
)
def test_checkpoint_refuses_only_a_layer_that_changes_itself(make_layer, is_refused):
    """Lesson 20: if it doesn't get the layer as an argument."""
    layer = make_layer()
    inputs = np.ones((8, 4), np.float32)

    def loss(layer):
        return jax.checkpoint(lambda x: layer(x))(inputs).sum()

    if is_refused:
        with pytest.raises(flax.errors.TraceContextError):
            nnx.grad(loss)(layer)
    else:
        expected = nnx.grad(lambda layer: layer(inputs).sum())(layer)
        found = nnx.grad(loss)(layer)
        np.testing.assert_allclose(found.kernel[...], expected.kernel[...])


def test_the_speeds_on_a_gpu_are_the_benchmarks():
    """Lessons 18 and 20 name them, to three digits."""
    file = build.FOLDER.parent / "benchmarks" / "accelerators.json"
    rows = json.loads(file.read_text())["rows"]
    speeds = {
        "58,000": ("18", rows["CNN, 64"]["jit"]["bare"]),
        "40,700": ("20", rows["ResNet-18, 512"]["jit"]["trainer"]),
        "78,200": ("20", rows["ResNet-18, 512, bfloat16"]["jit"]["trainer"]),
    }
    for words, (number, speed) in speeds.items():
        assert f"{round(speed, -2):,.0f}" == words
        assert f" {words} " in build.source_of(number).read_text()

    small, large = (rows[f"CNN, {size}"]["jit"]["bare"] for size in ("64", "4,096"))
    assert 30 < large / small < 35  # "thirty times as many images"
    assert 1.5 < (4096 / large) / (64 / small) < 2.5  # "twice as long"


def test_the_reason_for_an_abort_is_found_among_the_lines_of_xla():
    """Lesson 17."""
    prefix = "E1129 22:40:17.307098 30720 coordination_service.cc:1549] [184] "
    heartbeats = (
        f"{prefix}UNAVAILABLE: tasks are unhealthy (stopped sending heartbeats)"
    )
    gloo = "terminate called after throwing an instance of 'gloo::EnforceNotMet'"
    reason = launch_processes.reason_for_abort
    assert reason(f"epoch 0\n{heartbeats}\n") == "stopped sending heartbeats"
    assert reason(f"epoch 0\n{gloo}\n") == "gloo::EnforceNotMet"
    assert reason("epoch 0\n") == "no reason that this lesson knows"
