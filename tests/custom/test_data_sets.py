"""Data as people have them: each form gives the batches that arrays give, or is refused in a sentence."""

import importlib

import grain
import jax
import numpy as np
import pandas as pd
import pytest
from marks import MNIST_REQUIRED
from PIL import Image

from pmapdp.custom.arrays import check_data
from pmapdp.custom.content import fingerprint
from pmapdp.custom.data_sets import as_data_set
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError

N = 21
INPUTS = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)
LABELS = np.arange(N, dtype=np.int32) % 3
WEIGHTS = np.linspace(0.5, 2, N, dtype=np.float32)
NAMES = np.array(["cat", "cow", "dog"])


class OfOthers:
    """What an array of another library is to NumPy, for example a tensor of PyTorch: it has `__array__`, no more."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return np.array(self.array, dtype)


class MapStyle:
    """As torchvision's data sets: a length, an item, names of the classes."""

    classes = NAMES.tolist()

    def __len__(self):
        return N

    def __getitem__(self, index):
        return OfOthers(INPUTS[index]), int(LABELS[index])


def memory_mapped(folder):
    np.save(folder / "inputs.npy", INPUTS)
    return np.load(folder / "inputs.npy", mmap_mode="r"), LABELS


def import_torch():
    """PyTorch, which torchvision brings: beside the real MNIST it must be there."""
    if MNIST_REQUIRED:
        return importlib.import_module("torch")
    return pytest.importorskip("torch", reason="PyTorch is not installed: its tensors are NOT TESTED")


def tensors_of_torch(folder):
    torch = import_torch()
    return torch.from_numpy(INPUTS), torch.from_numpy(LABELS).long()


def data_set_of_torch(folder):
    torch = import_torch()
    return torch.utils.data.TensorDataset(*tensors_of_torch(folder))


PAIRS = [(INPUTS[i], LABELS[i]) for i in range(N)]
FORMS = {
    "tuple": lambda folder: (INPUTS, LABELS),
    "lists": lambda folder: Split(INPUTS.tolist(), LABELS.tolist()),
    "memory-mapped": memory_mapped,
    "arrays of JAX": lambda folder: (jax.numpy.asarray(INPUTS), jax.numpy.asarray(LABELS)),
    "arrays of others": lambda folder: (OfOthers(INPUTS), OfOthers(LABELS)),
    "tensors": tensors_of_torch,
    "frame and series": lambda folder: (pd.DataFrame(INPUTS, columns=list("abcdef")), pd.Series(LABELS)),
    "frame and categories": lambda folder: (pd.DataFrame(INPUTS), pd.Series(NAMES[LABELS], dtype="category")),
    "labels as one column": lambda folder: (INPUTS, LABELS[:, None]),
    "labels as numbers": lambda folder: (INPUTS, LABELS.astype(float)),
    "labels as rows": lambda folder: (INPUTS, np.eye(3)[LABELS]),
    "labels as names": lambda folder: (INPUTS, NAMES[LABELS].tolist()),
    "list of pairs": lambda folder: PAIRS,
    "pairs with a row as label": lambda folder: [(x, np.eye(3)[y]) for x, y in PAIRS],
    "map-style": lambda folder: MapStyle(),
    "data set of torch": data_set_of_torch,
    "dictionaries": lambda folder: [{"x": x, "label": y} for x, y in PAIRS],
    "dictionaries of numbers": lambda folder: [{"x": x.astype(float).tolist(), "labels": int(y)} for x, y in PAIRS],
    "of Grain": lambda folder: grain.MapDataset.range(N).map(lambda i: (INPUTS[i], LABELS[i])),
}
LAYOUTS = [{}, {"devices": 4, "here": range(1, 3), "accumulate": 2}]


def part(data, name="train"):
    return getattr(check_data(as_data_set(data), classifies=True), name)


def assert_same_batches(found, wanted, first_step=0):
    for layout in LAYOUTS:
        batches = [list(Batches(each, 8, **layout, shuffle_seed=1).epoch(2, first_step)) for each in (found, wanted)]
        assert len(batches[0]) == len(batches[1]) == 3 - first_step
        for one, other in zip(*batches, strict=True):
            jax.tree.map(np.testing.assert_array_equal, one, other)
            assert jax.tree.map(np.result_type, one) == jax.tree.map(np.result_type, other)


OF_TORCH = ("tensors", "data set of torch")


@pytest.mark.parametrize("form", [pytest.param(each, marks=[pytest.mark.torch] * (each in OF_TORCH)) for each in FORMS])
def test_every_form_gives_the_batches_of_arrays(form, tmp_path):
    """Bit for bit, in the same types, padded alike, also from the middle of an epoch and on some devices alone."""
    found = part(DataSet(FORMS[form](tmp_path)))
    for first_step in (0, 2):
        assert_same_batches(found, Split(INPUTS, LABELS), first_step)


def test_a_dictionary_of_parts_and_names_of_classes():
    data = as_data_set({"train": MapStyle(), "validation": (INPUTS, NAMES[LABELS])})
    assert (data.test, data.classes) == (None, ("cat", "cow", "dog"))
    np.testing.assert_array_equal(data.validation.labels, LABELS)
    assert as_data_set(DataSet((INPUTS, NAMES[LABELS]))).classes == ("cat", "cow", "dog")


@pytest.mark.parametrize("read", [False, True], ids=["arrays", "examples"])
def test_inputs_in_a_dictionary_and_weights(read):
    """Of several arrays; a weight is in the batch, and padding stays 0."""
    data = Split({"a": INPUTS[:, :2], "b": INPUTS[:, 2:]}, LABELS, WEIGHTS)
    given = [({"a": INPUTS[i, :2], "b": INPUTS[i, 2:]}, LABELS[i], WEIGHTS[i]) for i in range(N)] if read else data
    assert_same_batches(part(DataSet(given)), data)
    batch = Batches(part(DataSet(given)), 8, devices=3).take(np.array([5, 3]))
    np.testing.assert_array_equal(batch.weights, [WEIGHTS[5], WEIGHTS[3], *[0] * 7])


def test_examples_of_64_bits_stay_so_in_a_run_of_float64():
    """Grain's threads do not know of `jax.enable_x64` around the run."""
    pairs = [(INPUTS[i].astype(float), LABELS[i]) for i in range(N)]
    with jax.enable_x64(True):
        assert_same_batches(part(DataSet(pairs)), Split(INPUTS.astype(float), LABELS))
        assert next(Batches(part(DataSet(pairs)), 8).epoch(0)).inputs.dtype == np.float64


def test_the_content_of_examples_is_told_apart():
    other = [(x, (y + (i == 9)) % 3) for i, (x, y) in enumerate(PAIRS)]
    found = [fingerprint(check_data(as_data_set(DataSet(each)))) for each in (PAIRS, list(PAIRS), other, PAIRS[:20])]
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_images_of_pillow():
    grey, colour = (Image.fromarray(np.full(shape, 7, np.uint8)) for shape in ((4, 5), (4, 5, 3)))
    for image, shape in ((grey, (1, 4, 5, 1)), (colour, (1, 4, 5, 3))):
        assert part(DataSet([(image, 0)])).take(np.arange(1)).inputs.shape == shape


class Changing(MapStyle):
    """With a random transform."""

    def __getitem__(self, index):
        return INPUTS[index] + np.random.normal(size=6), LABELS[index]


class SeldomChanging(MapStyle):
    """With a random transform of one example, which is none of those that are tried first."""

    def __getitem__(self, index):
        return INPUTS[index] + (index == 20) * np.random.normal(size=6), LABELS[index]


def test_a_random_transform_is_found_in_the_second_epoch():
    batches = Batches(part(DataSet(SeldomChanging())), 8)
    list(batches.epoch(0))
    with pytest.raises(UserError, match="example 20 of the training data is another one each time it is read"):
        list(batches.epoch(1))


def one_changed(**changes):
    """Pairs, of which the one with number 9 is another."""
    pair = {"inputs": INPUTS[9], "label": LABELS[9]} | changes
    return [*PAIRS[:9], (pair["inputs"], pair["label"]), *PAIRS[10:]]


REFUSED = {
    "random transform": (Changing, "example 0 .* is another one each time .* give DataSet.*augment="),
    "another shape": (lambda: one_changed(inputs=INPUTS[9, :5]), r"example 9 .* float32 \[5\].* float32 \[6\]"),
    "another type": (lambda: one_changed(label=1.5), r"example 9 of the training data has .* give all of them one"),
    "not a number": (lambda: one_changed(inputs=INPUTS[9] * np.nan), "inputs .* are not all finite numbers"),
    "a name and no names": (lambda: one_changed(label="cat"), "have 'cat', which is none of the 0 classes"),
    "no examples": (list, "have no examples"),
    "no pairs": (lambda: [1, 2], "an example of the data is 1: give a pair"),
    "two labels": (lambda: [{"x": 1, "label": 1, "labels": 2}], "give a pair .inputs, label., or a dictionary"),
    "frame alone": (
        lambda: pd.DataFrame(INPUTS, columns=list("abcdef")),
        "example 0 .* cannot be read .no 0.: correct it",
    ),
    "a label that is missing": (lambda: (INPUTS, pd.Series([*NAMES[LABELS[1:]], None])), "strings, and (nan|None)"),
    "loader": (lambda: iter(PAIRS), "of a loader give its data set"),
    "weight 0": (lambda: Split(INPUTS, LABELS, WEIGHTS - 0.5), r"weights .* above 0 .*inputs\[weights > 0\]"),
    "too few weights": (lambda: Split(INPUTS, LABELS, WEIGHTS[:9]), r"weights have shape \[9\]"),
    "text in a table": (lambda: (pd.DataFrame({"a": ["x"] * N}), LABELS), "give whole numbers, real numbers"),
    "tensor with a gradient": (lambda: (Unreadable(), LABELS), "inputs are no array .call .detach.* first"),
}


class Unreadable:
    """As a tensor that requires a gradient."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("call .detach() first")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    make, sentence = REFUSED[name]
    with pytest.raises(UserError, match=sentence) as caught:
        list(Batches(part(DataSet(make())), 8).epoch(0))
    assert "\n" not in str(caught.value)


def test_an_example_that_cannot_be_read_is_named():
    class Broken(MapStyle):
        def __getitem__(self, index):
            if index == 9:
                raise OSError("the disk is gone")
            return super().__getitem__(index)

    with pytest.raises(UserError, match=r"example 9 of the training data cannot be read \(the disk is gone\)"):
        list(Batches(part(DataSet(Broken())), 8).epoch(0))


def test_classes_that_are_an_array_are_refused():
    with pytest.raises(UserError, match=r"classes=array.* are no names: give a tuple of texts"):
        check_data(as_data_set(DataSet((INPUTS, LABELS), classes=np.unique(LABELS))))


def test_a_label_of_the_test_set_that_no_training_example_has():
    with pytest.raises(UserError, match="the test labels have 'pig', which is none of the 3 classes: name all of them"):
        as_data_set(DataSet((INPUTS, NAMES[LABELS]), (INPUTS, ["pig"] * N)))
    named = as_data_set(DataSet((INPUTS, NAMES[LABELS]), (INPUTS, ["pig"] * N), classes=(*NAMES, "pig")))
    assert set(named.test.labels) == {3}
