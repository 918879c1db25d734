"""The site: what docs/build.py lays out for Sphinx, its reference pages, and the check
of its links. `.ci/run` builds it."""

import importlib
import json
import re
from pathlib import Path, PurePosixPath

import check
import flags
import pytest
import stage
import yaml

import pmapdp
from pmapdp.distributed import LostError
from pmapdp.errors import DivergedError, UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def laid(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    stage.stage(folder)
    return folder


def test_every_page_and_notebook_is_reached_from_the_front_page(laid):
    pages = {
        path.relative_to(laid).with_suffix("")
        for path in laid.rglob("*.*")
        if path.suffix in (".md", ".ipynb")
    }
    pages = {page for page in pages if page.parts[0] != "source"} - {
        Path("docs/index")
    }  # the list of the four kinds
    reached, left = set(), ["index"]
    while left:
        page = Path(left.pop())
        reached.add(page)
        file = laid / f"{page}.md"
        trees = (
            re.findall(r"\{toctree\}\n(.*?)`", file.read_text(), re.DOTALL)
            if file.exists()
            else []
        )
        left += [
            str(page.parent / line)
            for tree in trees
            for line in tree.splitlines()
            if line and line[0] != ":"
        ]
    assert reached == pages
    assert list(stage.kinds()) == ["Learn", "Do", "Know", "Reference"]


def test_every_link_within_the_repository_leads_to_a_page_that_is_laid_out(laid):
    links = 0
    for page in laid.rglob("*.md"):
        for link in stage.LINK.findall(
            re.sub(r"`{3,}.*?`{3,}", "", page.read_text(), flags=re.DOTALL)
        ):
            target = link.partition("#")[0]
            if target and "://" not in target:
                links += 1
                assert (page.parent / target).is_file(), (page, link)
    assert links > 200


def test_what_a_prediction_asks_for_is_folded_and_nothing_else_is_lost(laid):
    folded = 0
    for original in ROOT.glob("lessons/*.ipynb"):
        before = json.loads(original.read_text())["cells"]
        after = json.loads((laid / "lessons" / original.name).read_text())["cells"]
        for cell, shown in zip(before, after, strict=True):
            if (
                hidden := cell["metadata"]
                .get("jupyter", {})
                .get("outputs_hidden", False)
            ):
                folded += 1
                assert [*cell["outputs"][0]["data"]] == ["text/plain"]
                assert cell["outputs"][1:] == shown["outputs"]
            tags, jupyter = (
                shown["metadata"].get("tags", []),
                cell["metadata"].get("jupyter", {}),
            )
            assert ("hide-output" in tags, "hide-input" in tags) == (
                hidden,
                jupyter.get("source_hidden", False),
            )
            assert ("mystnb" in shown["metadata"]) == ("hide-input" in tags)
            assert cell["cell_type"] == "markdown" or cell["source"] == shown["source"]
    assert folded > 50


def test_pages_show_flags_and_sources_as_they_are(laid):
    assert (ROOT / "docs" / "flags.md").read_text() == flags.page(), (
        "python docs/site/flags.py > docs/flags.md"
    )
    source = "pmapdp/steps/pmap.py"
    assert (ROOT / source).read_text() in (laid / "source" / f"{source}.md").read_text()


def test_the_page_of_the_four_strategies_opens_and_is_not_downloaded(laid):
    """Sphinx makes a download of a link in Markdown to a file that's no page."""
    shown = (laid / "docs" / "compare.md").read_text()
    assert '<a href="../four_strategies.html">![' in shown
    assert shown.count('<a href="../four_strategies.html">') == 2
    assert "](pictures/four_strategies.html)" not in shown


def test_the_page_of_the_four_strategies_links_the_files_that_it_names(laid):
    page = (ROOT / "docs" / "pictures" / "four_strategies.html").read_text(
        encoding="utf-8"
    )
    files = set(re.findall('data-file="([^"]*)"', page))
    assert {"README.md", "docs/speed.md", "pmapdp/steps/jit.py"} <= files
    assert {"docs/compare.md", "docs/verify.md", "docs/porting.md"} <= files
    assert sum(file.startswith("lessons/") for file in files) == 8
    for file in files:
        assert (ROOT / file).is_file()
    shown = (laid / "four_strategies.html").read_text(encoding="utf-8")
    assert "data-file" not in shown
    links = set(re.findall('href="([^#"]+)"', shown))
    assert {"index.html", "docs/speed.html", "source/pmapdp/steps/jit.py.html"} <= links
    (menu,) = re.findall('<nav aria-label="Site">.*?</nav>', shown, re.DOTALL)
    assert shown.index(menu) < shown.index("<h1>")
    back = ["index.html", "docs/compare.html", "lessons/index.html"]
    assert re.findall('href="([^"]*)"', menu) == back
    for link in links:
        place = laid / link.removesuffix(".html")
        assert list(place.parent.glob(f"{place.name}.*"))


def test_a_line_too_long_is_wrapped_and_others_are_not(tmp_path):
    page, path = stage.Stage(tmp_path), PurePosixPath("README.md")
    long, short, code = (
        f"```\n{'x' * 200}\n```",
        "```\nx\n```",
        f"```python\n{'x' * 200}\n```",
    )
    shown = page.relink(f"{long}\n{short}\n{code}\n", path, path)
    assert shown.count(":class: wrapped") == 1
    assert short in shown
    assert code in shown


def test_the_page_of_statuses_has_each():
    page = (ROOT / "docs" / "statuses.md").read_text()
    listed = {
        int(each)
        for row in re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
        for each in row.split(",")
    }
    errors = (UserError, DivergedError, LostError)
    signals = {128 + number for number in (1, 2, 6, 9, 13, 15)}
    assert listed == {0, 1, *signals, *(error.status for error in errors)}


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    other = '<a id="here"></a><p>text</p>'
    (tmp_path / "other.html").write_text(other)
    links = [
        "other.html",
        "other.html#here",
        "#mine",
        "https://example.org/x",
        "gone.html",
        "other.html#gone",
        "#gone",
    ]
    text = (
        '<p id="mine"></p>'
        + "".join(f'<a href="{link}">x</a>' for link in links)
        + '<img src="gone.png">'
    )
    (tmp_path / "index.html").write_text(text)
    wrong = ["gone.html", "other.html#gone", "#gone", "gone.png"]
    assert check.broken_links(tmp_path) == [f"index.html: {link}" for link in wrong]


def test_the_citation_and_the_changes_name_the_version():
    assert (
        yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
        == pmapdp.__version__
    )
    assert (
        re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
        == pmapdp.__version__
    )


def test_the_picture_of_nodes_is_in_step_with_its_program(monkeypatch):
    """Every device has 64 rows, and a process has the rows of its eight devices."""
    folder = ROOT / "docs" / "pictures"
    monkeypatch.syspath_prepend(folder)
    nodes = importlib.import_module("nodes")
    drawn = (folder / "nodes.svg").read_text(encoding="utf-8")
    assert drawn == nodes.picture() + "\n"
    assert drawn.count("<rect") == 1 + 4 + 2 * 32 + 1  # ground, nodes, tiles, bar
    assert "rows 1536 to 2047" in drawn
    assert ">31</text>" in drawn
