"""What ends the whole process in C++, found out before; and environment variables that JAX cannot start with."""

import os
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable

VARIABLES = ("JAX_", "XLA_", "CUDA_VISIBLE_DEVICES")
STARTING = ("/jax/_src/config.py", "/jax/_src/xla_bridge.py")  # they read the variables and start the backends


def check_xla_flags() -> str | None:
    """What is wrong with XLA_FLAGS, or None.

    XLA ends the whole process at a flag that it does not know.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    if not flags:
        return None
    from jax._src import xla_bridge
    from jaxlib import xla_client

    if xla_bridge.backends_are_initialized():  # then XLA has read them
        return None
    last_words = crash(lambda: xla_client.CompileOptions().executable_build_options.debug_options)  # reads the flags
    if last_words is None:
        return None
    return f"XLA_FLAGS={flags} in the environment is refused by XLA ({last_words}): correct or unset it"


def crash(work: Callable[[], object]) -> str | None:
    """What is wrong where `work` raises an exception, or would end this process in C++, or hold it for a minute; None
    where it does not. A child process tries it (some 5 ms), in which no thread runs but this one."""
    with tempfile.TemporaryFile() as output:
        with warnings.catch_warnings(action="ignore"):  # JAX and Python warn of threads, of which the child uses none
            child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 2)
            signal.alarm(60)
            try:
                work()
            except Exception as error:
                os.write(2, str(error).encode())
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return None
        output.seek(0)
        return output.readline().decode(errors="replace").strip().rpartition("] ")[2] or "it crashes"


def cannot_start(error: BaseException) -> str | None:
    """The sentence about an error of JAX that stems from the environment, or None for any other error."""
    given = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(VARIABLES)]
    frames = traceback.extract_tb(error.__traceback__)
    if not given or not frames or not frames[-1].filename.endswith(STARTING):
        return None
    said = next(iter(str(error).splitlines()), "") or "no such device"
    return f"JAX cannot start with {' '.join(given)} in the environment ({said}): unset what is wrong there"
