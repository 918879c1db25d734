"""What convolution written for the CPU is worth: `python -m benchmarks.convolution [--rounds 5] [--in-a-loop]`.

Times the forward pass and the gradients of the convolutions of convnet and cnn (the latter with its pooling), batch
64, 8 and 4, with XLA's and with pmapdp's, in turn, and prints the ratio of the medians. In a loop, as the
trainer runs its updates, XLA computes the gradients of its own convolution in a slow way.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from pmapdp.malloc import keep_freed_memory

from benchmarks import at_least_one, make_parser
from pmapdp.command.ending import run_command
from pmapdp.cpu.convolution import LAYOUT, faster
from pmapdp.devices import cores


class Layer(NamedTuple):
    """A convolution of one of the models."""

    images: tuple[int, int, int]
    kernel: tuple[int, int, int, int]
    stride: int
    padding: str
    pooled: bool = False


LAYERS = {
    "28x28x1, 3x3 to 32, max-pool": Layer((28, 28, 1), (3, 3, 1, 32), 1, "VALID", pooled=True),
    "28x28x1, 3x3 to 12": Layer((28, 28, 1), (3, 3, 1, 12), 1, "SAME"),
    "28x28x12, 6x6 stride 2 to 24": Layer((28, 28, 12), (6, 6, 12, 24), 2, "VALID"),
    "12x12x24, 6x6 stride 2 to 32": Layer((12, 12, 24), (6, 6, 24, 32), 2, "SAME"),
}


def functions(layer: Layer) -> dict[str, Callable]:
    """XLA's way and ours."""

    def xla(x, k):
        strides = (layer.stride, layer.stride)
        y = lax.conv_general_dilated(x, k, strides, layer.padding, dimension_numbers=LAYOUT)
        return nnx.max_pool(y, (2, 2), strides=(2, 2)) if layer.pooled else y

    return {"XLA": xla, "ours": faster(xla)}


def with_gradients(function: Callable, layer: Layer, in_a_loop: bool) -> Callable:
    """The layer and the gradients of its kernel and, where it is not the first of a network, its images; compiled."""
    first = layer.images[-1] == 1

    def run(images, kernel, weights):
        value, gradients = jax.vjp(function, images, kernel)
        return value, gradients(weights)[1:] if first else gradients(weights)

    def run_in_a_loop(*arguments):
        def turn(_, result):
            # Behind the barrier nothing is the same in all turns, so nothing is taken out of the loop.
            return run(*lax.optimization_barrier((*arguments, result))[:-1])

        return lax.fori_loop(0, 1, turn, jax.tree.map(jnp.zeros_like, jax.eval_shape(run, *arguments)))

    return jax.jit(run_in_a_loop if in_a_loop else run)


def milliseconds(run: Callable, arguments: Any) -> float:
    """Of one call; the mean over five."""
    clock = time.perf_counter()
    for _ in range(5):
        result = run(*arguments)
    jax.block_until_ready(result)
    return (time.perf_counter() - clock) / 5 * 1000


def main(arguments: list[str]) -> None:
    """The command."""
    parser = make_parser(__doc__, "convolution", "--rounds 5")
    parser.add_argument("--rounds", type=at_least_one, default=5, help="runs of each kind")
    parser.add_argument("--in-a-loop", action="store_true", help="each call in a loop, as the trainer's updates are")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    random = np.random.default_rng(0)
    where = " in a loop" if options.in_a_loop else ""
    print(f"{cores()} cores, {jax.devices()[0].device_kind}, float32; milliseconds with gradients{where}")
    for batch in (64, 8, 4):
        for name, layer in LAYERS.items():
            images = jnp.asarray(random.normal(size=(batch, *layer.images)), jnp.float32)
            kernel = jnp.asarray(random.normal(size=layer.kernel), jnp.float32)
            ways = functions(layer)
            arguments = (images, kernel, jnp.ones_like(ways["XLA"](images, kernel)))
            runs = {kind: with_gradients(function, layer, options.in_a_loop) for kind, function in ways.items()}
            for run in runs.values():
                jax.block_until_ready(run(*arguments))
            times: dict[str, list[float]] = {kind: [] for kind in runs}
            for _ in range(options.rounds):
                for kind, run in runs.items():
                    times[kind].append(milliseconds(run, arguments))
            medians = {kind: statistics.median(values) for kind, values in times.items()}
            print(
                f"batch {batch:2}, {name:29}: XLA {medians['XLA']:7.2f}, ours {medians['ours']:7.2f}, "
                f"{medians['XLA'] / medians['ours']:.2f} times as fast"
            )


if __name__ == "__main__":
    sys.exit(run_command(main))
