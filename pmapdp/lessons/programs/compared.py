"""Run `python -m pmapdp.compare` from a notebook: lessons 10 and 12 show its page and read its figures."""

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


@functools.cache
def compare(*arguments: str) -> tuple[str, dict[str, Any]]:
    """The page, as HTML, and the report of `python -m pmapdp.compare ARGUMENTS`, which runs in a process of its own.

    A notebook that runs the same comparison again gets the same page, without waiting for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        page, report = Path(folder, "page.html"), Path(folder, "report.json")
        command = [sys.executable, "-m", "pmapdp.compare", *arguments, "--html", str(page), "--json", str(report)]
        subprocess.run(command, capture_output=True, check=True)
        return page.read_text(), json.loads(report.read_text())
