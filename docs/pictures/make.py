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
    "--window-size=1000,796",  # the page's smallest width for four columns
    "--force-device-scale-factor=2",  # so that it's sharp on any screen
]
# The picture is the first table, without its last two rows, to be legible in README.md.
ONLY_THE_TABLE = """<style>
.answer .row:nth-last-child(-n + 2), .why, .facts, nav, section { display: none; }
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
