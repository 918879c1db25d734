"""Run the mistakes of `mistakes.toml` and the correct lines, beside one device."""

import functools
import textwrap
import tomllib
from collections.abc import Callable
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax
from jax.sharding import Mesh, NamedSharding

from pmapdp.collectives import instructions
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


def load_mistakes() -> list[dict[str, Any]]:
    """Read the mistakes."""
    text = (
        resources.files("pmapdp.compare").joinpath("mistakes.toml").read_text("utf-8")
    )
    return tomllib.loads(text)["mistakes"]


def make_program(body: str, **names: Program) -> Program:
    """Make a function of (params, batch, key) from its body."""
    namespace: dict[str, Any] = {**NAMES, **names}
    code = textwrap.indent(body.strip(), "    ")
    exec(f"def program(params, batch, key):\n{code}", namespace)
    return namespace["program"]


def run_mistakes(count: int | None) -> list[dict[str, Any]]:
    """Run every mistake on `count` devices, and return it with its `results`.

    They are in float64, so that nothing but a mistake makes a difference.
    """
    with jax.enable_x64(True), jax.transfer_guard("allow"):  # the arrays are the host's
        return [run_mistake(mistake, choose(count)) for mistake in load_mistakes()]


def run_mistake(mistake: dict[str, Any], devices: list[jax.Device]) -> dict[str, Any]:
    """Run the wrong and the correct lines under pmap and shard_map.

    One device's lines run under jit.
    """
    mesh = Mesh(np.array(devices), ("data",))
    replicated = NamedSharding(mesh, P())
    split = NamedSharding(mesh, P("data"))
    params, batch, key = make_example(len(devices))
    rows = jax.tree.map(lambda x: x.reshape(len(devices), -1, *x.shape[1:]), batch)
    one_device = make_program(mistake["one_device"])
    expected = jax.device_get(jax.jit(one_device)(params, batch, key))

    def run_pmap(program: Program) -> dict[str, Any]:
        mapped = jax.pmap(program, "data", in_axes=(None, 0, None), devices=devices)
        return compare_results(mapped, (params, rows, key), expected)

    def run_shard_map(program: Program, check_vma: bool) -> dict[str, Any]:
        def stacked(*arguments: Any) -> Any:  # so that each device's result can be read
            return jax.tree.map(lambda x: x[None], program(*arguments))

        mapped = jax.shard_map(
            stacked,
            mesh=mesh,
            in_specs=(P(), P("data"), P()),
            out_specs=P("data"),
            check_vma=check_vma,
        )
        return compare_results(jax.jit(mapped), (params, batch, key), expected)

    jitted = jax.jit(
        one_device,
        in_shardings=(replicated, split, replicated),
        out_shardings=replicated,
    )
    wrong = make_program(mistake["wrong"], one_device=one_device)
    right = make_program(mistake["right"], one_device=one_device)
    needs_check = mistake.get("check_vma", False)
    results = {
        "one_device": {"jit": compare_results(jitted, (params, batch, key), expected)},
        "wrong": {"shard_map": run_shard_map(wrong, needs_check)},
        "right": {"pmap": run_pmap(right), "shard_map": run_shard_map(right, False)},
    }
    if not needs_check:  # pmap has no such option
        results["wrong"]["pmap"] = run_pmap(wrong)
    return mistake | {"results": results}


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
    function: Any, arguments: Any, expected: tuple[Any, Any]
) -> dict[str, Any]:
    """Compare loss and gradient with one device's.

    Returns:
        loss, gradient: the relative difference, on the device that's farthest off.
        factor: how many times as long the gradient is along the expected one.
        agree: True if all devices have the same.
        collectives: the compiled program's.
    """
    compiled = function.lower(*arguments).compile()
    results = jax.device_get(compiled(*arguments))
    report: dict[str, Any] = {"collectives": instructions(compiled.as_text())}
    report["agree"] = True
    for name, result, wanted in zip(
        ("loss", "gradient"), results, expected, strict=True
    ):
        reference = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(wanted)])
        rows = np.hstack(  # [N or 1, numbers]
            [
                np.reshape(leaf, (-1, np.size(like)))
                for leaf, like in zip(
                    jax.tree.leaves(result), jax.tree.leaves(wanted), strict=True
                )
            ]
        )
        distances = np.linalg.norm(rows - reference, axis=1)
        report[name] = float(distances.max() / np.linalg.norm(reference))
        report["factor"] = float(rows[0] @ reference / (reference @ reference))
        if not np.allclose(rows, rows[:1], rtol=EQUAL):
            report["agree"] = False
    return report
