"""The collectives of compiled programs, and how often each runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax
from jax.sharding import Mesh

from pmapdp.collectives import (
    Collective,
    collectives,
    describe_exchange,
    instructions,
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "%all-reduce = f32[512,10]{1,0} all-reduce(%dot), channel_id=1",
            ("all-reduce", 1, 512 * 10 * 4),
        ),
        (
            "ROOT %r = (f32[8]{0}, /*index=1*/bf16[4,4]{1,0}, f32[]) "
            "all-reduce(%a, %b, %c)",
            ("all-reduce", 1, 68),
        ),
        (
            "%g = f32[16]{0} all-gather-done(%all-gather-start), metadata={}",
            ("all-gather", 1, 64),
        ),
        ("%g = f64[2,8]{1,0} all-gather(%x), dimensions={0}", ("all-gather", 1, 128)),
        (
            "%p = s32[3]{0} collective-permute(%x), source_target_pairs={{0,1}}",
            ("collective-permute", 1, 12),
        ),
        ("%t = pred[5]{0} all-to-all(%x), dimensions={0}", ("all-to-all", 1, 5)),
        ("%s = (f32[2]{0}, f32[16]{0}) all-gather-start(%x), dimensions={0}", None),
        ("%t = f32[784,64]{1,0} get-tuple-element(%all-reduce), index=0", None),
        ('%a = f32[4]{0} add(%a, %b), metadata={op_name="jit(f)/all-reduce(x)"}', None),
    ],
)
def test_a_line_of_a_program(line, expected):
    found = collectives("HloModule m\n\n  " + line)
    assert found == ([Collective(*expected, 1)] if expected else [])


def loops(x, steps):
    """Two all-reduces in loops, one in a loop whose length depends on data, one in a
    branch.
    """

    def outer(x, _):
        def inner(x, _):
            return x + lax.psum(jnp.sin(x), "i"), None

        x, _ = lax.scan(inner, x, None, length=3)
        return x * lax.pmax(x, "i"), None

    x, _ = lax.scan(outer, x, None, length=4)
    x = lax.cond(x.sum() > 0, lambda x: lax.psum(2 * x, "i"), lambda x: x, x)
    x, _ = lax.while_loop(
        lambda state: state[1] < steps,
        lambda state: (lax.psum(state[0], "i"), state[1] + 1),
        (x, 0),
    )
    return x


def test_a_collective_in_a_loop_counts_as_often_as_it_runs():
    """The program says how often: 3 x 4 in the inner loop, 4 in the outer one.

    An all-reduce of each micro-batch gives the numbers of one for all, so only the
    count tells them apart.
    """
    mesh = Mesh(np.array(jax.devices()[:2]), ("i",))
    mapped = jax.shard_map(
        loops, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"), check_vma=False
    )
    lowered = jax.jit(mapped).lower(jnp.ones((2, 5)), 3)
    rows = instructions(lowered.compile().as_text())
    found = [(row.runs, row.in_branch) for row in rows]
    assert sorted(found, key=str) == [(1, True), (12, False), (4, False), (None, False)]
    assert collectives(lowered.compile().as_text())[0].runs is None
    known = [row for row in rows if row.runs]
    text = describe_exchange(known)
    assert "3 all-reduces, run 17 times an update, 340 bytes" in text
    in_branch = "(at most: some are in a branch that may not be taken)"
    assert in_branch in text
    always = [row for row in known if not row.in_branch]
    assert in_branch not in describe_exchange(always)
