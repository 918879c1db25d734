"""Starts the workers of the checks and takes what they print."""

import json
import os
import subprocess
import sys
from typing import Any

from pmapdp.errors import UserError

SECONDS_ALLOWED = 300


def start(*arguments: object) -> subprocess.Popen:
    """A worker process on `arguments`, with pipes; it sees the CPU alone, also where there is an accelerator."""
    command = [sys.executable, "-m", "pmapdp.scaling.worker", *map(str, arguments)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def results(*processes: subprocess.Popen) -> list[dict[str, Any]]:
    """What workers that run at the same time have found; if one fails all are ended.

    Raises:
        UserError: one failed or took too long; says its last line.
    """
    found = []
    try:
        for process in processes:
            out, errors = process.communicate(timeout=SECONDS_ALLOWED)
            if process.returncode:
                last = (errors.strip().splitlines() or ["it said nothing"])[-1]
                raise UserError(f"a check failed ({last.removeprefix('error: ')}): try --no-check")
            found.append(json.loads(out.strip().splitlines()[-1]))
    except subprocess.TimeoutExpired:
        raise UserError(f"a check took over {SECONDS_ALLOWED} seconds: try --no-check") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return found
