"""Pictures read on light and on dark pages, and commands that draw say what is missing."""

import sys
from xml.etree import ElementTree

import pytest
from launch import python

from pmapdp.errors import UserError
from pmapdp.pictures import COLOURS, STRATEGY_COLOURS, drawing, require_matplotlib, svg

PAGES = "#ffffff", "#14181d"  # grounds of the page of pmapdp.compare


def luminance(colour: str) -> float:
    """As WCAG 2.2 defines it, from 0 (black) to 1 (white)."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("name", ["ink", "soft", *STRATEGY_COLOURS])
def test_text_and_strategies_stand_out(name):
    for colour, page in zip(COLOURS[name], PAGES, strict=True):
        lighter, darker = sorted((luminance(colour), luminance(page)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


@pytest.mark.parametrize("alone", [True, False])
def test_a_picture_is_drawn_in_colours_of_its_page(alone):
    with drawing(4, 2) as (figure, axes):
        axes.plot([1, 2], [3, 4], color=STRATEGY_COLOURS["pmap"])
        axes.set_title("a < b")
        text = svg(figure, "less & more", alone=alone)
    picture = ElementTree.fromstring(text)
    assert picture.find("{*}title").text == "less & more"
    assert "a < b" in [each.text for each in picture.iterfind(".//{*}text")]
    assert "stroke: var(--pmap)" in text
    drawn = text[text.index("</style>") :] if alone else text
    assert not [light for light, _ in COLOURS.values() if light in drawn]
    assert ("prefers-color-scheme: dark" in text) == alone


def test_without_matplotlib_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"^--html needs matplotlib, which is not here: pip install 'pmapdp\[plots\]'$"):
        require_matplotlib("--html")


@pytest.mark.parametrize("module", ["compare", "scaling"])
def test_matplotlib_is_imported_for_pictures_alone(module):
    code = f"import sys, pmapdp.{module}.__main__; sys.exit('matplotlib' in sys.modules)"
    assert python("-c", code).returncode == 0
