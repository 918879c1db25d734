"""One fixed colour per device and one per strategy, in every picture of the project."""

# The Okabe-Ito palette, which colour-blind readers can tell apart (Okabe and Ito, "Color universal design", 2008),
# and a grey. More devices than colours start again from the first.
DEVICE_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", "#8C8C8C")

# On a light and on a dark page; each has a contrast of at least 4.5 : 1 to it.
STRATEGY_COLOURS = {
    "single": ("#5F6875", "#A9B0BB"),
    "pmap": ("#0069A6", "#56B4E9"),
    "jit": ("#B54C00", "#F59A4A"),
    "shard_map": ("#007A57", "#35C698"),
}


def device_colour(device: int) -> str:
    """The colour of device number `device`, from 0."""
    return DEVICE_COLOURS[device % len(DEVICE_COLOURS)]


def luminance(colour: str) -> float:
    """Relative luminance of `#RRGGBB`, from 0 (black) to 1 (white), as WCAG 2.2 defines it."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, from 1 to 21 (WCAG 2.2)."""
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def text_colour(ground: str) -> str:
    """Black or white, whichever reads better on `ground`."""
    return max("#000000", "#FFFFFF", key=lambda ink: contrast(ink, ground))
