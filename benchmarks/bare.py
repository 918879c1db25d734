"""The barest training loop of each strategy, written by hand: what the trainer's own cost is measured against.

    python -m benchmarks.bare DATA.npz STRATEGY MODEL DEVICES GLOBAL_BATCH EXAMPLES EPOCHS

No padding, no metrics but the last loss, no checkpoints, no progress: index, place, step. The networks are those of
pmapdp in plain `jax.numpy` (with the same convolution, so that only the trainer differs), the optimizer is Adam.
Prints one line of JSON an epoch: {"examples_per_second": ...}.
"""

import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.cpu.convolution import convolve_and_pool
from pmapdp.devices import choose
from pmapdp.models.layers import add_bias

OPTIMIZER = optax.adam(1e-3)
SHAPES = {"mlp": [(784, 512), (512, 512), (512, 10)], "cnn": [(3, 3, 1, 32), (5408, 64), (64, 10)]}


def initial_parameters(model: str) -> list[tuple[jax.Array, jax.Array]]:
    """Weights and biases, layer by layer."""
    random = np.random.default_rng(0)
    return [
        (jnp.asarray(random.normal(size=shape) * 0.05, jnp.float32), jnp.zeros(shape[-1], jnp.float32))
        for shape in SHAPES[model]
    ]


def logits(parameters, images: jax.Array) -> jax.Array:
    """The forward pass of either network."""
    x = images.astype(jnp.float32) / 255
    if parameters[0][0].ndim == 4:
        kernel, bias = parameters[0]
        x = convolve_and_pool(x, kernel).reshape(len(x), -1)
        x = jax.nn.relu(add_bias(x, bias))
        parameters = parameters[1:]
    x = x.reshape(len(x), -1)
    for weights, bias in parameters[:-1]:
        x = jax.nn.relu(x @ weights + bias)
    return x @ parameters[-1][0] + parameters[-1][1]


def mean_loss(parameters, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits(parameters, images), labels).mean()


def make_step(strategy: str, devices: list[jax.Device]) -> tuple[Any, Any, Any]:
    """The compiled step, where the state lies, and where a batch lies."""

    def step(parameters, slots, images, labels):
        loss, gradients = jax.value_and_grad(mean_loss)(parameters, images, labels)
        if strategy in ("pmap", "shard_map"):
            loss, gradients = lax.pmean((loss, gradients), "data")
        updates, slots = OPTIMIZER.update(gradients, slots, parameters)
        return optax.apply_updates(parameters, updates), slots, loss

    mesh = Mesh(np.array(devices), ("data",))
    whole, split = PartitionSpec(), PartitionSpec("data")
    places = NamedSharding(mesh, whole), NamedSharding(mesh, split)
    if strategy == "pmap":
        axes: dict[str, Any] = {"axis_name": "data", "in_axes": (None, None, 0, 0), "out_axes": None}
        return jax.pmap(step, **axes, devices=devices, donate_argnums=(0, 1)), *places
    if strategy == "shard_map":
        mapped = jax.shard_map(step, mesh=mesh, in_specs=(whole, whole, split, split), out_specs=whole, check_vma=False)
        return jax.jit(mapped, donate_argnums=(0, 1)), *places
    if strategy == "jit":
        return jax.jit(step, out_shardings=places[0], donate_argnums=(0, 1)), *places
    return jax.jit(step, donate_argnums=(0, 1)), devices[0], devices[0]


def main() -> None:
    """The command."""
    path, strategy, model = sys.argv[1:4]
    N, B, examples, epochs = map(int, sys.argv[4:])
    devices = choose(N)
    with np.load(path) as data:
        images, labels = data["images"][:examples], data["labels"][:examples].astype(np.int32)
    step, whole, split = make_step(strategy, devices)
    parameters = jax.device_put(initial_parameters(model), whole)
    slots = jax.device_put(OPTIMIZER.init(parameters), whole)
    steps = examples // B
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(examples)[: steps * B].reshape(steps, B)
        start = time.perf_counter()
        for rows in order:
            batch = images[rows], labels[rows]
            if strategy == "pmap":
                batch = images[rows].reshape(N, B // N, 28, 28, 1), labels[rows].reshape(N, B // N)
            parameters, slots, loss = step(parameters, slots, *jax.device_put(batch, split))
        jax.block_until_ready(loss)
        print(json.dumps({"examples_per_second": steps * B / (time.perf_counter() - start)}), flush=True)


if __name__ == "__main__":
    main()
