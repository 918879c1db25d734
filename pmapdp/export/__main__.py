"""The command `python -m pmapdp.export`."""

import sys

from pmapdp.errors import run_command
from pmapdp.export.writer import main

sys.exit(run_command(main))
