"""The ways to train side by side, or steps of the reader's own: `python -m pmapdp.compare`."""
