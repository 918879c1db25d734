"""The program of Flax' guide "Scale up on multiple devices" (flax.readthedocs.io): `python -m pmapdp.train nnx-mesh`.

Two matrices with a ReLU between, trained for five updates on random numbers, which is a regression. The state is made
where it is to be placed, saved, and restored from its shapes alone straight into other layouts. Lesson 14 teaches it.
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pmapdp.data.batches import Batch
from pmapdp.devices import describe
from pmapdp.loss import MetricSums
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.sharding.fit import fit_layout
from pmapdp.sharding.layout import state_line
from pmapdp.sharding.split_step import make_steps
from pmapdp.state import Task, TrainState, create_state
from pmapdp.steps.shared import Steps

SIZE, BATCH, UPDATES = 1024, 8, 5
# The guide's own losses. Its random generator has changed since, so that today's JAX gives others on one device too.
GUIDE = (1.455, 0.765, 0.510, 0.378, 0.281)


class DotReluDot(nnx.Module):
    """`[b, D]` to `[b, D]`, with two `[D, D]` matrices (D is `size`) and no bias; Flax' default initialiser. With
    `rules` the model itself says which mesh axes split its logical axes; a layout can say it later."""

    def __init__(self, size: int, *, rngs: nnx.Rngs, rules: tuple[tuple[str, Any], ...] = ()):
        def matrix(*names: str) -> nnx.Param:
            values = nnx.initializers.lecun_normal()(rngs.params(), (size, size))
            return nnx.Param(values, out_sharding=names, sharding_rules=rules, eager_sharding=False)

        self.first, self.second = matrix("embed", "hidden"), matrix("hidden", "embed")

    def __call__(self, x: jax.Array) -> jax.Array:
        """The forward pass."""
        return nnx.relu(x @ self.first[...]) @ self.second[...]


def make_task(size: int = SIZE, rules: tuple[tuple[str, Any], ...] = ()) -> Task:
    """The guide's model, loss and optimizer."""

    def model(rngs: nnx.Rngs, **types: Any) -> DotReluDot:
        return DotReluDot(size, rngs=rngs, rules=rules)

    model.input_axes = ("batch", "embed")  # type: ignore[attr-defined]
    return Task(model, optax.adam(1e-3), loss=squared_error)


def squared_error(model: DotReluDot, batch: Batch, context: Any) -> MetricSums:
    """The mean squared error over the D numbers of each example; its labels are targets `[b, D]`."""
    errors = jnp.square(model(batch.inputs) - batch.labels).mean(-1)
    return MetricSums((batch.weights * errors).sum(), jnp.zeros(()), batch.weights.sum())


def examples(size: int = SIZE) -> Batch:
    """The guide's inputs and targets, `[8, D]` each."""
    inputs, targets = (np.asarray(jax.random.normal(jax.random.key(seed), (BATCH, size))) for seed in (1, 2))
    return Batch(inputs, targets, np.arange(BATCH, dtype=np.int32), np.ones(BATCH, np.float32))


def train(task: Task, steps: Steps) -> tuple[TrainState, list[float], float]:
    """The state after five updates, their losses, and the milliseconds of the fastest."""
    state, batch = create_state(task, steps.state_sharding), steps.place_batch(examples())
    losses, fastest = [], float("inf")
    for _ in range(UPDATES):
        clock = time.perf_counter()
        state, sums = jax.block_until_ready(steps.train_step(state, batch))
        fastest = min(fastest, 1000 * (time.perf_counter() - clock))
        losses.append(float(sums.loss / sums.count))
    return state, losses, fastest


def run(devices: Sequence[jax.Device], *, mesh: str | None, layout: str, shard_state: str) -> None:
    """The whole program, as a report on the screen; its settings, and its errors, are those of `fit_layout`."""
    task, devices = make_task(), list(devices)
    fitted = fit_layout(devices, task, (SIZE,), mesh=mesh, layout=layout, shard_state=shard_state)
    state, losses, milliseconds = train(task, make_steps("jit", task, devices, fitted))
    _, alone, _ = train(task, make_steps("single", task, devices[:1]))
    print("recipe   nnx-mesh, two matrices of 1024 x 1024, MSE, Adam 0.001, 8 examples")
    print(f"devices  {describe(devices)}, {fitted.text}\nstate    {state_line(state)}\n")
    for name in ("first", "second"):
        print(f"{name} matrix, split as {state.params[name].sharding.spec}:")
        jax.debug.visualize_array_sharding(state.params[name], use_color=False)
    print("\nupdate    here  one device  the guide, with the random numbers of its time")
    for number, (here, single, guide) in enumerate(zip(losses, alone, GUIDE, strict=True), start=1):
        print(f"{number:6}  {here:6.3f}      {single:6.3f}     {guide:6.3f}")
    print(f"{milliseconds:.1f} ms the fastest update (the guide, on its machine: 57.6 ms)\n")

    N = len(devices)
    with TemporaryDirectory(prefix="pmapdp-") as folder, contextlib.closing(Checkpoints(Path(folder))) as checkpoints:
        checkpoints.save(UPDATES, state, {})
        checkpoints.wait()
        for size in (size for size in range(1, N + 1) if N % size == 0):
            other = fit_layout(devices, task, (SIZE,), mesh=f"data={size},model={N // size}", layout="model")
            found = checkpoints.read(UPDATES, task, other.state(task)).state  # it compares the checksums
            print(f"mesh {size}x{N // size}  restored, equal in every bit: {state_line(found)}")
