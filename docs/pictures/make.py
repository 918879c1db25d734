"""The pictures of README.md and lesson 14, from real output: `python docs/pictures/make.py` in the repository's root.

Needs Chromium, and `pip install playwright tensorboard`.
"""

import io
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
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


def tensorboard(port: int = 6006) -> None:
    """TensorBoard's page for the run of lesson 14, as a PNG."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--dataset", "digits", "--per-device-batch-size", "8", "--epochs", "3", "--switch-epochs", "1", "2"]
        command = [sys.executable, "-m", "pmapdp.train", "mirrored", *flags, "--workdir", f"{folder}/mirrored"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        server = subprocess.Popen(["tensorboard", "--logdir", folder, "--port", str(port)], stderr=subprocess.DEVNULL)
        try:
            while socket.socket().connect_ex(("localhost", port)):
                time.sleep(1)
            screenshot(
                f"http://localhost:{port}/?tagFilter=learning|loss&smoothing=0#timeseries",
                FOLDER.parent.parent / "lessons" / "pictures" / "tensorboard.png",
                height=900,
            )
        finally:
            server.terminate()
            server.wait()


def screenshot(address: str, path: Path, height: int) -> None:
    """The top of a page as a PNG, 1100 pixels wide."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": height})
        page.goto(address)
        page.wait_for_timeout(8000)  # milliseconds: TensorBoard draws after the page is loaded
        if page.get_by_label("close side pane").count():
            page.get_by_label("close side pane").first.click()
            page.wait_for_timeout(3000)
        page.screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    terminal()
    page()
    tensorboard()
