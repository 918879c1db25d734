"""All of a comparison as one structure that JSON can hold: what the page and the tables are made from."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from pmapdp.compare.apart import apart
from pmapdp.compare.own_sources import rows_of_programs
from pmapdp.compare.own_steps import compare_programs
from pmapdp.compare.parted import where_ways_part
from pmapdp.compare.runs import STACKED, compare
from pmapdp.compare.ways import rows_of_ways
from pmapdp.config import Config

Report = dict[str, Any]
Say = Callable[[str], None]  # takes a line about each run that is done


def report_of_ways(config: Config, strategies: Sequence[str], devices: Sequence[int], say: Say) -> Report:
    """A job on a single device, and by each strategy on each of these numbers of devices; none is the default."""
    counts: Sequence[int | None] = sorted(set(devices), reverse=True) or [None]
    ways: dict[str, Any] = {"pmap": "pmap", STACKED: "pmap", "shard_map": "shard_map", "jit": "jit"}
    ways = {way: strategy for way, strategy in ways.items() if strategy in strategies}
    plan = [("single", replace(config, strategy="single", devices=1))]
    for N in counts:
        plan += [(way, replace(config, strategy=strategy, devices=N)) for way, strategy in ways.items()]
    columns = ["single", *(way for way in ways if way != STACKED)]
    return {
        "config": asdict(config),
        "columns": columns,
        "files": {way: f"steps/{way}.py" for way in columns},
        "rows": rows_of_ways(["single", *ways]),
        "runs": compare(plan, say),
        "parting": apart(where_ways_part, JAX_PLATFORMS="cpu"),
    }


def report_of_programs(programs: Sequence[str], devices: int | None, say: Say) -> Report:
    """Steps of the reader's own, each FILE.py:PROGRAM."""
    runs = compare_programs(programs, devices, say)
    return {
        "config": None,
        "columns": list(programs),
        "files": {each: os.path.basename(each.rpartition(":")[0]) for each in programs},
        "rows": rows_of_programs(programs),  # of files that can be read, for the programs have run
        "runs": runs,
        "parting": None,
    }
