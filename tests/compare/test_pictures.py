"""Pictures read on light and on dark pages, and commands that draw say what is missing."""

import sys
from xml.etree import ElementTree

import pytest
from launch import python

from pmapdp.compare.pictures import STRATEGY_COLOURS, drawing, require_matplotlib, svg
from pmapdp.errors import UserError

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


def test_a_picture_has_a_title_its_text_and_no_ground():
    with drawing(4, 2) as (figure, axes):
        axes.plot([1, 2], [3, 4], color=STRATEGY_COLOURS["pmap"])
        axes.set_title("a < b")
        text = svg(figure, "less & more")
    picture = ElementTree.fromstring(text)
    assert picture.find("{*}title").text == "less & more"
    assert "a < b" in [each.text for each in picture.iterfind(".//{*}text")]
    assert f"stroke: {STRATEGY_COLOURS['pmap']}" in text
    assert "fill: #ffffff" not in text


def test_without_matplotlib_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"^--html needs matplotlib, which is not here: pip install 'pmapdp\[plots\]'$"):
        require_matplotlib("--html")


def test_matplotlib_is_imported_for_pictures_alone():
    code = "import sys, pmapdp.compare.__main__; sys.exit('matplotlib' in sys.modules)"
    assert python("-c", code).returncode == 0
