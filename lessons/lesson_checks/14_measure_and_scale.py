"""Checks of lesson 14's exercises. Time is pretended, so that a busy machine changes no verdict."""

import math

import numpy as np
from checks import require


class PretendedDevice:
    """A function on a device that works through a queue; `now` is the time in seconds.

    Args:
        compile_seconds: of the first call, in which Python waits.
        dispatch_seconds: of every call, in Python.
        step_seconds: of the work of a call, on the device.
    """

    def __init__(self, compile_seconds: float, dispatch_seconds: float, step_seconds: float):
        self.compile_seconds, self.dispatch_seconds, self.step_seconds = compile_seconds, dispatch_seconds, step_seconds
        self.now, self.idle_from, self.calls, self.readings = 100.0, 0.0, 0, 0

    def __call__(self, x):
        """Put the work into the queue; its result can be waited for."""
        self.now += self.dispatch_seconds + (self.compile_seconds if self.calls == 0 else 0)
        self.calls += 1
        self.idle_from = max(self.idle_from, self.now) + self.step_seconds
        return PretendedResult(self, self.idle_from)

    def clock(self) -> float:
        """The time."""
        self.readings += 1
        return self.now


class PretendedResult:
    """What a call returns at once; `block_until_ready` waits until the work is done."""

    def __init__(self, device: PretendedDevice, ready: float):
        self.device, self.ready = device, ready

    def block_until_ready(self):
        """Wait."""
        self.device.now = max(self.device.now, self.ready)
        return self


def seconds_per_call(answer):
    """Dispatch and work of a warm call, and nothing else."""
    random = np.random.default_rng()
    step, dispatch = float(random.uniform(0.1, 0.2)), float(random.uniform(0.001, 0.002))
    device = PretendedDevice(compile_seconds=5.0, dispatch_seconds=dispatch, step_seconds=step)
    found = answer(device, 0, device.clock)
    require(device.readings >= 2, "read `clock()` before the call and after it")
    require(device.calls >= 2, "the only call was the first, which also compiles: call once before the clock starts")
    require(np.shape(found) == (), f"return one number of seconds, yours has the shape {np.shape(found)}")
    require(found > 0, f"the result is {found}: it is the later time less the earlier one")
    require(found < 4, f"{found:.3f} s: compiling took 5 s and is in it: call once before the clock starts")
    require(
        found > step / 2,
        f"{found:.4f} s is the time to dispatch the work; it takes {step:.3f} s: wait with jax.block_until_ready "
        "before you read the clock again",
    )
    require(
        not math.isclose(found, 2 * step + dispatch, rel_tol=1e-6) and found < 1.5 * step,
        f"{found:.3f} s, but a call takes {step + dispatch:.3f} s: the first call was still running when the clock "
        "started: wait for it too",
    )
    require(
        math.isclose(found, step + dispatch, rel_tol=1e-6),
        f"a warm call takes {step + dispatch:.4f} s until its result is there, yours is {found:.4f} s",
    )


def bytes_sent(answer):
    """2 (N - 1) messages of n / N bytes."""
    random = np.random.default_rng()
    for N in (4, int(random.integers(5, 100))):
        n = N * int(random.integers(1000, 2000))
        found, expected = answer(n, N), 2 * (N - 1) * n / N
        require(
            not math.isclose(found, 2 * n, rel_tol=1e-9),
            f"2 n = {2 * n} is the limit for many devices; with N = {N} a device keeps its own part in both phases",
        )
        require(
            not math.isclose(found, expected / 2, rel_tol=1e-9),
            "this is one phase: after the reduce-scatter the sums must be sent around as well",
        )
        require(
            not math.isclose(found, N * expected, rel_tol=1e-9),
            f"{N} times too much: a message has n / N = {n // N} bytes, not n",
        )
        require(
            math.isclose(found, expected, rel_tol=1e-9),
            f"n = {n}, N = {N}: 2 (N - 1) messages of n / N bytes are {expected:.0f} bytes, yours is {found}",
        )


def least_batch(answer):
    """The least b with r / (b e + r) at most `share`."""
    random = np.random.default_rng()
    for share in (0.1, 0.25):
        example = 1e-6 * int(random.integers(1, 9))
        least = int(random.integers(20, 200))
        # The exact solution lies well between two whole numbers, so that rounding errors decide nothing.
        reduce = (least - 0.5) * example * share / (1 - share)
        found = answer(example, reduce, share)
        require(np.shape(found) == () and float(found) == int(found), f"examples are whole: yours is {found}")
        found = int(found)
        require(
            found != least - 1,
            f"with {found} examples the all-reduce takes {reduce / (found * example + reduce):.1%} of the step, more "
            f"than {share:.0%}: round up",
        )
        of_compute = math.ceil(reduce / (share * example))
        require(
            found != of_compute,
            f"{found} makes the all-reduce {share:.0%} of the examples' time; the step is their time plus the all-reduce",
        )
        require(
            found == least,
            f"e = {example:.0e} s, r = {reduce:.2e} s, share {share}: {least} examples are enough and {least - 1} are not, "
            f"yours is {found}",
        )
