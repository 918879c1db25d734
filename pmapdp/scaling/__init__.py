"""Scaling past this machine, predicted and checked: `python -m pmapdp.scaling`."""
