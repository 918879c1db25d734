"""What a report of a fault needs of the machine: `python -m pmapdp.environment`."""
