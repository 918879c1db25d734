"""Run the console script: `python -m pmapdp train` is `pmapdp train`."""

from pmapdp.cli import main

main()
