"""Draw what devices hold and do. A device has a colour, and nothing else has one of these colours."""

from typing import Any

from markupsafe import Markup

# The Okabe-Ito palette, which colour-blind readers can tell apart (Okabe and Ito,
# "Color universal design", 2008), and a grey. More devices than colours start again
# from the first.
DEVICE_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#B8A800",
    "#8C8C8C",
)
INK = "#767676"  # has a contrast of at least 4.5 : 1 to white and to black
MOST_DRAWN = 16  # devices
LANE = 12  # pixels


def colour_of(device: int) -> str:
    """Return a device's colour."""
    return DEVICE_COLOURS[device % len(DEVICE_COLOURS)]


def holdings(run: dict[str, Any]) -> list[tuple[list[str], str]]:
    """Return what devices hold as colours of boxes and a note: the batch in their colours, the weights in one."""
    N, batch, state = run["devices"], run["holds"].get("batch"), run["holds"]["state"]
    devices, found = range(min(N, MOST_DRAWN)), []
    if batch:
        is_one = N > 1 and not batch["split"]
        part = f"1/{N} of the batch" if batch["split"] else "the whole batch"
        found.append(
            (
                [INK if is_one else colour_of(device) for device in devices],
                f"{part}, {batch['on_device']}",
            )
        )
    weights = "the weights" if N == 1 else f"the same weights, {N} times"
    if state["split"]:
        weights = (
            f"{weights}, as the rows of"
            if state["shape"][0] == N
            else f"1/{N} of the weights,"
        )
    return [*found, (["var(--weights)"] * len(devices), f"{weights} {state['shape']}")]


def timeline(run: dict[str, Any], longest: float) -> Markup:
    """Draw a lane for each device. The picture is `longest` ms wide."""
    by_compiler = any(not each["written"] for each in run["collectives"])
    box = '<rect {}="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>'
    lanes = range(min(run["devices"], MOST_DRAWN))
    drawn = [
        box.format("fill", colour_of(lane), 0, LANE * lane + 1, 8, LANE - 2)
        for lane in lanes
    ]
    for device, phase, start, end in run["timeline"]:
        if device not in lanes:
            continue
        kind = f"{phase} dashed" if by_compiler and phase == "all-reduce" else phase
        width, x = max(0.8, 940 * (end - start) / longest), 14 + 940 * start / longest
        drawn.append(box.format("class", kind, x, LANE * device + 1, width, LANE - 2))
    last, height = max(end for *_, end in run["timeline"]), LANE * len(lanes)
    note = f"One update on {run['devices']} devices, {last:.1f} ms: forward, backward, all-reduce, update"
    size = f'height="{height}" viewBox="0 0 960 {height}" preserveAspectRatio="none"'  # lanes keep their height
    return Markup(f'<svg {size} role="img" aria-label="{note}">{"".join(drawn)}</svg>')
