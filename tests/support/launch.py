"""Start our commands as a user would.

In a process of their own, with none of pytest's settings of JAX.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

# Most of a test's time is compilation. These only spare the code generator some work
# and keep it on one core, for other tests have the rest; the programs of XLA, their
# collectives and their results stay what they are.
QUICK_COMPILATION = (
    "--xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1"
)
if version("jaxlib").startswith(
    "0.10."
):  # its older code generator, which later versions no longer have
    QUICK_COMPILATION += " --xla_cpu_use_fusion_emitters=false"
# pytest's own process runs many programs a few times each; a command runs few, and
# often.
IN_TESTS = f"{QUICK_COMPILATION} --xla_backend_optimization_level=0"
IN_COMMANDS = f"{QUICK_COMPILATION} --xla_backend_optimization_level=1"
# Where JAX keeps compiled programs, and that it keeps all: tests/conftest.py sets them.
COMPILED = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES",
)
# JAX writes lines of Python into every operation that it lowers. Without the callers'
# lines it takes a quarter less.
CALLERS = "JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS"
TESTS = Path(__file__).parent.parent
NOT_THEIRS = ("NPROC", "XLA_FLAGS", "PMAPDP_DATA", "PYTHONDONTWRITEBYTECODE")


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return the variables of a user who has set none for JAX, pmapdp or Python, with
    `changes`; None removes one.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in NOT_THEIRS
        and (name in (*COMPILED, CALLERS) or not name.startswith("JAX_"))
    }
    # Scripts of the tests import from `support`, and everything comes from this tree,
    # wherever the command runs.
    paths = os.pathsep.join(
        str(path) for path in (TESTS / "support", TESTS, TESTS.parent)
    )
    ours = {
        "PYTHONPATH": paths,
        "JAX_PLATFORMS": "cpu",
        "COLUMNS": "100",
        "XLA_FLAGS": IN_COMMANDS,
    }
    return {
        name: value
        for name, value in (kept | ours | dict(changes or {})).items()
        if value is not None
    }


def python(
    *arguments: object,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 300,
    cwd: Path = TESTS,
):
    """Run this Python with `arguments` in a folder, by default `tests/`.

    The finished process with its output as text.
    """
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(env),
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        check=False,
    )


def train(
    *arguments: object,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 300,
):
    """Run `python -m pmapdp.train` with `arguments`."""
    return python("-m", "pmapdp.train", *arguments, env=env, timeout=timeout)
