"""The picture of README.md, from real output: `python docs/pictures/make.py` in the repository's root.

Needs Chromium, and `pip install playwright`.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent


def page() -> None:
    """The top of the page that `python -m pmapdp.compare --dtype float64 --html` writes, as a PNG."""
    with tempfile.TemporaryDirectory() as folder:
        html = Path(folder, "page.html")
        command = [sys.executable, "-m", "pmapdp.compare", "--dtype", "float64", "--html", html]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        screenshot(html.as_uri(), FOLDER / "compare.png", height=1400)


def screenshot(address: str, path: Path, height: int) -> None:
    """The top of a page as a PNG, 1100 pixels wide."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": height})
        page.goto(address)
        page.wait_for_timeout(2000)  # milliseconds
        page.screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    page()
