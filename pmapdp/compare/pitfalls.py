"""Run the pitfalls of the catalogue, and compare them and the right lines with one device."""

import functools
import textwrap
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax
from jax.sharding import Mesh, NamedSharding

from pmapdp.compare.collectives import instructions
from pmapdp.compare.words import EQUAL
from pmapdp.devices import choose
from pmapdp.verify.causes import CATALOGUE

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


def load_pitfalls() -> list[dict[str, Any]]:
    """List the small programs of the catalogue of mistakes, each with its cause."""
    return [
        case | {"cause": cause}
        for cause, mistake in CATALOGUE.items()
        for case in mistake.get("pitfalls", [])
    ]


def make_program(body: str, **names: Program) -> Program:
    """Make a function of (params, batch, key) from its body."""
    found: dict[str, Any] = {**NAMES, **names}
    exec(
        f"def program(params, batch, key):\n{textwrap.indent(body.strip(), '    ')}",
        found,
    )
    return found["program"]


def run_pitfalls() -> list[dict[str, Any]]:
    """Run every pitfall on all devices, and return the catalogue with how far each result is off."""
    with (
        jax.enable_x64(True),
        jax.transfer_guard("allow"),
    ):  # programs are given arrays of the host
        devices = choose()
        mesh = Mesh(np.array(devices), ("data",))
        replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
        params, batch, key = example(len(devices))
        rows = jax.tree.map(lambda x: x.reshape(len(devices), -1, *x.shape[1:]), batch)

        def run_pmap(program: Program) -> dict[str, Any]:
            pmapped = jax.pmap(
                program, "data", in_axes=(None, 0, None), devices=devices
            )
            return compare_results(pmapped, (params, rows, key), wanted)

        def run_shard_map(program: Program, check_vma: bool) -> dict[str, Any]:
            def stacked(*given: Any) -> Any:  # so that each device's result can be read
                return jax.tree.map(lambda x: x[None], program(*given))

            specs: dict[str, Any] = {
                "in_specs": (P(), P("data"), P()),
                "out_specs": P("data"),
                "check_vma": check_vma,
            }
            return compare_results(
                jax.jit(jax.shard_map(stacked, mesh=mesh, **specs)),
                (params, batch, key),
                wanted,
            )

        found = []
        for case in load_pitfalls():
            one_device = make_program(case["one_device"])
            wanted = jax.device_get(jax.jit(one_device)(params, batch, key))
            jitted = jax.jit(
                one_device,
                in_shardings=(replicated, split, replicated),
                out_shardings=replicated,
            )
            results = {
                "one_device": {
                    "jit": compare_results(jitted, (params, batch, key), wanted)
                }
            }
            wrong, right = (
                make_program(case[kind], one_device=one_device)
                for kind in ("wrong", "right")
            )
            checked = case.get("check_vma", False)  # pmap has no such option
            results["wrong"] = {} if checked else {"pmap": run_pmap(wrong)}
            results["wrong"]["shard_map"] = run_shard_map(wrong, checked)
            results["right"] = {
                "pmap": run_pmap(right),
                "shard_map": run_shard_map(right, False),
            }
            found.append(case | {"results": results})
        return found


def example(N: int) -> tuple[Any, Any, Any]:
    """Make parameters, a batch of N * b examples in which only one of the last device's counts, and a key."""
    random = np.random.default_rng(0)
    params = {"W1": random.normal(size=(D, H)), "W2": random.normal(size=H)}
    x = (
        random.normal(size=(N * b, D)) + np.linspace(-1, 1, N * b)[:, None]
    )  # the devices' examples are unlike
    weight = (np.arange(N * b) <= (N - 1) * b).astype(float)
    return (
        params,
        {"x": x, "y": np.sin(x.sum(1)), "index": np.arange(N * b), "weight": weight},
        jax.random.key(0),
    )


def compare_results(function: Any, arguments: Any, wanted: Any) -> dict[str, Any]:
    """Compare loss and gradient with `wanted`: the relative difference, on the device that is farthest off.

    `factor` is how many times as long the gradient is along the wanted one. `agree`
    tells if all devices have the same.
    """
    compiled = function.lower(*arguments).compile()
    off: dict[str, Any] = {
        "agree": True,
        "collectives": instructions(compiled.as_text()),
    }
    for what, got, right in zip(
        ("loss", "gradient"), jax.device_get(compiled(*arguments)), wanted, strict=True
    ):
        pairs = list(zip(jax.tree.leaves(got), jax.tree.leaves(right), strict=True))
        one = np.concatenate([np.ravel(leaf) for _, leaf in pairs])
        each = np.hstack(
            [np.reshape(leaf, (-1, np.size(like))) for leaf, like in pairs]
        )  # [N or 1, numbers]
        off[what] = float(
            np.linalg.norm(each - one, axis=1).max() / np.linalg.norm(one)
        )
        off["agree"] = off["agree"] and np.allclose(each, each[:1], rtol=EQUAL)
        off["factor"] = float(each[0] @ one / (one @ one))
    return off
