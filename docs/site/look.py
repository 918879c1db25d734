"""Find what sticks out of the pages of the built site, on a phone and on a laptop.

`python docs/site/look.py`.

Headless Chromium opens each page in a frame of 400 and of 1,280 pixels. What scrolls by
itself, such as a wide table or a block of code, may be wider.
"""

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SITE = Path(__file__).parents[2] / "site"
WIDTHS = 400, 1280
CHROMIUM = (
    shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)
FRAME = """<title>begun</title>
<iframe id="frame" style="width:WIDTHpx;height:1200px;border:0"></iframe><script>
const pages = PAGES, out = [];
function scrolls(element) {
  return /auto|scroll|hidden/.test(getComputedStyle(element).overflowX);
}
function inside(element) {
  while (element = element.parentElement) if (scrolls(element)) return true;
  return false;
}
function look() {
  const page = frame.contentDocument, wide = page.documentElement.clientWidth;
  const parts = ".bd-article *, body:not(:has(.bd-article)) *";
  const wider = [...page.querySelectorAll(parts)].filter(
    element => element.getBoundingClientRect().right > wide + 1 && !inside(element));
  if (page.documentElement.scrollWidth > wide + 1 || wider.length) {
    const names = wider.slice(0, 3).map(each => each.tagName + "." + each.className);
    out.push(`${pages[0]} at ${wide} pixels: ${names}`);
  }
  pages.shift();
  next();
}
function next() {
  if (pages.length) frame.src = pages[0];
  else document.title = JSON.stringify(out);
}
frame.onload = () => setTimeout(look, 100);
next();
</script>"""
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--allow-file-access-from-files",
    "--window-size=1500,1400",
    "--virtual-time-budget=300000",
    "--dump-dom",
]


def too_wide(site: Path, width: int) -> list[str]:
    """Return a line for each page that is wider than a frame of `width` pixels."""
    paths = [path.relative_to(site) for path in sorted(site.rglob("*.html"))]
    # The theme's own pages, and plain code, are left out.
    pages = [str(path) for path in paths if path.parts[0] not in ("_static", "source")]
    frame = FRAME.replace("WIDTH", str(width)).replace("PAGES", json.dumps(pages))
    return run_page(site, frame)  # fails if Chromium didn't come to the end


def run_page(folder: Path, page: str) -> Any:
    """Open a page as a file of a folder, and return the JSON that becomes its title."""
    if CHROMIUM is None:
        sys.exit("no Chromium here: apt-get install chromium")
    with (
        tempfile.TemporaryDirectory() as profile,
        tempfile.NamedTemporaryFile("w", dir=folder, suffix=".html") as file,
    ):
        file.write(page)
        file.flush()
        url = Path(file.name).as_uri()
        command = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", url]
        shown = subprocess.run(
            command, capture_output=True, text=True, timeout=600, check=True
        ).stdout
    title = re.search("<title>(.*?)</title>", shown, re.DOTALL)[1]
    return json.loads(html.unescape(title))


def main() -> None:
    """Run the command."""
    lines = []
    for width in WIDTHS:
        lines += too_wide(SITE, width)
    for line in lines:
        print(line)
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
