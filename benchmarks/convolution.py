"""What convolution by matrix products is worth on a CPU: `python -m benchmarks.convolution [--rounds 5]`.

Times forward pass and both gradients of the convnet's three convolutions, batch 64 and 8, with XLA's convolution and
with pmapdp's, in turn, and prints the ratio of the medians.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmapdp.devices import cores
from pmapdp.models.convolution import convolve

LAYERS = {
    "28x28x1, 3x3 to 12": ((28, 28, 1), (3, 3, 1, 12), 1, "SAME"),
    "28x28x12, 6x6 stride 2 to 24": ((28, 28, 12), (6, 6, 12, 24), 2, "VALID"),
    "12x12x24, 6x6 stride 2 to 32": ((12, 12, 24), (6, 6, 24, 32), 2, "SAME"),
}


def with_gradients(function: Callable, stride: int, padding: str) -> Callable:
    """The convolution and the gradients of its kernel and its images, compiled."""
    layout = ("NHWC", "HWIO", "NHWC")

    def run(images, kernel, weights):
        value, gradients = jax.vjp(
            lambda x, k: function(x, k, (stride, stride), padding, dimension_numbers=layout), images, kernel
        )
        return value, gradients(weights)

    return jax.jit(run)


def milliseconds(run: Callable, arguments: Any) -> float:
    """Of one call; the mean over five."""
    clock = time.perf_counter()
    for _ in range(5):
        result = run(*arguments)
    jax.block_until_ready(result)
    return (time.perf_counter() - clock) / 5 * 1000


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind")
    rounds = parser.parse_args().rounds
    random = np.random.default_rng(0)
    print(f"{cores()} cores, {jax.devices()[0].device_kind}, float32; milliseconds with both gradients")
    for batch in (64, 8):
        for name, (shape, kernel_shape, stride, padding) in LAYERS.items():
            images = jnp.asarray(random.normal(size=(batch, *shape)), jnp.float32)
            kernel = jnp.asarray(random.normal(size=kernel_shape), jnp.float32)
            runs = {
                kind: with_gradients(function, stride, padding)
                for kind, function in (("XLA", lax.conv_general_dilated), ("ours", convolve))
            }
            output = convolve(images, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
            arguments = (images, kernel, jnp.ones_like(output))
            for run in runs.values():
                jax.block_until_ready(run(*arguments))
            times: dict[str, list[float]] = {kind: [] for kind in runs}
            for _ in range(rounds):
                for kind, run in runs.items():
                    times[kind].append(milliseconds(run, arguments))
            medians = {kind: statistics.median(values) for kind, values in times.items()}
            print(
                f"batch {batch:2}, {name:29}: XLA {medians['XLA']:7.2f}, ours {medians['ours']:7.2f}, "
                f"{medians['XLA'] / medians['ours']:.2f} times as fast"
            )


if __name__ == "__main__":
    main()
