"""What ends the whole process in C++, found out before; and environment variables that JAX cannot start with."""

import os
import tempfile
import warnings

VARIABLES = ("JAX_", "XLA_", "CUDA_VISIBLE_DEVICES")


def check_xla_flags() -> str | None:
    """What is wrong with XLA_FLAGS, or None. Must come before JAX starts its backends.

    XLA ends the whole process at a flag that it does not know: a child process, forked here, tries them first by
    starting JAX on the CPU (some 50 ms).
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if not flags:
        return None
    import jax

    with tempfile.TemporaryFile() as output:
        with warnings.catch_warnings(action="ignore"):  # JAX and Python warn of threads, of which the child uses none
            child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 2)
            try:
                jax.config.update("jax_platforms", "cpu")
                jax.devices()
            finally:  # an exception has other causes, which show when this process starts JAX
                os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return None
        output.seek(0)
        said = output.readline().decode(errors="replace").strip().rpartition("] ")[2] or "it crashes"
    given = flags if flags.strip() else repr(flags)
    return f"XLA_FLAGS={given} in the environment is refused by XLA ({said}): correct or unset it"


def cannot_start(error: BaseException) -> str | None:
    """The sentence about an error of a command whose environment lets JAX not start; None where JAX starts, or the
    environment says nothing about it."""
    given = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(VARIABLES)]
    if not given:
        return None
    try:
        import jax

        jax.devices()
    except Exception:
        said = next(iter(str(error).splitlines()), "") or "no such device"
        return f"JAX cannot start with {' '.join(given)} in the environment ({said}): unset what is wrong there"
    return None
