"""Devices: simulate several on one CPU, choose some for a run, and describe them.

Lesson 00 teaches this file. Simulated devices share the machine's cores: they show that
a program is right, not how fast it would be on as many real devices.
"""

import contextlib
import os
import re
from typing import Any

import jax

from pmapdp.errors import UserError, first_line

DEFAULT_SIMULATED = 8
MOST_SIMULATED = 1024

# Before jax 0.12 a collective on a CPU holds a thread of XLA's pool on every device
# while it waits for the others, and with few threads the process aborts (seen with jax
# 0.10 and 0.11, never with 0.12; docs/simulated_devices.md).
COLLECTIVES_HOLD_THREADS = jax.__version_info__ < (0, 12)


def count_cores() -> int:
    """Count the CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_from_environment() -> tuple[str, int] | None:
    """Return the variable that sets the number of CPU devices, and the number.

    None if there is no such variable.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    match = re.search(r"--xla_force_host_platform_device_count=(\d+)", flags)
    if match:
        return "XLA_FLAGS", int(match[1])
    value = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    if value.isdigit():
        return "JAX_NUM_CPU_DEVICES", int(value)
    return None


def count_from_config() -> int:
    """Return the number of CPU devices in JAX's configuration, or -1."""
    config: Any = jax.config  # its settings are defined as JAX is imported
    return config.jax_num_cpu_devices


def simulate(count: int = DEFAULT_SIMULATED) -> None:
    """Make JAX show at least `count` CPU devices. Call it before JAX computes anything.

    It does no harm on a machine with accelerators, because `jax.devices()` lists those
    first. A number that you set in the environment (`XLA_FLAGS`, `JAX_NUM_CPU_DEVICES`)
    stays.

    Args:
        count: The smallest number of devices.

    Raises:
        UserError: The environment allows fewer than `count`, or JAX has already started
            with fewer.

    Example:
        simulate(8)
        print(len(jax.devices()))
    """
    if not 1 <= count <= MOST_SIMULATED:
        raise UserError(
            f"{count} devices cannot be simulated: use 1 or more, and at most "
            f"--devices {MOST_SIMULATED}"
        )
    environment = count_from_environment()
    if environment:
        variable, number = environment
        if number < count:
            raise UserError(
                f"{count} devices were asked for, but {variable} in the environment "
                f"allows {number}: unset it, or ask for at most {number}"
            )
    else:
        # A larger number that was asked for before stays: one device now does not
        # exclude four in the next run.
        number = max(count, count_from_config())
        try:
            jax.config.update("jax_num_cpu_devices", number)
        except RuntimeError:  # JAX has started, so its devices are what there is
            started = len(jax.local_devices())
            if started < count:
                raise UserError(
                    f"{count} devices cannot be simulated any more: JAX has already "
                    f"started with {started}; call pmapdp.devices.simulate before any "
                    "other use of JAX (in a notebook: restart the kernel)"
                ) from None
            return
    if COLLECTIVES_HOLD_THREADS:
        # The environment variable NPROC sets the size of the pool. Twice as many
        # threads as devices never aborted.
        threads = os.environ.get("NPROC", "")
        if not threads.isdigit():
            threads = str(count_cores())
        os.environ["NPROC"] = str(max(int(threads), 2 * number))


def choose_devices(count: int | None = None) -> list[jax.Device]:
    """Return the devices of this process that a run uses.

    Args:
        count: The first `count`. None: all accelerators, or as many simulated CPU
            devices as the environment or the program has asked for, or 8. Once JAX has
            started, no more can be added.

    Raises:
        UserError: There are fewer than `count`, or none of the kind that
            `JAX_PLATFORMS` asks for.
    """
    if count is None:
        simulate_default()
    else:
        simulate(count)
    try:
        devices = jax.local_devices()
    except Exception as error:  # of JAX, an AssertionError too
        platforms = os.environ.get("JAX_PLATFORMS", "")
        raise UserError(
            f"JAX finds no device with JAX_PLATFORMS={platforms} ({first_line(error)}"
            "): install JAX's build for it, or unset the variable"
        ) from error
    if count is not None and count > len(devices):
        raise UserError(
            f"--devices {count} is more than the {len(devices)} {devices[0].platform} "
            f"device(s) here: use at most --devices {len(devices)} "
            "(or set JAX_PLATFORMS=cpu to simulate more)"
        )
    return devices[:count]


def simulate_default() -> None:
    """Simulate as many devices as the environment or the program asks for, or 8."""
    count = DEFAULT_SIMULATED
    environment = count_from_environment()
    if environment:
        count = environment[1]
    elif count_from_config() > 0:
        count = count_from_config()
    # JAX may have started, and then its devices are what there is.
    with contextlib.suppress(UserError):
        simulate(count)


def extend_to_all_processes(local: list[jax.Device]) -> list[jax.Device]:
    """Return the devices of a run: the first `len(local)` of each process, in order."""
    if jax.process_count() == 1:
        return local
    devices = []
    for process in range(jax.process_count()):
        devices += jax.local_devices(process, local[0].platform)[: len(local)]
    return devices


def describe(devices: list[jax.Device]) -> str:
    """Describe devices in one line, such as `8 simulated CPU devices on 2 cores`."""
    number = len(devices)
    processes = len({device.process_index for device in devices})
    if processes > 1:
        process = jax.process_index()
        local = [device for device in devices if device.process_index == process]
        return f"{number} in {processes} processes, each {describe(local)}"
    if devices[0].platform != "cpu":
        return f"{number} x {devices[0].device_kind}"
    cores = count_cores()
    host = "1 core" if cores == 1 else f"{cores} cores"
    if number == 1:
        return f"1 CPU device on {host}"
    return f"{number} simulated CPU devices on {host}"
