"""Measurements of pmapdp, each a ratio within one run on one machine."""

import argparse

from pmapdp.command.flags import Parser


def make_parser(description: str | None, example: str) -> Parser:
    """The parser of a benchmark, to which it adds its flags: a mistake is one sentence, which ends in `example`."""
    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.example = example
    return parser


def at_least_one(text: str) -> int:
    """The value of a flag that counts something."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)
