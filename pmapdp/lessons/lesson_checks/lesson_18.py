"""Checks of lesson 18's exercises. Time is pretended, so a busy machine changes no verdict."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import require

COMPILE_SECONDS = 5.0
BACKWARD_SHARE = 2 / 3  # of an example's forward and backward pass


class PretendedResult:
    """A result that can be waited for, or copied to the host, which waits as well."""

    def __init__(self, wait):
        """Take the function that lets the time pass."""
        self.wait = wait

    def block_until_ready(self):
        """Wait, as `jax.block_until_ready` does."""
        self.wait()
        return self

    def __array__(self, dtype=None, copy=None):
        """Wait and copy, as `np.asarray` does."""
        self.wait()
        return np.zeros((), dtype)


class PretendedDevice:
    """A jitted function that compiles and then works through a queue, in its own time.

    Attributes:
        now: its time in seconds.
        calls: how often it was called.
        readings: how often its clock was read.
    """

    def __init__(self, dispatch: float, step: float):
        """Set the seconds of a dispatch, and of the work that follows."""
        self.dispatch = dispatch
        self.step = step
        self.now = 100.0
        self.idle_from = 0.0
        self.calls = 0
        self.readings = 0
        self.is_compiled = False

    def __call__(self, x):
        """Put the work into the queue, and return what can be waited for."""
        require(
            not isinstance(x, jax.core.Tracer),
            "`function` is jitted already, so don't transform it: call it as it is, or "
            "compile it ahead with `function.lower(x).compile()`",
        )
        self.compile()
        self.now += self.dispatch
        self.calls += 1
        ready = max(self.idle_from, self.now) + self.step
        self.idle_from = ready

        def wait():
            self.now = max(self.now, ready)

        return PretendedResult(wait)

    def lower(self, x):
        """Return what can be compiled ahead, as of a jitted function."""
        return self

    def compile(self):
        """Compile once, and return the function."""
        if not self.is_compiled:
            self.now += COMPILE_SECONDS
            self.is_compiled = True
        return self

    def clock(self) -> float:
        """Return the time."""
        self.readings += 1
        return self.now


def fixed_timer(answer):
    """Accept dispatch and work of a warm call, and nothing else."""
    step = 0.15
    dispatch = 0.0015
    device = PretendedDevice(dispatch, step)
    seconds = answer(device, 0, device.clock)
    require(device.readings >= 2, "read `clock()` before the call and after it")
    require(device.calls >= 1, "function(x) was never called")
    require(
        seconds > 0, f"the result is {seconds}: it is the later time less the earlier"
    )
    require(
        seconds < COMPILE_SECONDS,
        f"{seconds:.3f} s: compiling took {COMPILE_SECONDS:.0f} s and is in it: call "
        "once before the clock starts",
    )
    require(
        seconds > step / 2,
        f"{seconds:.4f} s is the time to dispatch the work; it takes {step:.3f} s: "
        "wait with jax.block_until_ready before you read the clock again",
    )
    warm = step + dispatch
    require(
        seconds < 1.5 * step,
        f"{seconds:.3f} s, but a call takes {warm:.3f} s: the first call was still "
        "running when the clock started, or it is counted with its "
        f"{COMPILE_SECONDS:.0f} s of compiling: wait for it before you start the clock",
    )
    require(
        math.isclose(seconds, warm, rel_tol=1e-6),
        f"a warm call takes {warm:.4f} s until its result is there, "
        f"yours is {seconds:.4f} s",
    )


def scan_flops(answer):
    """Accept the operations of all rounds, for layers of one product and of two."""

    # With a relu the gradient takes more products than the layer. Without it, both take
    # the same number.
    def one_product(x, w):
        return jax.nn.relu(x @ w), None

    def two_products(x, w):
        return jax.nn.relu(x @ w) @ w, None

    width = 128  # so that the products take over 99 %
    for layer, products, rounds, rows in (
        (one_product, 1, 3, 32),
        (one_product, 1, 11, 24),
        (two_products, 2, 5, 40),
    ):
        weights = np.ones((rounds, width, width), np.float32)
        x = np.ones((rows, width), np.float32)
        flops = answer(layer, jnp.asarray(x), jnp.asarray(weights))
        require(np.shape(flops) == (), "return one number")
        of_round = products * 2 * rows * width**2
        require(
            not np.isclose(flops, of_round, rtol=0.02),
            f"{flops:.0f} are the operations of one round: the body of a scan is "
            f"counted once, and it runs {rounds} times",
        )
        require(
            not np.isclose(flops, rounds * of_round / 2, rtol=0.02),
            f"{flops:.0f} is half of it: each term of a product takes a "
            "multiplication and an addition, and a layer may have several products",
        )
        require(
            np.isclose(flops, rounds * of_round, rtol=0.01),
            f"{rounds} rounds of {products} product(s) of [{rows}, {width}] and "
            f"[{width}, {width}] take {rounds * of_round} operations, "
            f"yours is {flops:.0f}",
        )


def least_examples(answer):
    """Accept the least b whose backward pass is as long as the ring."""
    # n bytes, N devices, latency in s, bytes/s, and the exact number of examples. In
    # these cases each mistake that we know gives another whole number.
    cases = (
        (4e6, 8, 1e-4, 1e9, 19.3),
        (4e6, 8, 1e-4, 1e9, 19.7),
        (6.4e7, 64, 1e-3, 1e10, 100.3),
        (1e6, 2, 1e-3, 1e9, 40.3),
        (2**20, 2, 0.5, 2**20, 4),  # a whole number, without rounding
    )
    for n, N, latency, bandwidth, exact in cases:
        ring = 2 * (N - 1) * (latency + n / N / bandwidth)
        seconds = ring / BACKWARD_SHARE / exact
        least = math.ceil(exact)
        found = answer(n, N, latency, bandwidth, seconds)
        # A float like 20.0 is whole, too, as `np.ceil` returns it.
        require(
            np.shape(found) == () and float(found) == int(found),
            f"examples are whole: yours is {found}",
        )
        one_latency = latency + 2 * (N - 1) * n / N / bandwidth
        mistakes = {
            "one example more is needed: round up": least - 1,
            "the forward pass comes before the gradients: only the backward pass hides "
            "anything": math.ceil(BACKWARD_SHARE * exact),
            "this hides a reduce-scatter alone: a ring all-reduce has 2 (N - 1) "
            "messages": math.ceil(exact / 2),
            "each of the 2 (N - 1) messages has a latency": math.ceil(
                exact * one_latency / ring
            ),
        }
        for message, wrong in mistakes.items():
            require(found != wrong, f"{found} is not it: {message}")
        require(
            found == least,
            f"n = {n:.0f}, N = {N}, L = {latency}, W = {bandwidth:.0e}, "
            f"{seconds:.2e} s an example: {least} are enough and {least - 1} are not, "
            f"yours is {found}",
        )
    found = answer(8, 2, 1e-9, 1e12, 1.0)
    require(
        found == 1,
        "an all-reduce shorter than one backward pass is hidden from 1 example on, "
        f"yours is {found}",
    )
    found = answer(8, 1, 1e-9, 1e12, 1.0)
    require(
        found == 1,
        f"one device sends nothing, but it needs 1 example, yours is {found}",
    )
