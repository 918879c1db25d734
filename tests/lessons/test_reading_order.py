"""lessons/README.md lists every lesson once, and its links lead somewhere."""

import re

import build

PAGE = build.FOLDER / "README.md"


def test_every_lesson_is_listed_once():
    listed = re.findall(r"^\| \[(\d\d) [^\]]*\]\((\d\d)_\w+\.ipynb\)", PAGE.read_text(), re.MULTILINE)
    assert all(shown == linked for shown, linked in listed)
    assert sorted(number for number, _ in listed) == [lesson.name[:2] for lesson in build.sources()]


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE.read_text().replace("\n", " ")):
        if "://" not in target:
            assert (PAGE.parent / target).exists(), target
