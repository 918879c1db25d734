"""The pictures of lesson 14: two starts of one run, and a profile as Perfetto shows it."""

import gzip
import json

import matplotlib.pyplot as plt

from pmapdp_lessons import drawing


def two_starts() -> None:
    """A run that is killed, and the start that resumes it."""
    axes = drawing.canvas(14, 4.4)
    axes.text(0, 0.6, "first start", va="center")
    axes.text(0, 3.8, "second start", va="center")
    for x, y, text in ((3, 0.2, "update 0"), (6.6, 0.2, "update 20"), (10.2, 0.2, "killed"), (6.6, 3.4, "update 20")):
        drawing.box(axes, x, y, text, device=0 if y < 1 else 1, width=2.4)
    drawing.box(axes, 10.2, 3.4, "update 40", device=1, width=2.4)
    drawing.box(axes, 5.1, 1.7, "a checkpoint:\none copy, no device axis", width=5.4, height=1)
    for start, end, device in (((5.4, 0.6), (6.6, 0.6), 0), ((9, 0.6), (10.2, 0.6), 0), ((9, 3.8), (10.2, 3.8), 1)):
        drawing.arrow(axes, start, end, device=device)
    drawing.arrow(axes, (7.8, 1), (7.8, 1.7))
    drawing.arrow(axes, (7.8, 2.7), (7.8, 3.4))


def timeline(path, updates: int = 2) -> None:
    """The operations of a compiled program in a Perfetto trace of ten updates, a row for each thread that ran one."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    events = [event for event in events if event.get("ph") == "X" and "hlo_op" in event.get("args", {})]
    first, last = min(event["ts"] for event in events), max(event["ts"] for event in events)
    last = first + updates / 10 * (last - first)
    threads: dict = {}
    for event in sorted(events, key=lambda event: event["ts"]):
        if event["ts"] < last:
            reduce = "all-reduce" in event["name"] or "psum" in event["name"]
            bars = threads.setdefault((event["pid"], event["tid"]), ([], []))[reduce]
            start, length = event["ts"] - first, event.get("dur", 0)
            if bars and start - sum(bars[-1]) < (last - first) / 500:  # too close to be told apart
                bars[-1] = bars[-1][0], max(bars[-1][1], start + length - bars[-1][0])
            else:
                bars.append((start, length))
    _, axes = plt.subplots(figsize=(8, 2.6))
    for row, kinds in enumerate(threads.values()):
        for kind, bars in enumerate(kinds):
            scaled = [(start / 1000, length / 1000) for start, length in bars]
            axes.broken_barh(scaled, (row, 0.8), color=drawing.DEVICE_COLOURS[kind])
    axes.set(xlabel="ms (orange: all-reduce)", ylabel="thread", yticks=[])
