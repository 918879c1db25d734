"""What ends the whole process in C++, found out before; and environment variables that JAX cannot start with."""

import os
import re
import resource
import tempfile
import warnings

from pmapdp.errors import reason

VARIABLES = re.compile("JAX_(?!.*CACHE)|XLA_|CUDA_VISIBLE_DEVICES")  # with which JAX may be unable to start
# Those of JAX that say where it computes, and what it keeps and prints, not how; of 64 bits a run decides itself.
ORDINARY = re.compile("JAX_(PLATFORM|NUM_|.*CACHE|COORDINATOR|PROCESS|LOCAL_DEVICE|LOG|TRACEBACK|ENABLE_X64)")
LEAST_ADDRESSES = 1.8e9  # bytes; with less C++ ends the process. A run of the digits on two devices takes 2.0e9.
MOST_DEVICES = 1024


def check_environment() -> str | None:
    """What is wrong with the environment in which a command starts, before JAX is imported; None where it will do."""
    if 0 <= (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) < LEAST_ADDRESSES:
        return f"ulimit -v {limit // 1024} leaves {limit / 1e9:.1f} GB, and JAX needs 2 or more: remove the limit"
    flags, devices = os.environ.get("XLA_FLAGS", ""), os.environ.get("JAX_NUM_CPU_DEVICES", "")
    for number in re.findall(r"device_count=(\d+)", f"{flags} device_count={devices}"):
        if len(number) > 4 or int(number) > MOST_DEVICES:
            name = f"JAX_NUM_CPU_DEVICES={devices}" if number == devices else f"XLA_FLAGS={flags}"
            return f"{name} in the environment asks for more devices than can be simulated: set at most {MOST_DEVICES}"
    return check_xla_flags()


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
    """The sentence about an error of a command whose environment lets JAX not start, or compute in another way than by
    default; None where it says neither."""
    given = [f"{name}={value}" for name, value in os.environ.items() if VARIABLES.match(name)]
    if not given:
        return None
    try:
        import jax

        jax.devices()
    except Exception:
        said = next(iter(str(error).splitlines()), "") or "no such device"
        return f"JAX cannot start with {' '.join(given)} in the environment ({said}): unset what is wrong there"
    if not (unusual := changed()):
        return None
    return f"{type(error).__name__} with {' '.join(unusual)} in the environment ({reason(error)}): unset it"


def changed() -> list[str]:
    """The variables of the environment, as `NAME=value`, that let JAX compute in another way than by default."""
    given = sorted(os.environ.items())
    return [f"{name}={value}" for name, value in given if name.startswith("JAX_") and not ORDINARY.match(name)]
