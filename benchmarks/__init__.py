"""Measurements of pmapdp, each a ratio within one run on one machine."""
