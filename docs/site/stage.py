"""Lay out what Sphinx reads.

The pages and notebooks of the repository, with links that lead to pages of the site.

A README.md becomes the index of its folder. A link to a source file leads to a page
that shows the file, a link to a folder to a list of its files. docs/README.md gives the
four kinds of pages. Everything else follows from the links.
"""

import json
import os
import re
import shutil
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
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
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WIDEST = 120  # characters of a line of a block without a language, or it is wrapped
# Stands on the front page alone. In the repository one sees the folders, and README
# says what to read.
START = f"""{FENCE}{{admonition}} Start here
:class: tip

- What does data parallelism look like? [Four ways, side by side](docs/compare.md).
- New to it? [The lessons](lessons/README.md) go from one device to eight in two hours.
- You have a training step? [Verify it](docs/verify.md).
- You have a pmap program? [Port it](docs/porting.md).
- You have a model? [Train it](docs/custom.md).
{FENCE}
"""
# A link, perhaps around a picture, to a page that Sphinx doesn't make. Of a link in
# Markdown it would make a download.
FOUR_WAYS = re.compile(r"\[(!\[[^\]]*\]\([^)]*\)|[^\]]*)\]\(pictures/four_ways\.html\)")
HIDDEN = """---
orphan: true
nosearch: true
html_theme.sidebar_secondary.remove: true
---
"""


def page_of(path: PurePosixPath) -> PurePosixPath:
    """Return the place of a page on the site."""
    return path.with_name("index.md") if path.name == "README.md" else path


def repository_pages() -> dict[PurePosixPath, PurePosixPath]:
    """List every page and notebook: {path in the repository: place on the site}."""
    found = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        ROOT / "lessons" / "README.md",
        *ROOT.glob("lessons/*.ipynb"),
    ]
    paths = sorted(PurePosixPath(path.relative_to(ROOT)) for path in found)
    return {path: page_of(path) for path in paths}


def kinds() -> dict[str, list[str]]:
    """Return the pages of docs/README.md by its headings, as Sphinx names them on
    the front page.
    """
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    result = {}
    for section in text.split("\n## ")[1:]:
        paths = [os.path.normpath(f"docs/{link}") for link in LINK.findall(section)]
        result[section.splitlines()[0]] = [
            str(page_of(PurePosixPath(path)).with_suffix("")) for path in paths
        ]
    return result


def toctree(entries: list[str], caption: str = "") -> str:
    """Return a hidden table of contents.

    The sidebar and the buttons for the next page follow it.
    """
    lines = [
        "",
        f"{FENCE}{{toctree}}",
        ":hidden:",
        *([f":caption: {caption}"] if caption else []),
        "",
        *entries,
        FENCE,
    ]
    return "\n".join(lines) + "\n"


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
        return PurePosixPath("source") / (
            path / "index.md" if (ROOT / path).is_dir() else f"{path}.md"
        )

    def relink(self, text: str, path: PurePosixPath, place: PurePosixPath) -> str:
        """Return the text of a page with the links that it needs on the site."""

        def link(match: re.Match[str]) -> str:
            target, mark, anchor = match[1].partition("#")
            file = ROOT / path.parent / target
            if not target or "://" in target or not file.exists():
                return match[0]  # Sphinx warns of a file that does not exist
            there = self.place(PurePosixPath(os.path.relpath(file, ROOT)))
            return f"]({os.path.relpath(there, place.parent)}{mark}{anchor})"

        def wrap(match: re.Match[str]) -> str:
            language, code = match.groups()
            if language or max(map(len, code.splitlines()), default=0) <= WIDEST:
                return match[0]
            return f"{FENCE}{{code-block}} text\n:class: wrapped\n\n{code}{FENCE}"

        return BLOCK.sub(
            wrap, re.sub(r'<a id="([\w-]+)"></a>', r"[]{#\1}", LINK.sub(link, text))
        )

    def notebook(self, path: PurePosixPath) -> None:
        """Lay out a notebook.

        Fold the answer of a prediction and its proof, as JupyterLab does.
        """
        notebook = json.loads((ROOT / path).read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = self.relink(
                    "".join(cell["source"]), path, self.pages[path]
                )
                continue
            tags = cell["metadata"].get("tags", [])
            if "prediction" in tags:
                tags.append("hide-output")
                del cell["outputs"][
                    0
                ]  # what JupyterLab shows of folded outputs; the site has a button
            if cell["metadata"].get("jupyter", {}).get("source_hidden"):
                tags.append("hide-input")
        self.write(self.pages[path], json.dumps(notebook))

    def page(self, path: PurePosixPath) -> None:
        """Lay out a page of text."""
        text = (ROOT / path).read_text(encoding="utf-8")
        if path == PurePosixPath("README.md"):
            text = text.replace("\n[![", f"\n{START}\n[![", 1)
        elif path == PurePosixPath("docs/compare.md"):
            text = FOUR_WAYS.sub(r'<a href="../four_ways.html">\1</a>', text)
        text = self.relink(text, path, self.pages[path])
        if path == PurePosixPath("README.md"):
            text += "".join(toctree(entries, kind) for kind, entries in kinds().items())
        elif path == PurePosixPath("lessons/README.md"):
            text += toctree(
                [each.stem for each in self.pages if each.suffix == ".ipynb"]
            )
        elif path == PurePosixPath("docs/README.md"):
            text = "---\norphan: true\n---\n" + text
        self.write(self.pages[path], text)

    def source(self, path: PurePosixPath) -> None:
        """Write a page that shows a source file, or lists a folder."""
        if (ROOT / path).is_dir():
            files = sorted(
                each
                for each in (ROOT / path).rglob("*")
                if each.suffix in LEXERS and each.stat().st_size
            )
            names = [PurePosixPath(each.relative_to(ROOT)) for each in files]
            text = "".join(
                f"- [`{name.relative_to(path)}`]({os.path.relpath(name, path)}.md)\n"
                for name in names
            )
            self.sources.update(names)
            self.write(
                PurePosixPath("source") / path / "index.md",
                f"{HIDDEN}# `{path}`\n\n{text}",
            )
        else:
            code = (ROOT / path).read_text(encoding="utf-8")
            lexer = LEXERS.get(path.suffix, "text")
            block = f"{FENCE}{{code-block}} {lexer}\n:linenos:\n\n{code}\n{FENCE}\n"
            self.write(
                PurePosixPath("source") / f"{path}.md", f"{HIDDEN}# `{path}`\n\n{block}"
            )


def stage(target: Path) -> None:
    """Lay out the site's sources in the folder `target`."""
    laid = Stage(target)
    for path in laid.pages:
        (laid.notebook if path.suffix == ".ipynb" else laid.page)(path)
    done: set[PurePosixPath] = set()
    while left := laid.sources - done:  # the list of a folder names more files
        for path in left:
            laid.source(path)
        done |= left
