"""Checks of lesson 13's exercises."""

import numpy as np
from checks import require


def my_rows(answer):
    """Blocks, as many rows for each, and together all of them."""
    random = np.random.default_rng()
    for _ in range(5):
        processes, share = int(random.integers(2, 6)), int(random.integers(2, 9))
        rows = processes * share
        found = [[int(row) for row in answer(process, processes, rows)] for process in range(processes)]
        for process, mine in enumerate(found):
            require(
                len(mine) == share,
                f"{processes} processes share {rows} rows: each reads {share}, and process {process} reads {len(mine)}",
            )
        together = sorted(row for mine in found for row in mine)
        require(together == list(range(rows)), "some rows are read by nobody, or twice: all together make up the batch")
        for process, mine in enumerate(found):
            require(
                mine == list(range(process * share, (process + 1) * share)),
                f"process {process} reads {mine}: its devices hold neighbouring rows, "
                f"{process * share} to {(process + 1) * share - 1}",
            )


def lost(answer):
    """Silent ones, in order, and never this process."""
    random = np.random.default_rng()
    for _ in range(5):
        count, now, patience = (
            int(random.integers(4, 9)),
            float(random.integers(500, 900)),
            float(random.integers(20, 60)),
        )
        silent = sorted(int(p) for p in random.choice(count, size=2, replace=False))
        signs = [now - patience * (3.0 if p in silent else 0.5) for p in range(count)]
        others = [p for p in range(count) if p not in silent]
        found = list(answer(signs, now, patience, others[0]))
        require(found != others[1:], "these are the living ones: a silent process' last sign is older than `patience`")
        require(found == silent, f"after {patience:.0f} s of patience {silent} are lost, yours says {found}")
        found = list(answer(signs, now, patience, silent[0]))
        require(
            found == silent[1:],
            f"process {silent[0]} asks, so it is alive, however old its own last sign is; yours says {found}",
        )


def differing(answer):
    """Each against process 0, missing facts too."""
    random = np.random.default_rng()
    seed, other = (int(number) for number in random.choice(100, size=2, replace=False))
    same = {"seed": seed, "jax": "0.10.2", "data": "digits"}
    require(list(answer([same, dict(same)])) == [], "two equal processes differ in nothing: return an empty list")
    found = list(answer([same, dict(same), {**same, "seed": other}]))
    require(
        found == [(2, "seed")],
        f"of three processes only number 2 has another seed: [(2, 'seed')], yours says {found}; begin with process 0",
    )
    found = list(answer([same, {**same, "seed": other}, dict(same)]))
    require(
        found == [(1, "seed")],
        f"compare each with process 0, not with the one before it; yours says {found} for [(1, 'seed')]",
    )
    found = list(answer([same, {"seed": seed, "data": "digits"}]))
    require(found == [(1, "jax")], f"process 1 lacks 'jax' altogether, which is a difference; yours says {found}")
