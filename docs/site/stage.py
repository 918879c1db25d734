"""Lay out the repository's pages and notebooks for Sphinx.

A README.md becomes the index of its folder. A link to a source file leads to a page
that shows the file, and a link to a folder leads to a list of its files. The headings
of docs/README.md sort the pages into four kinds.
"""

import json
import os
import re
import shutil
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
README = PurePosixPath("README.md")
LESSONS = PurePosixPath("lessons/README.md")
COMPARE = PurePosixPath("docs/compare.md")
CONTENTS = PurePosixPath("docs/README.md")
LINK = re.compile(r"\]\(\s*([^)\s]+)\)")
PICTURES = (".png", ".svg")
LEXERS = {
    ".py": "python",
    ".sh": "bash",
    ".sbatch": "bash",
    ".yaml": "yaml",
    ".toml": "toml",
    ".json": "json",
}
FENCE = "`" * 10
MARK = re.compile(r'<a id="([\w-]+)"></a>')
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WIDEST = 95  # characters of a line of a block without a language, or it is wrapped
# A link, perhaps around a picture, to a page that Sphinx doesn't make. It would turn a
# link in Markdown into a download.
FOUR_STRATEGIES = re.compile(
    r"\[(!\[[^\]]*\]\([^)]*\)|[^\]]*)\]\(pictures/four_strategies\.html\)"
)
# The page of the four strategies isn't made by Sphinx, so it has no menu.
MENU = """<nav aria-label="Site"><a href="index.html">pmapdp</a>
<a href="docs/compare.html">how to compare your own steps</a>
<a href="lessons/index.html">lessons</a></nav>
"""
NAMED_FILE = re.compile(r'<span data-file="([^"]+)">(.*?)</span>')
HIDDEN = """---
orphan: true
nosearch: true
html_theme.sidebar_secondary.remove: true
---
"""


def page_of(path: PurePosixPath) -> PurePosixPath:
    """Return the place of a page on the site."""
    if path.name == "README.md":
        return path.with_name("index.md")
    return path


def repository_pages() -> dict[PurePosixPath, PurePosixPath]:
    """List every page and notebook: {path in the repository: place on the site}."""
    files = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        ROOT / LESSONS,
        *ROOT.glob("lessons/*.ipynb"),
    ]
    paths = sorted(PurePosixPath(file.relative_to(ROOT)) for file in files)
    return {path: page_of(path) for path in paths}


def kinds() -> dict[str, list[str]]:
    """Return the pages of docs/README.md by its headings, as Sphinx names them."""
    text = (ROOT / CONTENTS).read_text(encoding="utf-8")
    pages = {}
    for section in text.split("\n## ")[1:]:
        names = []
        for link in LINK.findall(section):
            path = PurePosixPath(os.path.normpath(f"docs/{link}"))
            names.append(str(page_of(path).with_suffix("")))
        pages[section.splitlines()[0]] = names
    return pages


def toctree(entries: list[str], caption: str = "") -> str:
    """Return a hidden table of contents.

    The sidebar and the buttons for the next page follow it.
    """
    lines = ["", f"{FENCE}{{toctree}}", ":hidden:"]
    if caption:
        lines.append(f":caption: {caption}")
    return "\n".join([*lines, "", *entries, FENCE, ""])


class Stage:
    """The pages in the folder `target`, and the source files to which they link."""

    def __init__(self, target: Path):
        self.target = target
        self.pages = repository_pages()
        self.sources: set[PurePosixPath] = set()

    def write(self, page: PurePosixPath, text: str) -> None:
        """Write a page of the site."""
        file = self.target / page
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def place(self, path: PurePosixPath) -> PurePosixPath:
        """Return the place of a file or folder on the site."""
        if path in self.pages:
            return self.pages[path]
        if path.suffix in PICTURES:
            (self.target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, self.target / path)
            return path
        self.sources.add(path)
        if (ROOT / path).is_dir():
            return "source" / path / "index.md"
        return PurePosixPath(f"source/{path}.md")

    def relink(self, text: str, path: PurePosixPath, place: PurePosixPath) -> str:
        """Return the text of a page with the links that it needs on the site."""

        def link(match: re.Match[str]) -> str:
            target, mark, anchor = match[1].partition("#")
            file = ROOT / path.parent / target
            if not target or "://" in target or not file.exists():
                return match[0]  # Sphinx warns of a file that does not exist
            there = self.place(PurePosixPath(os.path.relpath(file, ROOT)))
            return f"]({os.path.relpath(there, place.parent)}{mark}{anchor})"

        text = LINK.sub(link, text)
        text = MARK.sub(r"[]{#\1}", text)
        return BLOCK.sub(wrap, text)

    def notebook(self, path: PurePosixPath) -> None:
        """Lay out a notebook.

        Fold the answer of a prediction and its proof, as JupyterLab does.
        """
        notebook = json.loads((ROOT / path).read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                text = "".join(cell["source"])
                cell["source"] = self.relink(text, path, self.pages[path])
                continue
            tags = cell["metadata"].get("tags", [])
            if "prediction" in tags:
                tags.append("hide-output")
                # JupyterLab shows it of folded outputs. The site has a button.
                del cell["outputs"][0]
            if cell["metadata"].get("jupyter", {}).get("source_hidden"):
                tags.append("hide-input")
                cell["metadata"]["mystnb"] = {"code_prompt_show": "Show the {type}"}
        self.write(self.pages[path], json.dumps(notebook))

    def page(self, path: PurePosixPath) -> None:
        """Lay out a page of text."""
        text = (ROOT / path).read_text(encoding="utf-8")
        if path == COMPARE:
            text = FOUR_STRATEGIES.sub(
                r'<a href="../four_strategies.html">\1</a>', text
            )
        text = self.relink(text, path, self.pages[path])
        if path == README:
            for caption, entries in kinds().items():
                text += toctree(entries, caption)
        if path == LESSONS:
            text += toctree(
                [page.stem for page in self.pages if page.suffix == ".ipynb"]
            )
        if path == CONTENTS:
            text = "---\norphan: true\n---\n" + text
        self.write(self.pages[path], text)

    def four_strategies(self) -> None:
        """Lay out compare's page, with links to the lessons and files that it names."""

        def link(match: re.Match[str]) -> str:
            place = self.place(PurePosixPath(match[1])).with_suffix(".html")
            return f'<a href="{place}">{match[2]}</a>'

        page = (ROOT / "docs/pictures/four_strategies.html").read_text(encoding="utf-8")
        text = NAMED_FILE.sub(link, page).replace("<header>", f"{MENU}<header>", 1)
        (self.target / "four_strategies.html").write_text(text, encoding="utf-8")

    def source(self, path: PurePosixPath) -> None:
        """Write a page that shows a source file, or lists a folder."""
        text = f"{HIDDEN}# `{path}`\n\n"
        if (ROOT / path).is_dir():
            for file in sorted((ROOT / path).rglob("*")):
                if file.suffix in LEXERS and file.stat().st_size:
                    name = PurePosixPath(file.relative_to(ROOT))
                    self.sources.add(name)
                    link = f"{os.path.relpath(name, path)}.md"
                    text += f"- [`{name.relative_to(path)}`]({link})\n"
        else:
            code = (ROOT / path).read_text(encoding="utf-8")
            lexer = LEXERS.get(path.suffix, "text")
            text += f"{FENCE}{{code-block}} {lexer}\n:linenos:\n\n{code}\n{FENCE}\n"
        self.write(self.place(path), text)


def wrap(match: re.Match[str]) -> str:
    """Let the lines of a block without a language wrap if one of them is too long."""
    language, code = match.groups()
    longest = max((len(line) for line in code.splitlines()), default=0)
    if language or longest <= WIDEST:
        return match[0]
    return f"{FENCE}{{code-block}} text\n:class: wrapped\n\n{code}{FENCE}"


def stage(target: Path) -> None:
    """Lay out the site's sources in the folder `target`."""
    staged = Stage(target)
    for path in staged.pages:
        if path.suffix == ".ipynb":
            staged.notebook(path)
        else:
            staged.page(path)
    staged.four_strategies()
    written: set[PurePosixPath] = set()
    while waiting := staged.sources - written:  # the list of a folder names more files
        for path in waiting:
            staged.source(path)
        written |= waiting
