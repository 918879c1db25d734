"""A trace of a few updates for Perfetto and TensorBoard, and its longest operations."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import jax

FIRST_STEP = 5  # of those of this process; the first ones still warm up
UPDATES = 10


class Profiler:
    """Traces ten updates into `folder`, or more where several start at once; does nothing where `folder` is None."""

    def __init__(self, folder: Path | None):
        self.folder = folder
        self.steps = self.first = 0
        self.running = False

    def before_steps(self, count: int, state: Any) -> None:
        """Start the trace when its first step may be next, and `state`, which comes before it, is computed."""
        before, self.steps = self.steps, self.steps + count
        if self.folder and not self.first and before >= FIRST_STEP - 1:
            self.first = before + 1
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self.folder), create_perfetto_trace=True)
            self.running = True

    def after_steps(self, state: Any) -> list[str]:
        """Stop the trace after its last step; returns lines to print: the ten longest operations."""
        if not self.running or self.steps - self.first + 1 < UPDATES:
            return []
        jax.block_until_ready(state)
        return self.stop()

    def stop(self) -> list[str]:
        """End a trace that is running, also one cut short by the end of the run."""
        if not self.running or self.folder is None:
            return []
        jax.profiler.stop_trace()
        self.running = False
        trace = max(self.folder.glob("**/perfetto_trace.json.gz"), key=lambda path: path.stat().st_mtime)
        return [
            f"trace of {self.steps - self.first + 1} updates: open {trace} at ui.perfetto.dev, "
            f"or run tensorboard --logdir {self.folder.parent}",
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
