"""Checks of lesson 18's exercises. Time is pretended, so that a busy machine changes no verdict."""

import math
from types import SimpleNamespace

import numpy as np

from pmapdp.lessons.checks import require


class PretendedDevice:
    """A jitted function that compiles for 5 s and then works through a queue, with its own time `now` in seconds."""

    def __init__(self, dispatch: float, step: float):
        self.dispatch, self.step = dispatch, step
        self.now, self.idle_from, self.calls, self.readings = 100.0, 0.0, 0, 0

    def __call__(self, x):
        """Put the work into the queue, and return what can be waited for."""
        self.now += self.dispatch + (5 if self.calls == 0 else 0)
        self.calls += 1
        self.idle_from = ready = max(self.idle_from, self.now) + self.step
        return SimpleNamespace(
            block_until_ready=lambda: setattr(self, "now", max(self.now, ready))
        )

    def clock(self) -> float:
        """The time."""
        self.readings += 1
        return self.now


def fixed_timer(answer):
    """Dispatch and work of a warm call, and nothing else."""
    random = np.random.default_rng()
    step, dispatch = (
        float(random.uniform(0.1, 0.2)),
        float(random.uniform(0.001, 0.002)),
    )
    device = PretendedDevice(dispatch, step)
    found = answer(device, 0, device.clock)
    require(device.readings >= 2, "read `clock()` before the call and after it")
    require(
        device.calls >= 2,
        "the only call was the first, which also compiles: call once before the clock starts",
    )
    require(
        found > 0, f"the result is {found}: it is the later time less the earlier one"
    )
    require(
        found < 4,
        f"{found:.3f} s: compiling took 5 s and is in it: call once before the clock starts",
    )
    dispatched = (
        f"{found:.4f} s is the time to dispatch the work; it takes {step:.3f} s"
    )
    require(
        found > step / 2,
        f"{dispatched}: wait with jax.block_until_ready before you read the clock again",
    )
    running = "the first call was still running when the clock started: wait for it too"
    warm = step + dispatch
    require(
        found < 1.5 * step, f"{found:.3f} s, but a call takes {warm:.3f} s: {running}"
    )
    wanted = f"a warm call takes {warm:.4f} s until its result is there, yours is {found:.4f} s"
    require(math.isclose(found, warm, rel_tol=1e-6), wanted)


def scan_flops(answer):
    """All rounds of a loop."""
    random = np.random.default_rng()
    for rounds in (3, int(random.integers(8, 20))):
        rows, width = int(random.integers(20, 40)), 64
        weights, x = (
            np.ones((rounds, width, width), np.float32),
            np.ones((rows, width), np.float32),
        )
        found = answer(lambda x, w: (x @ w, None), x, weights)
        require(np.shape(found) == (), "return one number")
        of_one = 2 * rows * width**2
        once = f"{found:.0f} are the operations of one round: the body of a scan is counted once, and it runs {rounds} times"
        require(not np.isclose(found, of_one, rtol=0.02), once)
        half = "a product takes a multiplication and an addition for each term"
        require(not np.isclose(found, rounds * of_one / 2, rtol=0.02), half)
        products = f"{rounds} products of [{rows}, {width}] and [{width}, {width}] take {rounds * of_one} operations"
        require(
            np.isclose(found, rounds * of_one, rtol=0.01),
            f"{products}, yours is {found:.0f}",
        )


def least_examples(answer):
    """The least b whose backward pass is as long as the ring."""
    random = np.random.default_rng()
    latency, bandwidth = 1e-6, 1e9
    for N in (2, 8, 64):
        n = N * int(random.integers(1e5, 1e6))
        ring = 2 * (N - 1) * (latency + n / N / bandwidth)
        least = int(random.integers(20, 200))
        # The exact solution lies well between two whole numbers, so that rounding
        # errors decide nothing.
        seconds = ring / (2 / 3) / (least - 0.5)
        found = answer(n, N, latency, bandwidth, seconds)
        require(
            np.shape(found) == () and float(found) == int(found),
            f"examples are whole: yours is {found}",
        )
        whole_example, half_ring = (
            math.ceil(ring / seconds),
            math.ceil(ring / 2 / (2 / 3) / seconds),
        )
        for words, wrong in {
            "one example more is needed: round up": least - 1,
            "the forward pass comes before the gradients: only the backward pass hides anything": whole_example,
            "this hides a reduce-scatter alone: a ring all-reduce has 2 (N - 1) messages": half_ring,
        }.items():
            require(found != wrong, f"{found} is not it: {words}")
        case = f"n = {n}, N = {N}, L = {latency}, W = {bandwidth:.0e}, {seconds:.2e} s an example"
        require(
            found == least,
            f"{case}: {least} are enough and {least - 1} are not, yours is {found}",
        )
    found = answer(8, 2, 1e-9, 1e12, 1.0)
    require(
        found == 1,
        f"an all-reduce shorter than one backward pass is hidden from 1 example on, yours is {found}",
    )
