"""Measurements of pmapdp, each a ratio within one run on one machine."""

import argparse


def at_least_one(text: str) -> int:
    """The value of a flag that counts something, for argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1: try 3")
    return int(text)
