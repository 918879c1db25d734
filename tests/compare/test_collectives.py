"""Collectives read from HLO text: hand-written lines of known size, and a program compiled here."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp import devices
from pmapdp.compare.collectives import Collective, collectives


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%all-reduce = f32[512,10]{1,0} all-reduce(%dot), channel_id=1", ("all-reduce", 1, 512 * 10 * 4)),
        (
            "ROOT %r = (f32[8]{0}, /*index=1*/bf16[4,4]{1,0}, f32[]) all-reduce(%a, %b, %c), replica_groups={{0,1}}",
            ("all-reduce", 1, 8 * 4 + 16 * 2 + 4),
        ),
        ("%s = f32[16]{0} all-reduce-done(%all-reduce-start)", ("all-reduce", 1, 64)),
        ("%g = f32[16]{0} all-gather-done(%all-gather-start), metadata={}", ("all-gather", 1, 64)),
        ("%g = f64[2,8]{1,0} all-gather(%x), dimensions={0}", ("all-gather", 1, 128)),
        ("%p = s32[3]{0} collective-permute(%x), source_target_pairs={{0,1}}", ("collective-permute", 1, 12)),
        ("%t = pred[5]{0} all-to-all(%x), dimensions={0}", ("all-to-all", 1, 5)),
    ],
)
def test_one_line(line, expected):
    assert collectives("HloModule m\n\n  " + line) == [Collective(*expected)]


def test_what_is_no_collective():
    text = """
      %all-reduce-start = f32[16]{0} all-reduce-start(%x), channel_id=1
      %all-gather-start = (f32[2]{0}, f32[16]{0}) all-gather-start(%x), dimensions={0}
      %get-tuple-element.4 = f32[784,64]{1,0} get-tuple-element(%all-reduce), index=0
      %add = f32[4]{0} add(%a, %b), metadata={op_name="jit(f)/all-reduce(x)"}
    """
    assert collectives(text) == []


def test_a_compiled_program():
    mesh = Mesh(np.array(devices.choose(4)), ("data",))
    split, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("data"), PartitionSpec()))
    x = jax.device_put(np.ones((8, 3), np.float32), split)
    total = jax.jit(lambda x: x.sum(0), out_shardings=whole).lower(x).compile().as_text()
    assert collectives(total) == [Collective("all-reduce", 1, 3 * 4)]
    gathered = jax.jit(lambda x: 2 * x, out_shardings=whole).lower(x).compile().as_text()
    assert collectives(gathered) == [Collective("all-gather", 1, 8 * 3 * 4)]
