"""Measurements of pmapdp, each a ratio within one run on one machine."""

import argparse

from pmapdp import cli
from pmapdp.config import Config
from pmapdp.distributed import ProcessesOptions
from pmapdp.registry import MODELS


def make_parser(description: str | None, name: str, example: str) -> cli.Parser:
    """The parser of `python -m benchmarks.NAME`, to which the benchmark adds its flags.

    A mistake is one sentence, which ends with this command and the arguments `example`.
    """
    parser = cli.Parser(f"{description}\n\n    python -m benchmarks.{name} {example}")
    parser.add_argument("--help", action="help")
    parser.argument_default = None  # a flag that is not given has a value too
    return parser


def work_parser(description: str | None, name: str) -> cli.Parser:
    """The parser of a program that trains on the first EXAMPLES of DATA.npz and prints the speed of each epoch."""
    parser = make_parser(description, name, "data.npz pmap cnn 8 512 51200 3")
    parser.add_argument("data")
    parser.add_argument("strategy", choices=["single", "pmap", "jit", "shard_map"])
    parser.add_argument("model", choices=list(MODELS))
    for number in ("devices", "batch", "examples", "epochs"):
        parser.add_argument(number, type=at_least_one)
    return parser


def parse_config(flags: list[str]) -> Config:
    """The configuration that flags of `python -m pmapdp.train` ask for."""
    return cli.parse_with_recipe(ProcessesOptions, flags, None)[0]


def at_least_one(text: str) -> int:
    """The value of a flag that counts something."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)
