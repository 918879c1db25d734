"""Make the picture of README.md from real output: `python docs/pictures/make.py` in the root. Needs Chromium."""

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
    "--window-size=1280,860",
]


def page() -> None:
    """Write the first screen of the page of `python -m pmapdp.compare --dtype float64 --html` as a PNG."""
    with tempfile.TemporaryDirectory() as folder:
        html = Path(folder, "page.html")
        command = [
            sys.executable,
            "-m",
            "pmapdp.compare",
            "--dtype",
            "float64",
            "--html",
            html,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        screenshot(html, FOLDER / "compare.png")


def screenshot(html: Path, path: Path) -> None:
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
    page()
