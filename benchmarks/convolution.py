"""What `--fast-cpu` makes of a layer: `python -m benchmarks.convolution [--rounds 5]`.

Times the forward pass and the gradients of the convolutions that the flag rewrites, in batches of 64 and of 8, as XLA
computes them and rewritten, in turn, and prints the ratio of the medians.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import at_least_one, make_parser
from pmapdp.command.ending import run_command
from pmapdp.cpu.convolution import LAYOUT, faster
from pmapdp.devices import cores
from pmapdp.models.layers import max_pool


class Layer(NamedTuple):
    """A convolution at stride 1 without padding, as one of the models has it."""

    images: tuple[int, int, int]
    kernel: tuple[int, int, int, int]
    pooled: bool = False


LAYERS = {
    "28x28x1, 3x3 to 32, max-pool (cnn)": Layer((28, 28, 1), (3, 3, 1, 32), pooled=True),
    "14x14x48, 3x3 to 24 (convnet)": Layer((14, 14, 48), (3, 3, 48, 24)),
    "8x8x96, 3x3 to 32 (convnet)": Layer((8, 8, 96), (3, 3, 96, 32)),
}


def with_gradients(function: Callable, layer: Layer) -> Callable:
    """The layer and the gradients of its kernel and, where it is not the first of a network, its images; compiled."""

    def run(images, kernel, weights):
        value, gradients = jax.vjp(function, images, kernel)
        return value, gradients(weights)[1:] if layer.images[-1] == 1 else gradients(weights)

    return jax.jit(run)


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
    options = parser.parse_args(arguments)
    random = np.random.default_rng(0)
    print(f"{cores()} cores, {jax.devices()[0].device_kind}, float32; milliseconds with gradients")
    for batch in (64, 8):
        for name, layer in LAYERS.items():

            def xla(x, k, pooled=layer.pooled):
                y = lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=LAYOUT)
                return max_pool(y) if pooled else y

            images = jnp.asarray(random.normal(size=(batch, *layer.images)), jnp.float32)
            kernel = jnp.asarray(random.normal(size=layer.kernel), jnp.float32)
            placed = (images, kernel, jnp.ones_like(xla(images, kernel)))
            runs = {"XLA": with_gradients(xla, layer), "rewritten": with_gradients(faster(xla), layer)}
            for run in runs.values():
                jax.block_until_ready(run(*placed))
            times: dict[str, list[float]] = {kind: [] for kind in runs}
            for _ in range(options.rounds):
                for kind, run in runs.items():
                    times[kind].append(milliseconds(run, placed))
            one, other = (statistics.median(values) for values in times.values())
            print(
                f"batch {batch:2}, {name:34}: XLA {one:6.2f}, rewritten {other:6.2f}, {one / other:.2f} times as fast"
            )


if __name__ == "__main__":
    sys.exit(run_command(main))
