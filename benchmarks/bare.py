"""The barest training loop of each strategy, written by hand: what the trainer's own cost is measured against.

    python -m benchmarks.bare DATA.npz STRATEGY MODEL DEVICES GLOBAL_BATCH EXAMPLES EPOCHS

No padding, no metrics but the last loss, no checkpoints, no progress: index, place, step. The networks are pmapdp's,
the optimizer is Adam. Prints one line of JSON an epoch: {"examples_per_second": ...}.
"""

import json
import sys
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import work_parser
from pmapdp import cli
from pmapdp.devices import choose
from pmapdp.files import open_file
from pmapdp.layers import Context, example_keys, use_context
from pmapdp.registry import MODELS
from pmapdp.state import build


class Loop(NamedTuple):
    """What the loop needs.

    Attributes:
        step: (state, images, labels, numbers of the examples) to (state, loss), compiled.
        state: on the devices: parameters, the model's other arrays, Adam's moments, updates made.
        split: where a batch is placed.
    """

    step: Any
    state: Any
    split: Any


def make_loop(network: nnx.Module, strategy: str, devices: list[jax.Device], optimizer: Any) -> Loop:
    """Make the step of a strategy on these devices, and the state before the first."""
    structure, parameters, others = nnx.split(network, nnx.Param, ...)
    axis = "data" if strategy in ("pmap", "shard_map") else None

    def mean_loss(parameters, others, step, images, labels, numbers):
        network = nnx.merge(structure, parameters, others, copy=True)
        context = Context(keys=example_keys(0, step, numbers), step=step, train=True, axis_name=axis)
        with use_context(context):
            losses = optax.softmax_cross_entropy_with_integer_labels(network(images), labels)
        return losses.mean(), nnx.split(network, nnx.Param, ...)[2]

    def step(state, images, labels, numbers):
        parameters, others, moments, step = state
        gradients_of = jax.value_and_grad(mean_loss, has_aux=True)
        (loss, others), gradients = gradients_of(parameters, others, step, images, labels, numbers)
        if axis:
            loss, gradients = lax.pmean((loss, gradients), axis)
        updates, moments = optimizer.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), others, moments, step + 1), loss

    mesh = Mesh(np.array(devices), ("data",))
    everywhere, split = PartitionSpec(), PartitionSpec("data")
    replicated, sharded = NamedSharding(mesh, everywhere), NamedSharding(mesh, split)
    if strategy == "single":
        replicated = sharded = devices[0]
        compiled = jax.jit(step, donate_argnums=0)
    elif strategy == "jit":
        compiled = jax.jit(step, out_shardings=replicated, donate_argnums=0)
    elif strategy == "pmap":
        axes: dict[str, Any] = {"axis_name": "data", "in_axes": (None, 0, 0, 0), "out_axes": None}
        compiled = jax.pmap(step, **axes, devices=devices, donate_argnums=0)
    else:
        specs: dict[str, Any] = {"in_specs": (everywhere, split, split, split), "out_specs": everywhere}
        compiled = jax.jit(jax.shard_map(step, mesh=mesh, **specs, check_vma=False), donate_argnums=0)
    state = (parameters, others, optimizer.init(parameters), jnp.int32(0))
    return Loop(compiled, jax.device_put(state, replicated), sharded)


def place(batch: tuple[Any, ...], loop: Loop, strategy: str) -> Any:
    """Put a batch `[B, ...]` on the devices, under pmap as `[N, B / N, ...]`."""
    if strategy == "pmap":
        N = len(loop.split.device_set)
        batch = tuple(x.reshape(N, len(x) // N, *x.shape[1:]) for x in batch)
    return jax.device_put(batch, loop.split)


def main(arguments: list[str]) -> None:
    """The command."""
    options = work_parser(__doc__, "bare").parse_args(arguments)
    B, devices = options.batch, choose(options.devices)
    with open_file(options.data) as file, np.load(file) as data:
        images, labels = data["images"][: options.examples], data["labels"][: options.examples].astype(np.int32)
    loop = make_loop(build(MODELS[options.model]), options.strategy, devices, optax.adam(1e-3))
    state, steps = loop.state, options.examples // B
    for epoch in range(options.epochs):
        order = np.random.default_rng(epoch).permutation(options.examples)[: steps * B].reshape(steps, B)
        start = time.perf_counter()
        for rows in order.astype(np.int32):
            batch = place((images[rows], labels[rows], rows), loop, options.strategy)
            state, loss = loop.step(state, *batch)
        jax.block_until_ready(loss)
        print(json.dumps({"examples_per_second": steps * B / (time.perf_counter() - start)}), flush=True)


if __name__ == "__main__":
    sys.exit(cli.run(main))
