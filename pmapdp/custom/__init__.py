"""Your model, data, loss and optimizer, fitted to the trainer or refused.

Read data.py first, then model.py and trial.py. docs/custom.md shows how to use it.
"""
