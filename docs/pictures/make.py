"""Make the page of the four strategies, and its picture for README.md.

python docs/pictures/make.py        # in the root; it needs Chromium
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--window-size=1000,765",  # the page's smallest width for four columns
    "--force-device-scale-factor=2",  # so that it's sharp on any screen
]
# The picture is the first table, in letters that are legible in README.md. Two rows are
# on the page only, which makes room for the equal results.
ONLY_THE_TABLE = """<style>
.why, .facts, nav, section, .question small { display: none; }
.answer .row:is(:nth-child(3), :nth-child(5)) { display: none; }
.answer .row:nth-child(4) small { display: none; }
.answer .row { grid-template-columns: 6.6rem repeat(var(--columns), minmax(0, 1fr)); }
.row > div { padding: 0.4rem 0.5rem !important; }
small, .holds, .chip { font-size: 0.86rem !important; }
</style></head>"""


def make_page() -> None:
    """Write the page of `python -m pmapdp.compare --dtype float64`, and its picture."""
    html = FOLDER / "four_strategies.html"
    options = ["--dtype", "float64", "--html", html]
    command = [sys.executable, "-m", "pmapdp.compare", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    take_screenshot(html, FOLDER / "compare.png")


def take_screenshot(html: Path, path: Path) -> None:
    """Write the top of a page as a PNG, 2000 pixels wide."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is not here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder) / "top.html"
        page = html.read_text(encoding="utf-8")
        top.write_text(page.replace("</head>", ONLY_THE_TABLE, 1), encoding="utf-8")
        command = [
            chromium,
            *OPTIONS,
            f"--user-data-dir={folder}/profile",
            f"--screenshot={path}",
            top.as_uri(),
        ]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    make_page()
