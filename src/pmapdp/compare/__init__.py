"""Every strategy side by side on one job: `python -m pmapdp.compare`."""
