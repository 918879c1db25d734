"""What a report of a fault needs of the machine: `python -m pmapdp.environment`.

Versions, the devices that JAX shows without simulating any, and the environment variables that change what it does.
"""

if __name__ == "__main__":  # before the imports, which take a second: a signal or an error in it ends in one line too
    from pmapdp.command.program import run

    run("pmapdp.environment.__main__")

import json
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

from pmapdp import __version__
from pmapdp.command.flags import parse_options
from pmapdp.config import setting
from pmapdp.devices import cores
from pmapdp.errors import reason

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
VARIABLES = ("JAX_", "XLA_", "NPROC", "PMAPDP_", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Options:
    """Print versions, devices and the environment variables that JAX reads, for a report."""

    json: bool = setting("options", False, "Print one JSON object.")


def facts() -> dict[str, Any]:
    """Versions, devices and variables, by their names; a package that is not installed has None."""
    return {
        "pmapdp": __version__,
        **{name: installed(name) for name in PACKAGES},
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": cores(),
        "devices": devices(),
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)},
    }


def devices() -> str:
    """The number and kind of the devices, or why JAX has none: a report is wanted then too."""
    try:
        found = jax.devices()
    except Exception as error:  # JAX has no error of its own
        return f"none, JAX cannot start: {reason(error)}"
    return f"{len(found)} x {found[0].device_kind} ({found[0].platform})"


def installed(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main(arguments: list[str]) -> None:
    """The command."""
    options = parse_options(Options, arguments, program="python -m pmapdp.environment", example="--json")
    found = facts()
    if options.json:
        print(json.dumps(found))
        return
    variables = found.pop("variables")
    for name, value in found.items():
        print(f"{name:<16} {'not installed' if value is None else value}")
    for name, value in variables.items():
        print(f"{name}={value}")
