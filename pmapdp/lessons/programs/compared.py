"""Run `python -m pmapdp.compare` from a notebook: lessons 10 and 12 read its figures."""

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


@functools.cache
def compare(*arguments: str) -> dict[str, Any]:
    """The report of `python -m pmapdp.compare ARGUMENTS`, which runs in a process of its own.

    A notebook that runs the same comparison again gets the same report, without waiting for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pmapdp.compare", *arguments, "--json", str(report)]
        subprocess.run(command, capture_output=True, check=True)
        return json.loads(report.read_text())
