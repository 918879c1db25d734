"""Compare the four strategies side by side, or steps of yours: `python -m pmapdp.compare`."""
