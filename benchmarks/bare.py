"""The barest training loop of each strategy, written by hand.

It shows what the trainer itself costs.

    python -m benchmarks.bare DATA.npz STRATEGY MODEL DEVICES GLOBAL_BATCH EXAMPLES
    EPOCHS

No padding, no metrics but the last loss, no checkpoints, no progress: index, place,
step. The networks are pmapdp's, the optimizer is Adam. Prints one line of JSON an
epoch: {"examples_per_second": ...}.
"""

import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks import load_work
from pmapdp.devices import choose_devices
from pmapdp.layers import Context, example_keys, use_context
from pmapdp.registry import MODELS
from pmapdp.state import build


def make_loop(
    network: nnx.Module, strategy: str, devices: list[jax.Device], optimizer: Any
) -> tuple[Any, Any, Any]:
    """Make a strategy's step on these devices.

    Returns:
        step: (state, images, labels, numbers of the examples) to (state, loss),
            compiled.
        state: on the devices: parameters, the model's other arrays, Adam's moments,
            updates made.
        split: the sharding of a batch.
    """
    structure, parameters, others = nnx.split(network, nnx.Param, ...)
    axis = "data" if strategy in ("pmap", "shard_map") else None

    def mean_loss(parameters, others, step, images, labels, numbers):
        network = nnx.merge(structure, parameters, others, copy=True)
        context = Context(
            keys=example_keys(0, step, numbers), step=step, train=True, axis_name=axis
        )
        with use_context(context):
            losses = optax.softmax_cross_entropy_with_integer_labels(
                network(images), labels
            )
        return losses.mean(), nnx.split(network, nnx.Param, ...)[2]

    def step(state, images, labels, numbers):
        parameters, others, moments, step = state
        gradients_of = jax.value_and_grad(mean_loss, has_aux=True)
        (loss, others), gradients = gradients_of(
            parameters, others, step, images, labels, numbers
        )
        if axis:
            loss, gradients = lax.pmean((loss, gradients), axis)
        updates, moments = optimizer.update(gradients, moments, parameters)
        return (
            optax.apply_updates(parameters, updates),
            others,
            moments,
            step + 1,
        ), loss

    mesh = Mesh(np.array(devices), ("data",))
    everywhere, split = PartitionSpec(), PartitionSpec("data")
    replicated, sharded = NamedSharding(mesh, everywhere), NamedSharding(mesh, split)
    if strategy == "single":
        replicated = sharded = devices[0]
        compiled = jax.jit(step, donate_argnums=0)
    elif strategy == "jit":
        compiled = jax.jit(step, out_shardings=replicated, donate_argnums=0)
    elif strategy == "pmap":
        axes: dict[str, Any] = {
            "axis_name": "data",
            "in_axes": (None, 0, 0, 0),
            "out_axes": None,
        }
        compiled = jax.pmap(step, **axes, devices=devices, donate_argnums=0)
    else:
        specs: dict[str, Any] = {
            "in_specs": (everywhere, split, split, split),
            "out_specs": everywhere,
        }
        compiled = jax.jit(
            jax.shard_map(step, mesh=mesh, **specs, check_vma=False), donate_argnums=0
        )
    state = (parameters, others, optimizer.init(parameters), jnp.int32(0))
    return compiled, jax.device_put(state, replicated), sharded


def place(batch: tuple[Any, ...], split: Any, strategy: str) -> Any:
    """Put a batch `[B, ...]` on the devices, under pmap as `[N, B / N, ...]`."""
    if strategy == "pmap":
        N = len(split.device_set)
        batch = tuple(x.reshape(N, len(x) // N, *x.shape[1:]) for x in batch)
    return jax.device_put(batch, split)


def main() -> None:
    """Run the command."""
    data, strategy, model, count, B, epochs = load_work(sys.argv[1:])
    devices, steps = choose_devices(count), data.num_examples // B  # before JAX starts
    step, state, split = make_loop(
        build(MODELS[model]), strategy, devices, optax.adam(1e-3)
    )
    for epoch in range(epochs):
        order = (
            np.random.default_rng(epoch)
            .permutation(data.num_examples)[: steps * B]
            .reshape(steps, B)
        )
        start = time.perf_counter()
        for rows in order.astype(np.int32):
            state, loss = step(
                state,
                *place((data.inputs[rows], data.labels[rows], rows), split, strategy),
            )
        jax.block_until_ready(loss)
        print(
            json.dumps(
                {"examples_per_second": steps * B / (time.perf_counter() - start)}
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
