"""Compare the strategies, or your own steps: `python -m pmapdp.compare`."""
