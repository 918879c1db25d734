"""What ends the whole process in C++, found out before; and environment variables that JAX cannot start with."""

import os
import tempfile
import traceback
import warnings

VARIABLES = ("JAX_", "XLA_", "CUDA_VISIBLE_DEVICES")
STARTING = ("/jax/_src/config.py", "/jax/_src/xla_bridge.py")  # they read the variables and start the backends


def check_xla_flags() -> str | None:
    """What is wrong with XLA_FLAGS, or None.

    XLA ends the whole process at a flag that it does not know: a child process tries them first (some 5 ms).
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if not flags:
        return None
    from jax._src import xla_bridge
    from jaxlib import xla_client

    if xla_bridge.backends_are_initialized():  # then XLA has read them
        return None
    with tempfile.TemporaryFile() as output:
        with warnings.catch_warnings(action="ignore"):  # JAX and Python warn of threads, of which the child uses none
            child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 2)
            try:
                xla_client.CompileOptions().executable_build_options.debug_options  # noqa: B018 (reads the flags)
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1] == 0:
            return None
        output.seek(0)
        said = output.readline().decode(errors="replace").strip().rpartition("] ")[2] or "it crashes"
    return f"XLA_FLAGS={flags} in the environment is refused by XLA ({said}): correct or unset it"


def cannot_start(error: BaseException) -> str | None:
    """The sentence about an error of JAX that stems from the environment, or None for any other error."""
    given = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(VARIABLES)]
    frames = traceback.extract_tb(error.__traceback__)
    if not given or not frames or not frames[-1].filename.endswith(STARTING):
        return None
    said = next(iter(str(error).splitlines()), "") or "no such device"
    return f"JAX cannot start with {' '.join(given)} in the environment ({said}): unset what is wrong there"
