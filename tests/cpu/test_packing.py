"""Collectives of many arrays, packed as CPUs take them and one by one as accelerators do, against NumPy's sums."""

import functools

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from pmapdp.cpu import packing
from pmapdp.cpu.packing import WHOLE, gathered, packed, scattered_sums

N = 4
SHAPES, AXES = [(8, 3), (3, 12), (2, 5, 4), (7,), ()], [0, 1, 2, WHOLE, WHOLE]


@pytest.fixture(params=["cpu", "default"])
def platform(request, monkeypatch):
    """The branch of this platform runs: the tests' own machine would always take that of CPUs."""

    def chosen(*arguments, cpu, default):
        return {"cpu": cpu, "default": default}[request.param](*arguments)

    monkeypatch.setattr(packing.lax, "platform_dependent", chosen)
    return request.param


def per_device(seed: int = 0) -> list[np.ndarray]:
    """For each shape `[N, *shape]`, whole numbers: their sums are exact in any order."""
    random = np.random.default_rng(seed)
    return [random.integers(-99, 99, (N, *shape)).astype(np.float32) for shape in SHAPES]


def on_devices(function):
    """`function`, from one device's arrays to its results, for arrays with a leading axis of devices."""
    rows = PartitionSpec("data")

    def one(arrays):
        return [x[None] for x in function([x[0] for x in arrays])]

    mesh = Mesh(np.array(jax.devices()[:N]), ("data",))
    return jax.jit(jax.shard_map(one, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))


def collectives(function, arrays) -> dict[str, int]:
    program = on_devices(function).lower(arrays).as_text()
    kinds = ("all_reduce", "reduce_scatter", "all_gather")
    return {kind: count for kind in kinds if (count := program.count(f'"stablehlo.{kind}"'))}


def parts(x: np.ndarray, axis: int) -> list[np.ndarray]:
    return [x] * N if axis == WHOLE else np.split(x, N, axis)


def test_packed_sums(platform):
    arrays = per_device()
    psum = functools.partial(packed(lax.psum), axis_name="data")
    for found, x in zip(on_devices(psum)(arrays), arrays, strict=True):
        np.testing.assert_array_equal(found, np.stack([x.sum(0)] * N))
    assert collectives(psum, arrays) == {"all_reduce": 1 if platform == "cpu" else len(arrays)}


def test_every_device_gets_the_sum_of_its_part(platform):
    arrays = per_device()
    scatter = functools.partial(scattered_sums, axes=AXES, axis_name="data", N=N)
    for found, x, axis in zip(on_devices(scatter)(arrays), arrays, AXES, strict=True):
        np.testing.assert_array_equal(found, np.stack(parts(x.sum(0), axis)))
    one_by_one = {"all_reduce": AXES.count(WHOLE), "reduce_scatter": len(AXES) - AXES.count(WHOLE)}
    assert collectives(scatter, arrays) == ({"reduce_scatter": 1} if platform == "cpu" else one_by_one)


def test_the_parts_of_all_devices_make_the_whole(platform):
    wholes = [x[0] for x, axis in zip(per_device(), AXES, strict=True) if axis != WHOLE]
    axes = [axis for axis in AXES if axis != WHOLE]
    arrays = [np.stack(parts(x, axis)) for x, axis in zip(wholes, axes, strict=True)]
    gather = functools.partial(gathered, axes=axes, axis_name="data")
    for found, whole in zip(on_devices(gather)(arrays), wholes, strict=True):
        np.testing.assert_array_equal(found, np.stack([whole] * N))
    assert collectives(gather, arrays) == {"all_gather": 1 if platform == "cpu" else len(axes)}
