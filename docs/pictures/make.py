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
    "--window-size=1280,1022",  # the table, and why the results are equal
]


def make_page() -> None:
    """Write the page of `python -m pmapdp.compare --dtype float64`, and its picture."""
    html = FOLDER / "four_strategies.html"
    options = ["--dtype", "float64", "--html", html]
    command = [sys.executable, "-m", "pmapdp.compare", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    take_screenshot(html, FOLDER / "compare.png")


def take_screenshot(html: Path, path: Path) -> None:
    """Write the top of a page as a PNG, 1280 pixels wide."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is not here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        command = [
            chromium,
            *OPTIONS,
            f"--user-data-dir={profile}",
            f"--screenshot={path}",
            html.as_uri(),
        ]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    make_page()
