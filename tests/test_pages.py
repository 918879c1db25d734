"""Everything that pages, lessons and docstrings name exists.

Links, headings, modules, functions, commands and flags.
"""

import ast
import os
import pkgutil
import re
import shlex
import sys
from importlib.metadata import metadata, version
from pathlib import Path

import pytest

from pmapdp import cli, train
from pmapdp.distributed import ProcessesOptions
from pmapdp.flags import parse_with_recipe
from pmapdp.verify import __main__ as verify_command

ROOT = Path(__file__).parent.parent
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *(ROOT / folder / "README.md" for folder in ("lessons", "examples", "benchmarks")),
]
HISTORY = [
    ROOT / "CHANGELOG.md",
    ROOT / "docs" / "migrating.md",
]  # they name what is gone
TODAY = [page for page in PAGES if page not in HISTORY]
LESSONS = sorted(ROOT.glob("lessons/[0-9]*.py"))
SOURCES = [
    path
    for folder in ("pmapdp", "benchmarks", "tests")
    for path in ROOT.glob(f"{folder}/**/*.py")
]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str:
    """A page in Markdown; of a lesson's source the cells of text."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = "\n".join(
            line.removeprefix("# ")
            for line in text.splitlines()
            if line.startswith("#")
        )
    return text


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them.

    In small letters, with hyphens, without punctuation. And its marks.
    """
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    marks = re.findall(r'<a id="([^"]+)">', text)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    } | set(marks)


@pytest.mark.parametrize("page", [*PAGES, *LESSONS], ids=name_of)
def test_links_lead_to_files_and_headings(page):
    broken = []
    for link in re.findall(
        r"\]\(([^)\s]+)\)", re.sub(r"\n(?=\S)", " ", text_of(page)).replace("]( ", "](")
    ):
        target, _, heading = link.partition("#")
        if "://" in target:
            continue
        file = page.parent / target if target else page
        if not file.exists() or (
            heading and file.suffix == ".md" and heading not in anchors(file)
        ):
            broken.append(link)
    assert broken == []


def exists(name: str) -> bool:
    """Is a dotted name a module, or something in one?"""
    try:
        pkgutil.resolve_name(name)
    except ModuleNotFoundError:
        return False
    except AttributeError:  # a field of a dataclass without a default
        owner, _, field = name.rpartition(".")
        return exists(owner) and field in getattr(
            pkgutil.resolve_name(owner), "__annotations__", {}
        )
    return True


LESSON = "pmapdp.lessons.lesson_checks.lesson_"
NO_NAMES = {"pmapdp.lock", LESSON, f"{LESSON}99"}  # a file, and names to be completed
NAME = re.compile(r"\b(?:pmapdp|benchmarks)(?:\.[a-zA-Z_]\w*)+\b(?![-/])")


def test_every_dotted_name_exists():
    places = {
        name: path
        for path in [*TODAY, *LESSONS, *SOURCES]
        for name in NAME.findall(path.read_text("utf-8"))
    }
    missing = {
        name: name_of(path)
        for name, path in places.items()
        if name not in NO_NAMES and not exists(name)
    }
    assert len(places) > 100
    assert missing == {}


def messages_of(path: Path) -> list[str]:
    """Return the texts of a module without its docstrings."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    skipped = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            skipped |= set(node.values)
    return [
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Constant | ast.JoinedStr) and node not in skipped
    ]


def test_every_page_that_a_message_names_exists():
    """And the message says where, because an installed pmapdp has no pages."""
    pages = set()
    for path in ROOT.glob("pmapdp/**/*.py"):
        if path == ROOT / "pmapdp" / "port" / "find.py":
            continue  # its links are in a table, and port's help says where the page is
        for message in messages_of(path):
            named = re.findall(r"docs/\w+\.md", message)
            pages |= set(named)
            assert not named or "in pmapdp's repository" in message, name_of(path)
    assert len(pages) >= 5
    assert [page for page in pages if not (ROOT / page).exists()] == []


def test_the_new_names_of_the_migration_exist():
    """In the last column of its table."""
    page = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| .* \| (.*) \|$", page, re.MULTILINE)
    names = {name for cell in cells for name in NAME.findall(cell)}
    assert len(names) > 10
    assert [name for name in names if not exists(name)] == []


def test_the_old_names_of_the_migration_are_gone():
    """In the first column of its table. Of `pmapdp.scaling` only the flags are gone."""
    page = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (.*?) \|", page, re.MULTILINE)
    names = {name for cell in cells for name in NAME.findall(cell)}
    assert len(names) > 5
    assert [name for name in names if exists(name)] == ["pmapdp.scaling"]


COMMAND = re.compile(
    r"(?:^ *|`)(?:python -m pmapdp\.|pmapdp )train((?: +[^\s`#|&>)]+)*)",
    re.MULTILINE,
)


@pytest.mark.parametrize(
    "page", [*TODAY, *LESSONS, ROOT / "pmapdp" / "train.py"], ids=name_of
)
def test_commands_of_the_trainer_are_taken(page):
    text = text_of(page) if page in PAGES else page.read_text(encoding="utf-8")
    for flags in COMMAND.findall(re.sub(r" \\\n *", " ", text)):
        if not re.search(r"[A-Z\[{$]{2,}|\.\.\.|\[|\$", flags):  # placeholders
            parse_with_recipe(train.COMMAND, ProcessesOptions, shlex.split(flags))


def test_every_page_names_the_same_drivers_and_extras_of_jax():
    """In numbers that JAX's installation page has."""
    gpus = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
    processes = (ROOT / "docs" / "processes.md").read_text(encoding="utf-8")
    image = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
    rows = dict(
        re.findall(r'^\| (\d+) or newer \| `"jax\[(\w+)\]"`', gpus, re.MULTILINE)
    )
    assert len(rows) == 2
    newer, older = rows
    assert f"driver {newer} or newer, and {rows[older]} for {older}" in processes
    assert f"driver is {newer} or newer" in image
    extras = set(metadata("jax").get_all("Provides-Extra"))
    assert {*rows.values(), "k8s", "tpu"} <= extras


VERSIONS = re.compile(r"^\| (3\.\d+) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE)


def test_the_versions_of_the_readme_are_those_that_are_tested():
    """If this Python has a row. PMAPDP_OTHER_VERSIONS is set where others are meant."""
    rows = {}
    for python, *versions in VERSIONS.findall((ROOT / "README.md").read_text("utf-8")):
        rows[python] = versions
    assert len(rows) == 2
    newer_jax = (ROOT / "docs" / "newer_jax.md").read_text(encoding="utf-8")
    porting = (ROOT / "docs" / "porting.md").read_text(encoding="utf-8")
    for jax_version, flax_version in rows.values():
        both = f"{jax_version} with Flax {flax_version}"
        assert both in " ".join(newer_jax.split())
        assert jax_version in porting
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python in rows and "PMAPDP_OTHER_VERSIONS" not in os.environ:
        assert [version("jax"), version("flax")] == rows[python]


MADE = {"api.md", "constructs.md", "flags.md", "mistakes.md"}  # by programs
MOST_WORDS = 2000  # what one reads in ten minutes
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_short_enough_to_read_at_once(page):
    """Its blocks don't count."""
    if page.name not in MADE:
        words = BLOCK.sub("", page.read_text(encoding="utf-8")).split()
        assert len(words) <= MOST_WORDS


def test_the_failed_check_in_the_readme_is_what_verify_prints(capsys):
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = [text for text in BLOCK.findall(page) if "FAILED" in text]
    shown = " ".join(block.strip("`").split())
    assert (
        cli.run(
            verify_command.main,
            [str(ROOT / "examples" / "sum_of_means.py:check"), "--devices", "8"],
        )
        == 1
    )
    assert shown in " ".join(capsys.readouterr().out.split())


def test_every_lesson_is_listed_once_in_the_readme_of_the_lessons():
    page = (ROOT / "lessons" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(
        r"^\| \[(\d\d) [^\]]*\]\((\d\d)_\w+\.ipynb\)", page, re.MULTILINE
    )
    assert all(shown == linked for shown, linked in listed)
    assert sorted(number for number, _ in listed) == [
        lesson.name[:2] for lesson in LESSONS
    ]
