"""The pictures of README.md, from real output: `python docs/pictures/make.py` in the repository's root.

Needs Chromium, and `pip install playwright`.
"""

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console

FOLDER = Path(__file__).parent
COLUMNS = 132


def terminal() -> None:
    """What `python -m pmapdp.train` prints, as an SVG."""
    command = ["python", "-m", "pmapdp.train"]
    run = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, check=True)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    console.print(f"[bold]$ {' '.join(command)}[/]")
    lines = run.stdout.splitlines()
    shown = [line for line in lines if not re.match(r"epoch ([4-9]|1\d)/", line)]  # the rest look like the first three
    for line in shown:
        console.print(line, markup=False)
        if line.startswith("epoch 3/"):
            console.print(f"... {len(lines) - len(shown)} lines more", markup=False)
    svg = console.export_svg(title="pmapdp")
    (FOLDER / "train.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL), encoding="utf-8")


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
    terminal()
    page()
