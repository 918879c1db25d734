"""The barest training loop of each strategy, written by hand: what the trainer's own cost is measured against.

    python -m benchmarks.bare DATA.npz STRATEGY MODEL DEVICES GLOBAL_BATCH EXAMPLES EPOCHS [plain]

No padding, no metrics but the last loss, no checkpoints, no progress: index, place, step. The networks are pmapdp's, in
plain Flax, the optimizer is Adam. With `plain` that is all; without it what pmapdp does for simulated devices
(pmapdp/cpu) is done here too, so that only the trainer differs. Prints one line of JSON an epoch:
{"examples_per_second": ...}.
"""

import json
import sys
import time
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from pmapdp.cpu.joined import join_collectives
from pmapdp.malloc import keep_freed_memory

from benchmarks import at_least_one, make_parser
from pmapdp.command.ending import run_command
from pmapdp.cpu.convolution import faster
from pmapdp.devices import choose
from pmapdp.files.reading import open_file
from pmapdp.registry import MODELS

OPTIMIZER = optax.adam(1e-3)


def initial_parameters(model: str) -> Any:
    """Of the network with this name."""
    return nnx.to_pure_dict(nnx.state(MODELS[model](rngs=nnx.Rngs(0)), nnx.Param))


def make_step(model: str, strategy: str, devices: list[jax.Device], plain: bool = False) -> tuple[Any, Any, Any]:
    """The compiled step, where the state lies, and where a batch lies."""
    structure = nnx.graphdef(nnx.eval_shape(lambda: MODELS[model](rngs=nnx.Rngs(0))))

    def mean_loss(parameters, images, labels):
        logits = nnx.merge(structure, parameters)(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(parameters, slots, images, labels):
        loss, gradients = jax.value_and_grad(mean_loss if plain else faster(mean_loss))(parameters, images, labels)
        if strategy in ("pmap", "shard_map"):
            loss, gradients = lax.pmean((loss, gradients), "data")
        updates, slots = OPTIMIZER.update(gradients, slots, parameters)
        return optax.apply_updates(parameters, updates), slots, loss

    mesh = Mesh(np.array(devices), ("data",))
    whole, split = PartitionSpec(), PartitionSpec("data")
    places = NamedSharding(mesh, whole), NamedSharding(mesh, split)
    if strategy == "single":
        return jax.jit(step, donate_argnums=(0, 1)), devices[0], devices[0]
    if strategy == "jit":
        return jax.jit(step, out_shardings=places[0], donate_argnums=(0, 1)), *places
    if strategy == "pmap":
        axes: dict[str, Any] = {"axis_name": "data", "in_axes": (None, None, 0, 0), "out_axes": None}
        mapped = jax.pmap(step, **axes, devices=devices, donate_argnums=(0, 1))
    else:
        specs: dict[str, Any] = {"in_specs": (whole, whole, split, split), "out_specs": whole}
        mapped = jax.jit(jax.shard_map(step, mesh=mesh, **specs, check_vma=False), donate_argnums=(0, 1))
    return mapped if plain else jax.jit(join_collectives(mapped), donate_argnums=(0, 1)), *places


def main(arguments: list[str]) -> None:
    """The command."""
    parser = make_parser(__doc__, "bare", "data.npz pmap cnn 8 512 51200 3")
    parser.add_argument("data")
    parser.add_argument("strategy", choices=["single", "pmap", "jit", "shard_map"])
    parser.add_argument("model", choices=list(MODELS))
    for number in ("devices", "batch", "examples", "epochs"):
        parser.add_argument(number, type=at_least_one)
    parser.add_argument("plain", nargs="?", choices=["plain"])
    options = parser.parse_args(arguments)
    strategy, plain, N, B = options.strategy, bool(options.plain), options.devices, options.batch
    if not plain:
        keep_freed_memory()
    devices = choose(N)
    with open_file(options.data) as file, np.load(file) as data:
        images, labels = data["images"][: options.examples], data["labels"][: options.examples].astype(np.int32)
    step, whole, split = make_step(options.model, strategy, devices, plain)
    parameters = jax.device_put(initial_parameters(options.model), whole)
    slots = jax.device_put(OPTIMIZER.init(parameters), whole)
    steps = options.examples // B
    for epoch in range(options.epochs):
        order = np.random.default_rng(epoch).permutation(options.examples)[: steps * B].reshape(steps, B)
        start = time.perf_counter()
        for rows in order:
            batch = images[rows], labels[rows]
            if strategy == "pmap":
                batch = images[rows].reshape(N, B // N, 28, 28, 1), labels[rows].reshape(N, B // N)
            parameters, slots, loss = step(parameters, slots, *jax.device_put(batch, split))
        jax.block_until_ready(loss)
        print(json.dumps({"examples_per_second": steps * B / (time.perf_counter() - start)}), flush=True)


if __name__ == "__main__":
    sys.exit(run_command(main))
