"""Checks of lesson 18's exercises. Time is pretended, so that a busy machine changes no verdict."""

import math

import jax
import numpy as np

from pmapdp_lessons.checks import require


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


def mended_timer(answer):
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


def all_rows(answer):
    """The sum of any number of rows, from one shape."""
    traced = []

    @jax.jit
    def compiled(x, weights):
        traced.append(x.shape)
        return (weights * x**2).sum(0)

    random, size = np.random.default_rng(), 16
    for rows in (32, 37, 5):
        x = random.normal(size=(rows, 3)).astype(np.float32)
        found = np.asarray(answer(compiled, x, size))
        require(found.shape == (3,), f"the sum has the shape (3,), yours has {found.shape}")
        require(
            set(traced) <= {(size, 3)},
            f"compiled was traced for {sorted(set(traced))}: give it {size} rows in every call",
        )
        dropped = (x[: rows // size * size] ** 2).sum(0)
        require(
            rows % size == 0 or not np.allclose(found, dropped, atol=1e-3),
            f"of {rows} rows the last {rows % size} are missing: pad them",
        )
        require(np.allclose(found, (x**2).sum(0), rtol=1e-4, atol=1e-3), f"the sum of {rows} rows is wrong")


def utilization(answer):
    """Operations over seconds over the rate."""
    random = np.random.default_rng()
    n, seconds = int(random.integers(20, 60)), float(random.uniform(1e-4, 1e-3))
    rate = 4 * n**3 / seconds
    found = answer(lambda x: x @ x, jax.numpy.ones((n, n)), seconds, rate)
    require(np.shape(found) == (), "return one number")
    require(not np.isclose(found, 0.25, rtol=0.02), "a product takes a multiplication and an addition for each term")
    require(
        np.isclose(found, 0.5, rtol=0.02),
        f"the product of two [{n}, {n}] takes {2 * n**3} operations; in {seconds:.1e} s at {rate:.2e}/s that is 0.50 of "
        f"the rate, yours is {found:.3g}",
    )
