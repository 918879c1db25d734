"""Pictures read on light and on dark pages, say what they show, and need no library."""

import re
from xml.etree import ElementTree

import pytest
from launch import python

from pmapdp.compare.pictures import STRATEGY_COLOURS, curves, devices

PAGES = "#ffffff", "#000000"


def luminance(colour: str) -> float:
    """As WCAG 2.2 defines it, from 0 (black) to 1 (white)."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colour", STRATEGY_COLOURS.values())
def test_text_and_strategies_stand_out(colour):
    for page in PAGES:
        lighter, darker = sorted((luminance(colour), luminance(page)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def test_a_box_is_filled_where_its_device_holds_the_array():
    picture = ElementTree.fromstring(devices([[0.0, 0.5], [0.5, 1.0]]))
    assert picture.get("aria-label") == "Each of 2 devices holds another 1/2 of it, in their order"
    filled = [each for each in picture if each.get("fill") != "none"]
    assert [(each.get("y"), each.get("height")) for each in filled] == [("1.00", "15.00"), ("16.00", "15.00")]
    assert len({each.get("fill") for each in filled}) == 2
    assert "Each of 3 devices holds all of it" in devices([[0.0, 1.0]] * 3)
    assert "One device holds all of it" in devices([[0.0, 1.0]])


def test_a_logarithmic_curve_has_a_gap_where_there_is_no_difference():
    drawn = ElementTree.fromstring(curves([("a < b", "#007bc0", [1e-3, 1e-4, 0.0, 1e-5])], "less & more", log=True))
    assert drawn.get("aria-label") == "less & more"
    (group,) = drawn.iter("g")
    assert group.find("title").text == "a < b"
    lines = [re.findall(r"[\d.]+,([\d.]+)", line.get("points")) for line in group.iter("polyline")]
    heights = [[float(y) for y in line] for line in lines]
    assert [len(set(line)) for line in heights] == [2, 1]
    top, middle, bottom = *heights[0][:2], heights[1][0]
    assert middle - top == pytest.approx((bottom - top) / 2, abs=0.11)  # a power of ten is a step of one height
    assert "nothing to draw" in curves([("a", "#007bc0", [0.0])], "none", log=True)


def test_no_picture_needs_matplotlib():
    code = "import sys, pmapdp.compare.__main__; sys.exit('matplotlib' in sys.modules)"
    assert python("-c", code).returncode == 0
