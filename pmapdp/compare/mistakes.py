"""Run the mistakes of `mistakes.toml` and the correct lines, beside one device."""

import functools
import textwrap
import tomllib
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding

from pmapdp.compare.results import Mistake, MistakeResult
from pmapdp.compare.words import EQUAL
from pmapdp.devices import choose

Program = Callable[[Any, Any, Any], tuple[Any, Any]]
D, H, b = 6, 5, 6  # features, hidden units, examples on a device


def error(params: Any, hidden: Any, batch: Any) -> Any:
    """Return the squared error of each example, `[b]`."""
    return jnp.square(jnp.tanh(hidden) @ params["W2"] - batch["y"])


def clip(gradient: Any) -> Any:
    """Shorten a gradient to a length of at most 0.1."""
    length = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradient)))
    return jax.tree.map(lambda leaf: leaf * jnp.minimum(1, 0.1 / length), gradient)


NAMES = {
    "jax": jax,
    "jnp": jnp,
    "lax": lax,
    "functools": functools,
    "error": error,
    "clip": clip,
}


def load_mistakes() -> list[Mistake]:
    """Read the mistakes."""
    file = resources.files("pmapdp.compare").joinpath("mistakes.toml")
    tables = tomllib.loads(file.read_text("utf-8"))["mistakes"]
    return [Mistake(**table) for table in tables]


def make_program(body: str, **names: Program) -> Program:
    """Make a function of (params, batch, key) from its body."""
    namespace: dict[str, Any] = {**NAMES, **names}
    code = textwrap.indent(body.strip(), "    ")
    exec(f"def program(params, batch, key):\n{code}", namespace)
    return namespace["program"]


def run_mistakes(count: int | None) -> list[Mistake]:
    """Run every mistake on `count` devices, and return it with its `results`.

    They are in float64, so that nothing but a mistake makes a difference.
    """
    with jax.enable_x64(True), jax.transfer_guard("allow"):  # the arrays are the host's
        return [run_mistake(mistake, choose(count)) for mistake in load_mistakes()]


def run_mistake(mistake: Mistake, devices: list[jax.Device]) -> Mistake:
    """Run the wrong and the correct lines on the devices, and one device's under jit.

    They run under shard_map. Without its check it's the program that pmap makes.
    """
    mesh = Mesh(np.array(devices), ("data",))
    params, batch, key = make_example(len(devices))
    one_device = make_program(mistake.one_device)
    expected = jax.device_get(jax.jit(one_device)(params, batch, key))

    def run_lines(lines: str, check_vma: bool) -> MistakeResult:
        program = make_program(lines, one_device=one_device)

        def stacked(*arguments: Any) -> Any:  # so that each device's result can be read
            return jax.tree.map(lambda x: x[None], program(*arguments))

        mapped = jax.shard_map(
            stacked,
            mesh=mesh,
            in_specs=(P(), P("data"), P()),
            out_specs=P("data"),
            check_vma=check_vma,
        )
        return compare_results(jax.jit(mapped)(params, batch, key), expected)

    split_batch = jax.device_put(batch, NamedSharding(mesh, P("data")))
    result = jax.jit(one_device)(params, split_batch, key)
    result = jax.tree.map(lambda x: x[None], result)
    results = {
        "one_device": compare_results(result, expected),
        "wrong": run_lines(mistake.wrong, mistake.check_vma),
        "right": run_lines(mistake.right, False),
    }
    return replace(mistake, results=results)


def make_example(N: int) -> tuple[Any, Any, Any]:
    """Make parameters, a batch of N * b examples, and a key.

    The devices' examples are unlike, and only one of the last device's counts.
    """
    random = np.random.default_rng(0)
    params = {"W1": random.normal(size=(D, H)), "W2": random.normal(size=H)}
    x = random.normal(size=(N * b, D)) + np.linspace(-1, 1, N * b)[:, None]
    batch = {
        "x": x,
        "y": np.sin(x.sum(1)),
        "index": np.arange(N * b),
        "weight": (np.arange(N * b) <= (N - 1) * b).astype(float),
    }
    return params, batch, jax.random.key(0)


def compare_results(
    stacked: tuple[Any, Any], expected: tuple[Any, Any]
) -> MistakeResult:
    """Compare loss and gradient of each device, in leaves `[N, ...]`, with one's."""
    errors = []
    agree = True
    for result, wanted in zip(jax.device_get(stacked), expected, strict=True):
        reference, _ = ravel_pytree(wanted)
        rows = jax.vmap(lambda tree: ravel_pytree(tree)[0])(result)  # [N, numbers]
        distances = jnp.linalg.norm(rows - reference, axis=1)
        errors.append(float(distances.max() / jnp.linalg.norm(reference)))
        factor = float(rows[0] @ reference / (reference @ reference))
        agree = agree and bool(np.allclose(rows, rows[:1], rtol=EQUAL))
    loss_error, gradient_error = errors
    return MistakeResult(loss_error, gradient_error, factor, agree)
