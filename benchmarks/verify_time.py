"""Time `verify` for a network of 175 leaves, beside one compile of its step.

    python -m benchmarks.verify_time

A correct step is verified, and then one that adds the gradients up. All times are
seconds of the processor, because the clock says little on a busy machine. Most of this
time goes into compiling.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from pmapdp.devices import simulate
from pmapdp.verify import one_device, verify

BLOCKS = 29  # of six leaves each, and one leaf more makes 175
D = 32  # features
B = 64  # examples
OPTIMIZER = optax.adam(1e-3)


def make_params() -> dict[str, Any]:
    """Return random parameters of a residual network."""
    random = np.random.default_rng(0)
    blocks = []
    for _ in range(BLOCKS):
        block = {
            "scale": np.ones(D),
            "shift": np.zeros(D),
            "w_in": random.normal(size=(D, D)) / D,
            "b_in": np.zeros(D),
            "w_out": random.normal(size=(D, D)) / D,
            "b_out": np.zeros(D),
        }
        blocks.append(block)
    return {"blocks": blocks, "head": random.normal(size=D)}


def predict(params: dict[str, Any], x: jax.Array) -> jax.Array:
    """Return the network's outputs `[B]` of inputs `[B, D]`."""
    for block in params["blocks"]:
        centered = x - x.mean(-1, keepdims=True)
        normalized = centered * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)
        inputs = normalized * block["scale"] + block["shift"]
        hidden = jax.nn.gelu(inputs @ block["w_in"] + block["b_in"])
        x = x + hidden @ block["w_out"] + block["b_out"]
    return x @ params["head"]


def make_step(average: Any) -> Any:
    """Make a training step whose gradients are summarized by `average`."""

    def step(state: Any, batch: Any) -> Any:
        inputs, targets = batch
        params, moments = state

        def loss_of(params: Any) -> jax.Array:
            return jnp.square(predict(params, inputs) - targets).mean()

        loss, gradients = jax.value_and_grad(loss_of)(params)
        gradients = average(gradients, "data")
        updates, moments = OPTIMIZER.update(gradients, moments)
        params = optax.apply_updates(params, updates)
        return (params, moments), lax.pmean(loss, "data")

    return step


def main() -> None:
    """Time one compile of the step, and the verification of it and of a wrong one."""
    simulate(8)
    params = make_params()
    state = (params, OPTIMIZER.init(params))
    random = np.random.default_rng(1)
    batch = (random.normal(size=(B, D)), random.normal(size=B))
    correct = make_step(lax.pmean)

    placed = jax.tree.map(lambda leaf: np.stack([leaf] * 8), state)
    rows = jax.tree.map(lambda leaf: leaf.reshape(8, B // 8, *leaf.shape[1:]), batch)
    start = time.process_time()
    jax.pmap(correct, "data").lower(placed, rows).compile()
    compile_seconds = time.process_time() - start
    leaves = len(jax.tree.leaves(params))
    print(f"one compile of the step, {leaves} leaves: {compile_seconds:.1f} s")

    for name, average in {"correct": lax.pmean, "a sum": lax.psum}.items():
        step = make_step(average)
        start = time.process_time()
        report = verify(
            step=jax.pmap(step, "data"),
            reference=one_device(step, "data"),
            state=state,
            batch=batch,
        )
        seconds = time.process_time() - start
        ratio = seconds / compile_seconds
        print(f"verify, {name}: {report.verdict}, {seconds:.1f} s, {ratio:.1f} times")


if __name__ == "__main__":
    main()
