"""Devices: simulate several on one CPU, safely, and choose those that a run uses.

Lesson 00 teaches this file. Simulated devices share the machine's cores: they show that
a program is right, not how fast it would be on as many real devices.
"""

import os
import re
import threading
import time

import jax

from pmapdp.errors import UserError

DEFAULT_SIMULATED, MOST_SIMULATED = 8, 1024

# Before jax 0.12 a collective on a CPU holds a thread of XLA's pool on every device
# while it waits for the others, and with few threads the process aborts (seen with jax
# 0.10 and 0.11, never with 0.12; docs/simulated_devices.md).
COLLECTIVES_HOLD_THREADS = jax.__version_info__ < (0, 12)


def cores() -> int:
    """Count the CPU cores that this process may run on."""
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )


def count_from_environment() -> tuple[str, int] | None:
    """Return (XLA_FLAGS or JAX_NUM_CPU_DEVICES, its number of CPU devices), or None if you have set neither."""
    if found := re.search(
        r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", "")
    ):
        return "XLA_FLAGS", int(found[1])
    if (value := os.environ.get("JAX_NUM_CPU_DEVICES", "")).isdigit():
        return "JAX_NUM_CPU_DEVICES", int(value)
    return None


def count_started() -> int | None:
    """Return the number of CPU devices with which JAX has started, or None if it can still be set."""
    before = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined] # defined as JAX is imported
    try:
        jax.config.update(
            "jax_num_cpu_devices", before + 2
        )  # any change is refused once JAX has started
    except RuntimeError:
        return len(jax.local_devices(backend="cpu"))
    jax.config.update("jax_num_cpu_devices", before)
    return None


def simulate(count: int = DEFAULT_SIMULATED) -> None:
    """Make JAX show at least `count` CPU devices. Call it before the first JAX computation.

    It does no harm on a machine with accelerators, because `jax.devices()` lists those
    first. A number that you set in the environment (`XLA_FLAGS`, `JAX_NUM_CPU_DEVICES`)
    stays. A `UserError` says if it's smaller than `count`, or if JAX has already
    started with fewer devices.
    """
    if not 1 <= count <= MOST_SIMULATED:
        raise UserError(
            f"{count} devices cannot be simulated: use 1 or more, and at most --devices {MOST_SIMULATED}"
        )
    variable, given = count_from_environment() or ("", 0)
    if variable and given < count:
        raise UserError(
            f"{count} devices were asked for, but {variable} in the environment allows {given}: unset it, or ask for "
            f"at most {given}"
        )
    if (started := count_started()) is not None:
        if started < count:
            advice = f"set {variable}" if variable else "call pmapdp.devices.simulate"
            raise UserError(
                f"{count} devices cannot be simulated any more: JAX has already started with {started}; {advice} "
                "before any other use of JAX (in a notebook: restart the kernel)"
            )
        return
    # A larger number that was asked for before stays: one device now does not exclude
    # four in the next run.
    number = given or max(count, jax.config.jax_num_cpu_devices)  # type: ignore[attr-defined]
    if not given:
        jax.config.update("jax_num_cpu_devices", number)
    try:
        for _ in range(
            4 * number + 16
        ):  # about as many as JAX starts; if a limit forbids them, XLA aborts
            threading.Thread(target=time.sleep, args=(0.05,), daemon=True).start()
    except RuntimeError:
        raise UserError(
            f"JAX needs about {4 * number + 16} threads, and this process may not start them: use fewer --devices, or "
            "raise the limit on processes (ulimit -u, or the container's)"
        ) from None
    if COLLECTIVES_HOLD_THREADS:
        # The environment variable NPROC sets the size of the pool. Twice as many
        # threads as devices never aborted.
        threads = os.environ.get("NPROC", "")
        os.environ["NPROC"] = str(
            max(int(threads) if threads.isdigit() else cores(), 2 * number)
        )


def choose(count: int | None = None) -> list[jax.Device]:
    """Return the devices of this process: the first `count`, or all accelerators, or simulated CPU devices.

    Without a `count`, as many are simulated as the environment or the program has asked
    for, or 8. Once JAX has started, no more can be added. A `UserError` says if there
    are fewer than `count`.
    """
    given, asked = count_from_environment(), jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
    if count is not None or given or count_started() is None:
        default = given[1] if given else asked if asked > 0 else DEFAULT_SIMULATED
        simulate(default if count is None else count)
    devices = jax.local_devices()
    if count is not None and count > len(devices):
        raise UserError(
            f"--devices {count} is more than the {len(devices)} {devices[0].platform} device(s) here: use at most "
            f"--devices {len(devices)} (or set JAX_PLATFORMS=cpu to simulate more)"
        )
    return devices[:count]


def extend_to_all_processes(local: list[jax.Device]) -> list[jax.Device]:
    """Return the devices of a run: the first `len(local)` of every process, process by process."""
    if jax.process_count() == 1:
        return local
    return [
        d
        for p in range(jax.process_count())
        for d in jax.local_devices(p, local[0].platform)[: len(local)]
    ]


def describe(devices: list[jax.Device]) -> str:
    """Describe devices in one line, for example `8 simulated CPU devices on 2 cores`."""
    number, kind = len(devices), devices[0].device_kind
    processes = len({device.process_index for device in devices})
    if processes > 1:
        here = [
            device for device in devices if device.process_index == jax.process_index()
        ]
        return f"{number} in {processes} processes, each {describe(here)}"
    if devices[0].platform != "cpu":
        return f"{number} x {kind}"
    shared = "1 core" if cores() == 1 else f"{cores()} cores"
    return f"{'1 CPU device' if number == 1 else f'{number} simulated CPU devices'} on {shared}"
