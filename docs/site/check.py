"""Find the links of a built site that lead to no file, or to no anchor of that file."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors, links and pictures of a page."""

    def __init__(self, file: Path):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(
        self, tag: str, attributes: list[tuple[str, str | None]]
    ) -> None:
        """Note the anchor and the link of an element."""
        for name, value in attributes:
            if value and name in ("id", "name"):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.links.append(value)


def broken_links(folder: Path) -> list[str]:
    """Return a line for each link within the site in `folder` that leads nowhere."""
    files = [
        file for file in sorted(folder.rglob("*.html")) if "_static" not in file.parts
    ]  # these are the theme's
    pages = {file.resolve(): Page(file) for file in files}
    broken = []
    for file, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (
                (file.parent / unquote(parts.path)).resolve() if parts.path else file
            )
            known = pages.get(target)
            if not target.is_file() or (
                parts.fragment
                and known
                and unquote(parts.fragment) not in known.anchors
            ):
                broken.append(f"{file.relative_to(folder.resolve())}: {link}")
    return broken
