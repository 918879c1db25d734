"""Promise 5: checkpoints have no device axis, and know nothing of the step that wrote
them.
"""

import entry
import jax
import numpy as np
import pytest
import small_job

WRITERS = [
    ("pmap", 7, {}),
    ("jit", 4, {"shard_state": "parameters"}),
    pytest.param(("jit", 4, {"shard_state": "optimizer"}), marks=pytest.mark.slow),
]


def run(folder, strategy, devices, others):
    """A run of four updates.

    Its result, and the arrays of its checkpoint, which Orbax reads without the package.
    """
    trained = small_job.train(
        strategy=strategy, devices=devices, workdir=str(folder), epochs=1, **others
    )
    return trained, entry.arrays_on_disk(folder, 4)


@pytest.fixture(scope="module")
def of_one_device(tmp_path_factory):
    return run(tmp_path_factory.mktemp("one") / "run", "single", 1, {})


@pytest.fixture(
    scope="module",
    params=WRITERS,
    ids=lambda writer: f"{writer[0]} on {writer[1]} {writer[2]}",
)
def written(request, tmp_path_factory):
    return run(
        tmp_path_factory.mktemp("several") / "run", *request.param
    ), request.param


def test_the_arrays_have_the_names_shapes_and_types_of_one_device(
    written, of_one_device
):
    (_, arrays), (_, devices, _) = written
    assert {name: (array.shape, array.dtype) for name, array in arrays.items()} == {
        name: (array.shape, array.dtype) for name, array in of_one_device[1].items()
    }
    # No layer has 4, 5 or 7 of anything.
    assert all(devices not in array.shape for array in arrays.values())


def test_the_arrays_are_the_state(written):
    (trained, arrays), _ = written
    for path, leaf in jax.tree_util.tree_leaves_with_path(trained.state.params):
        end = "params/" + jax.tree_util.keystr(path, simple=True, separator="/")
        (name,) = (name for name in arrays if name.endswith(end))
        np.testing.assert_array_equal(arrays[name], leaf)
    assert len(arrays) == len(jax.tree.leaves(trained.state))


def test_the_numbers_are_those_of_one_device(written, of_one_device):
    """Within the rounding of float32, whoever wrote them."""
    (_, arrays), _ = written
    for name, array in of_one_device[1].items():
        np.testing.assert_allclose(arrays[name], array, rtol=0, atol=1e-5)
