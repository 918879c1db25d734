"""The program of Flax' guide "Scale up on multiple devices" (flax.readthedocs.io): `python -m pmapdp.train nnx-mesh`.

Two matrices with a ReLU between, trained on random numbers: a regression, so it has a loop of its own and shares
layout, state and checkpoints with the trainer. The state is made where it is to lie, trained for five steps, saved, and
restored from its shapes alone straight into other layouts. Lesson 12 teaches it.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Sharding, SingleDeviceSharding

from pmapdp import devices as device_module
from pmapdp.config import Config, flag
from pmapdp.errors import UserError
from pmapdp.recipes import RECIPES
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.run.checksums import checksum
from pmapdp.run.screen import Report
from pmapdp.sharding.fit import fit_layout, number_of_devices
from pmapdp.sharding.layout import Layout, data_parallel, state_line
from pmapdp.state import Task, TrainState, create_state

SIZE, BATCH, STEPS = 1024, 8, 5
# The guide's own losses. Its random generator has changed since, so that today's JAX gives others on one device too.
GUIDE = (1.455, 0.765, 0.510, 0.378, 0.281)
OWN_SETTINGS = ("mesh", "layout", "devices", "shard_state", "recipe")

Constrain = Callable[[jax.Array, tuple[str, ...]], jax.Array]


class DotReluDot(nnx.Module):
    """`[b, D]` to `[b, D]`, with two `[D, D]` matrices and no bias; Flax' default initialiser.

    Args:
        size: D.
        rngs: one key a matrix.
        rules: logical name to mesh axis, where the model itself is to say it; a layout can say it later.
    """

    def __init__(self, size: int, *, rngs: nnx.Rngs, rules: tuple[tuple[str, Any], ...] = ()):
        def matrix(*names: str) -> nnx.Param:
            values = nnx.initializers.lecun_normal()(rngs.params(), (size, size))
            return nnx.Param(values, out_sharding=names, sharding_rules=rules, eager_sharding=False)

        self.first, self.second = matrix("embed", "hidden"), matrix("hidden", "embed")

    def __call__(self, x: jax.Array, place: Constrain = lambda x, names: x) -> jax.Array:
        """Forward pass; `place` says where the activation `[b, D]` with axes of these names is to lie."""
        return place(nnx.relu(x @ self.first[...]), ("batch", "hidden")) @ self.second[...]


@dataclass(frozen=True)
class Regression(Task):
    """What is trained: `DotReluDot`, with its size and the rules that stand in the model."""

    size: int = SIZE
    rules: tuple[tuple[str, Any], ...] = ()

    @property
    def input_axes(self) -> tuple[str, ...]:
        """Of `[B, D]`."""
        return ("batch", "embed")

    def build_model(self) -> nnx.Module:
        """A new model with its initial parameters."""
        return DotReluDot(self.size, rngs=nnx.Rngs(self.seed), rules=self.rules)


def make_task(size: int = SIZE, rules: tuple[tuple[str, Any], ...] = ()) -> Regression:
    """The guide's model and optimizer."""
    return Regression(DotReluDot, optax.adam(1e-3), size=size, rules=rules)


def examples(layout: Layout, task: Regression) -> tuple[jax.Array, jax.Array]:
    """The guide's inputs and targets, `[8, D]` each, split as the layout says."""
    shape = (BATCH, task.size)

    def both() -> tuple[jax.Array, jax.Array]:
        return jax.random.normal(jax.random.key(1), shape), jax.random.normal(jax.random.key(2), shape)

    return jax.jit(both, out_shardings=layout.batch(task).inputs)()


def make_train_step(task: Regression, layout: Layout) -> Callable[..., tuple[TrainState, jax.Array]]:
    """(state, inputs, targets) to the new state and the loss before the update, a mean over all numbers."""
    structure, places = task.model_structure(), layout.state(task)

    def place(x: jax.Array, names: tuple[str, ...]) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, layout.array(names, x.shape))

    def train_step(state: TrainState, inputs: jax.Array, targets: jax.Array) -> tuple[TrainState, jax.Array]:
        def loss(params: Any) -> jax.Array:
            return jnp.square(nnx.merge(structure, params)(inputs, place) - targets).mean()

        value, gradients = jax.value_and_grad(loss)(layout.gathered(task, state.params))
        updates, optimizer_state = task.optimizer.update(
            layout.scattered(task, gradients), state.optimizer_state, state.params
        )
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, state.batch_stats, optimizer_state), value

    return jax.jit(train_step, out_shardings=(places, layout.whole), donate_argnums=0)


def train(task: Regression, layout: Layout) -> tuple[TrainState, list[float], float]:
    """The state after five steps, their losses, and the milliseconds of the fastest."""
    state, batch = create_state(task, layout.state(task)), examples(layout, task)
    step, losses, fastest = make_train_step(task, layout), [], float("inf")
    for _ in range(STEPS):
        clock = time.perf_counter()
        state, loss = jax.block_until_ready(step(state, *batch))
        fastest = min(fastest, 1000 * (time.perf_counter() - clock))
        losses.append(float(loss))
    return state, losses, fastest


def check_places(state: TrainState, places: Any) -> None:
    """Every array lies as it was asked to.

    Raises:
        AssertionError: one does not.
    """
    one = isinstance(places, Sharding)
    for leaf, place in zip(
        jax.tree.leaves(state), [places] * 10**6 if one else jax.tree.leaves(places), strict=not one
    ):
        assert leaf.sharding.is_equivalent_to(place, leaf.ndim), f"{leaf.sharding} is not {place}"


def run(config: Config) -> None:
    """The whole program, as a report on the screen.

    Raises:
        UserError: a setting that this recipe does not have, or a layout that cannot be.
    """
    for field in dataclasses.fields(Config):
        value = getattr(config, field.name)
        if field.name not in OWN_SETTINGS and value != getattr(RECIPES["nnx-mesh"].config, field.name):
            raise UserError(
                f"{flag(field.name)} has no effect on the recipe nnx-mesh, which is five steps on random numbers: "
                "leave it out; it takes --mesh, --layout, --shard-state and --devices"
            )
    devices = device_module.choose(number_of_devices(config))
    task = make_task()
    layout = fit_layout(config, devices, task, (SIZE,))
    places = layout.state(task)
    state, losses, milliseconds = train(task, layout)
    _, alone, _ = train(task, data_parallel(devices[:1]))
    check_places(state, places)
    rules = tuple((name, axes or None) for name, axes in layout.rules.items())
    in_the_model = fit_layout(dataclasses.replace(config, layout="data"), devices, make_task(rules=rules), (SIZE,))
    assert in_the_model.state(make_task(rules=rules)) == places

    report = Report(progress=False, epochs=1)
    report.header(
        {
            "recipe": "nnx-mesh, two matrices of 1024 x 1024, MSE, Adam 0.001, 8 examples",
            "devices": f"{device_module.describe(devices)}, {layout.text}",
            "state": state_line(state),
        }
    )
    for name in ("first", "second"):
        report.line(f"{name} matrix, split as {state.params[name].sharding.spec}:")
        jax.debug.visualize_array_sharding(state.params[name], use_color=False)
    report.line("the same when the rules stand in the model instead of the command line")
    report.line()
    report.line("step    here  one device  the guide, with the random numbers of its time")
    for step, (here, single, guide) in enumerate(zip(losses, alone, GUIDE, strict=True), start=1):
        report.line(f"{step:4}  {here:6.3f}      {single:6.3f}     {guide:6.3f}")
    report.line(f"{milliseconds:.1f} ms the fastest step (the guide, on its machine: 57.6 ms)")
    report.line()
    with TemporaryDirectory(prefix="pmapdp-") as folder:
        for line in restored(state, task, config, devices, Path(folder)):
            report.line(line)
    report.close()


def restored(state: TrainState, task: Regression, config: Config, devices: list[jax.Device], folder: Path) -> list[str]:
    """Save the state, and restore it from its shapes alone into every mesh of these devices, and on one device."""
    checkpoints = Checkpoints(folder)
    try:
        checkpoints.save(STEPS, state, {})
        checkpoints.wait()
        N, lines = len(devices), []
        for data in (size for size in range(1, N + 1) if N % size == 0):
            mesh = f"data={data},model={N // data}"
            layout = fit_layout(
                dataclasses.replace(config, mesh=mesh, layout="model", shard_state="none"), devices, task, (SIZE,)
            )
            lines.append((f"mesh {data}x{N // data}", layout.state(task)))
        lines.append(("one device", SingleDeviceSharding(devices[0])))
        return [f"{name:10}  {restore_into(checkpoints, task, places, state)}" for name, places in lines]
    finally:
        checkpoints.close()


def restore_into(checkpoints: Checkpoints, task: Regression, places: Any, wanted: TrainState) -> str:
    """Restore straight into `places`; says how it went."""
    found = checkpoints.read(STEPS, task, places).state
    check_places(found, places)
    assert checksum(found) == checksum(wanted)
    return f"restored, equal in every bit: {state_line(found)}"
