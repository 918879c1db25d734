"""A trace of a few updates for Perfetto and TensorBoard, and its longest operations."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import jax

WARM_UP = 4  # updates of this process that are not traced
UPDATES = 10


class Profiler:
    """Traces ten updates into `folder`; does nothing where `folder` is None."""

    def __init__(self, folder: Path | None):
        self.folder = folder
        self.running = False
        self.updates = 0  # before the trace, then those in it

    def after_update(self, state: Any) -> list[str]:
        """An update was started, and `state` comes after it: start or stop the trace when it is time. Returns lines to
        print: the ten longest operations."""
        self.updates += 1
        if self.folder is None or self.updates < (UPDATES if self.running else WARM_UP):
            return []
        jax.block_until_ready(state)
        if self.running:
            return self.stop()
        jax.profiler.start_trace(str(self.folder), create_perfetto_trace=True)
        self.running, self.updates = True, 0
        return []

    def stop(self) -> list[str]:
        """End a trace that is running, also one cut short by the end of the run."""
        folder, self.folder = self.folder, None
        if folder is None or not self.running:
            return []
        jax.profiler.stop_trace()
        trace = max(folder.glob("**/perfetto_trace.json.gz"), key=lambda path: path.stat().st_mtime)
        return [
            f"trace of {self.updates} updates: open {trace} at ui.perfetto.dev, or run tensorboard --logdir "
            f"{folder.parent}",
            *longest_operations(trace),
        ]


def longest_operations(trace: Path, most: int = 10) -> list[str]:
    """The operations of compiled programs with the most time in a Perfetto trace, summed over devices and updates."""
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    milliseconds: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in events:
        # Operations of a compiled program carry its name; other events are Python calls and the runtime's own.
        if event.get("ph") == "X" and "hlo_op" in event.get("args", {}):
            milliseconds[event["name"]] += event.get("dur", 0) / 1000
            calls[event["name"]] += 1
    total = sum(milliseconds.values()) or 1
    return [
        f"{time:10.2f} ms  {100 * time / total:4.1f} %  {calls[name]:6d} calls  {name}"
        for name, time in milliseconds.most_common(most)
    ]
