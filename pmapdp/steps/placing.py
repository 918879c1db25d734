"""Bring host arrays to the devices and back, also if several processes own them.

Lesson 17 teaches this file.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jax.experimental import multihost_utils

END = object()  # follows the last batch


def place(rows: Any, sharding: Any) -> Any:
    """Split host arrays over devices.

    Args:
        rows: Pytree of `[rows, ...]`. With several processes, each gives its own
            devices' rows, in the devices' order.
        sharding: One for all global arrays or a pytree like `rows`.

    Returns:
        Global arrays, whose shapes follow from the rows and the sharding.
    """
    if jax.tree.leaves(sharding)[0].is_fully_addressable:
        return jax.device_put(rows, sharding)
    shardings = jax.tree.broadcast(sharding, rows)
    return jax.tree.map(jax.make_array_from_process_local_data, shardings, rows)


@contextlib.contextmanager
def prefetch(
    batches: Iterable[Any], place_batch: Callable[[Any], Any], ahead: int = 2
) -> Iterator[Iterator[Any]]:
    """Read and place batches in a thread, `ahead` of the loop.

        with prefetch(batches, strategy.place_batch) as placed_batches:
            for batch in placed_batches: ...

    An error in the thread is raised when its batch is asked for. The thread has ended
    when the `with` ends.
    """
    source = iter(batches)
    x64 = jax.config.read("jax_enable_x64")  # each thread has its own setting
    thread = ThreadPoolExecutor(1)

    def place_next() -> Any:
        with jax.enable_x64(x64):
            batch = next(source, END)
            return END if batch is END else place_batch(batch)

    def placed_batches() -> Iterator[Any]:
        # While the loop has one batch, the thread reads and places the next ones.
        waiting = deque(thread.submit(place_next) for _ in range(ahead))
        batch = waiting.popleft().result()
        while batch is not END:
            waiting.append(thread.submit(place_next))
            yield batch
            batch = waiting.popleft().result()

    try:
        yield placed_batches()
    finally:
        # Also if the loop ends early: a thread that still reads would outlive the run.
        thread.shutdown(cancel_futures=True)


def fetch(tree: Any) -> Any:
    """Return a copy of a placed pytree on the host, without a device axis.

    All processes must call it, because it gathers what is split between them.
    """

    def gather(x: Any) -> Any:
        # This process has every number of these already.
        is_local = not isinstance(x, jax.Array) or x.is_fully_addressable
        if is_local or x.is_fully_replicated:
            return x
        return multihost_utils.process_allgather(x, tiled=True)

    return jax.device_get(jax.tree.map(gather, tree))
