"""Data as people have them: each form gives the batches of arrays, or is refused."""

import time
from functools import partial
from importlib import import_module
from inspect import isfunction
from threading import Barrier
from typing import NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest
from PIL import Image

from pmapdp.custom.data import fingerprint, load_npz, make_data_set
from pmapdp.custom.images import ImageFolder
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import DataSet, Split, Texts
from pmapdp.errors import UserError

N = 21
INPUTS = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)
LABELS = np.arange(N, dtype=np.int32) % 3
WEIGHTS = np.linspace(0.5, 2, N, dtype=np.float32)
NAMES = np.array(["cat", "cow", "dog"])
PAIRS = [(INPUTS[i], LABELS[i]) for i in range(N)]
# They take long, and not all need them.
grain, pandas = (partial(import_module, name) for name in ("grain", "pandas"))


class Tensor:
    """An array of another library, for example of PyTorch: it only has `__array__`."""

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
        return Tensor(INPUTS[index]), int(LABELS[index])


class Pair(NamedTuple):
    """Inputs and labels in a tuple of your own."""

    inputs: np.ndarray
    labels: np.ndarray


FORMS = {
    "tuple": lambda folder: (INPUTS, LABELS),
    "named tuple": lambda folder: Pair(INPUTS, LABELS),
    "memory-mapped": lambda folder: (
        np.memmap(folder / "x", np.float32, "w+", shape=(N, 6)).__iadd__(INPUTS),
        LABELS,
    ),
    "reversed in memory": lambda folder: (
        INPUTS[::-1].copy()[::-1],
        LABELS[::-1].copy()[::-1],
    ),
    "arrays of JAX": lambda folder: (
        jax.numpy.asarray(INPUTS),
        jax.numpy.asarray(LABELS),
    ),
    "frame and series": lambda folder: (
        pandas().DataFrame(INPUTS, columns=list("abcdef")),
        pandas().Series(LABELS),
    ),
    "frame and categories": lambda folder: (
        INPUTS,
        pandas().Series(NAMES[LABELS], dtype="category"),
    ),
    "labels as names": lambda folder: (INPUTS, NAMES[LABELS].tolist()),
    "list of pairs": lambda folder: PAIRS,
    "pairs with a name as label": lambda folder: {
        "train": [(x, NAMES[y]) for x, y in PAIRS],
        "classes": NAMES,
    },
    "map-style": lambda folder: MapStyle(),
    "dictionaries": lambda folder: [{"x": x, "label": y} for x, y in PAIRS],
    "dictionaries of numbers": lambda folder: [
        {"x": x.astype(float).tolist(), "labels": int(y)} for x, y in PAIRS
    ],
    "of Grain": lambda folder: (
        grain().MapDataset.range(N).map(lambda i: (INPUTS[i], LABELS[i]))
    ),
}


def part(data, name="train"):
    if not isinstance(data, dict):
        data = {"train": data}
    if "classes" in data:
        data = DataSet(**data)
    return getattr(make_data_set(data), name)


def assert_same_batches(found, wanted, first_step=0):
    for layout in ({}, {"devices": 4, "local_shards": range(1, 3), "accumulate": 2}):
        batches_of = partial(Batches, batch_size=8, shuffle_seed=1, **layout)
        batches = list(batches_of(found).epoch(2, first_step))
        wanted_batches = list(batches_of(wanted).epoch(2, first_step))
        assert len(batches) == len(wanted_batches) == 3 - first_step
        for batch, wanted_batch in zip(batches, wanted_batches, strict=True):
            jax.tree.map(np.testing.assert_array_equal, batch, wanted_batch)
            types = jax.tree.map(np.result_type, batch)
            assert types == jax.tree.map(np.result_type, wanted_batch)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_batches_of_arrays(form, tmp_path):
    """Bit for bit, in the same types, padded alike, also from an epoch's middle."""
    found = part(form(tmp_path))
    for first_step in (0, 2):
        assert_same_batches(found, Split(INPUTS, LABELS), first_step)


@pytest.mark.parametrize("convert_dtypes", [False, True])
def test_a_frame_with_truth_values_gives_the_batches_of_numbers(convert_dtypes):
    """Also with whole numbers, and with the types of pandas that may lack values."""
    columns = {"size": INPUTS[:, 0], "is_one": LABELS == 1, "class": LABELS}
    frame = pandas().DataFrame(columns)
    if convert_dtypes:
        frame = frame.convert_dtypes()
    numbers = np.stack(list(columns.values()), axis=1).astype(np.float32)
    assert_same_batches(part((frame, LABELS)), Split(numbers, LABELS))


def test_weights_of_classes():
    """By number or by name, each example gets its class's weight."""
    weights = np.array([1, 0.5, 4], np.float32)
    wanted = Split(INPUTS, LABELS, weights[LABELS])
    by_number = dict(enumerate(weights.tolist()))
    assert_same_batches(part((INPUTS, LABELS, by_number)), wanted)
    by_name = dict(zip(NAMES.tolist(), weights.tolist(), strict=True))
    assert_same_batches(part((INPUTS, NAMES[LABELS], by_name)), wanted)


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<i8", "u1"])
def test_a_large_array_stays_in_its_file(dtype, tmp_path, monkeypatch):
    """Its batches have JAX's types, and no check converts more than a sample."""
    monkeypatch.setattr("pmapdp.custom.arrays.LARGE_BYTES", 1000)
    monkeypatch.setattr("pmapdp.custom.arrays.SAMPLE_BYTES", 100)
    array = np.memmap(tmp_path / "x", dtype, "w+", shape=(N, 80))
    array[:] = np.random.default_rng(0).integers(0, 100, array.shape)
    found = part((array, LABELS))
    assert np.shares_memory(found.inputs.array, array)
    types = {"f": np.float32, "i": np.int32, "u": np.uint8}
    in_memory = np.array(array).astype(types[np.dtype(dtype).kind])
    assert_same_batches(found, Split(in_memory, LABELS))


@pytest.mark.parametrize("one_by_one", [False, True])
def test_dictionaries_of_inputs_and_labels_and_weights(one_by_one):
    data = Split(
        {"a": INPUTS[:, :2], "b": INPUTS[:, 2:]},
        {"kind": LABELS, "size": INPUTS.sum(1)},
        WEIGHTS,
    )
    rows = [jax.tree.map(lambda x, i=i: x[i], tuple(data)) for i in range(N)]
    found = part(rows if one_by_one else data)
    assert_same_batches(found, data)
    batch = Batches(found, 8, devices=3).read_batch(np.array([5, 3]))
    np.testing.assert_array_equal(batch.weights, [WEIGHTS[5], WEIGHTS[3], *[0] * 7])


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_an_image_of_pillow_has_an_axis_of_channels(mode, channels):
    examples = part([(Image.new(mode, (5, 4)), 0)])
    assert examples.select(np.arange(1)).inputs.shape == (1, 4, 5, channels)


def test_numbers_keep_their_64_bits_if_jax_has_them():
    with jax.enable_x64(True):
        found = part([(INPUTS[i].astype(float), LABELS[i]) for i in range(N)])
        assert_same_batches(found, Split(INPUTS.astype(float), LABELS))


def test_all_parts_number_their_classes_as_the_training_set_does():
    data = make_data_set({"train": MapStyle(), "validation": (INPUTS, NAMES[LABELS])})
    assert (data.test, data.classes) == (None, ("cat", "cow", "dog"))
    np.testing.assert_array_equal(data.validation.labels, LABELS)


@pytest.mark.parametrize(
    ("data", "classes"),
    [
        (DataSet((INPUTS, NAMES[LABELS])), ("cat", "cow", "dog")),
        (DataSet((INPUTS, LABELS), classes=np.unique(LABELS)), ("0", "1", "2")),
    ],
)
def test_classes_are_those_that_are_given_or_the_names_among_the_labels(data, classes):
    assert make_data_set(data).classes == classes


def test_a_test_set_may_have_a_class_that_the_training_set_lacks():
    classes = (*NAMES, "pig")
    pigs = (INPUTS, ["pig"] * N)
    data = make_data_set(DataSet((INPUTS, NAMES[LABELS]), pigs, classes=classes))
    assert set(data.test.labels) == {3}


# Type and number of an array; the types of inputs and labels, None if it's refused.
NUMBERS = [
    ("?", 1, "?", "i4"),
    ("u1", 255, "u1", "i4"),
    (">i2", -(2**15), "i2", "i4"),
    ("<u4", 2**32 - 1, "u4", None),
    (">i8", 2**31 - 1, "i4", "i4"),
    ("<i8", -(2**31) - 1, None, None),
    (">u8", 2**32 - 1, "u4", None),
    ("<u8", 2**63, None, None),
    ("f2", 0.5, "f2", "f2"),
    (">f8", -3.4e38, "f4", "f4"),
    ("<f8", 3.5e38, None, None),
]


@pytest.mark.parametrize(("dtype", "number", "of_inputs", "of_labels"), NUMBERS)
def test_a_number_stays_what_it_is_or_is_refused(dtype, number, of_inputs, of_labels):
    """In at most 32 bits and this machine's byte order, within float32's rounding."""
    array = np.array([0, number], dtype)
    for what, wanted in (("inputs", of_inputs), ("labels", of_labels)):
        data = Split(**{"inputs": INPUTS[:2], "labels": LABELS[:2]} | {what: array})
        if wanted is None:
            with pytest.raises(
                UserError,
                match=rf"the training {what} \({array.dtype}\) are not all .* row 1: ",
            ):
                part(data)
            continue
        found = getattr(part(data), what)
        assert found.dtype == np.dtype(wanted)
        np.testing.assert_allclose(found.astype(float), array.astype(float), rtol=1e-7)


class Changing(MapStyle):
    """With a random transform of the last example alone."""

    def __getitem__(self, index):
        noise = np.random.normal(size=6) * (index == N - 1)
        return INPUTS[index] + noise, LABELS[index]


class Broken(MapStyle):
    def __getitem__(self, index):
        if index == 9:
            raise OSError("the disk is gone")
        return super().__getitem__(index)


def one_changed(inputs=INPUTS[9], label=LABELS[9]):
    """Pairs, of which the one with number 9 is another."""
    return [*PAIRS[:9], (inputs, label), *PAIRS[10:]]


REFUSED = {
    "rare random transform": (
        Changing(),
        "example 20 of the training data changes every time it is read",
    ),
    "another shape": (
        one_changed(INPUTS[9, :5]),
        r"example 9 .* float32 \[5\].* float32 \[6\]",
    ),
    "not a number": (
        one_changed(INPUTS[9] * np.nan),
        "example 9 of the training inputs .* are not all finite",
    ),
    "an example that fails": (
        Broken(),
        r"example 9 of the training data cannot be read \(the disk is gone\)",
    ),
    "no examples": ([], "example 0 of the training data cannot be read"),
    "no pairs": (
        [1, 2],
        "an example of the data is 1: give a pair .*; without labels give the inputs t",
    ),
    "a label that is missing": (
        lambda: (INPUTS, pandas().Series([*NAMES[LABELS[1:]], None])),
        "have a class that is none of the 3 .no (nan|None)",
    ),
    "loader": (iter(PAIRS), "of a loader give its data set"),
    "text in a table": (
        lambda: (pandas().DataFrame({"size": INPUTS[:, 0], "a": ["x"] * N}), LABELS),
        "the training inputs 'a' are texts, .*: give numbers",
    ),
    "texts one by one": (
        [{"text": "good film", "label": 1}] * N,
        r"the training inputs are texts, .*Texts\(texts, labels\)",
    ),
    "texts and too few labels": (
        Texts(["good", "bad", "ugly"], [0, 1]),
        r"have shapes \[\[3\], \[2\]\]: give one row per example",
    ),
    "another part": (
        {"train": PAIRS, "unsupervised": PAIRS},
        "unknown part of the data 'unsupervised': choose from train, test, validation",
    ),
    "no training set": ({"test": PAIRS}, "has no training set: give"),
    "weights by name": (
        (INPUTS, LABELS, "balanced"),
        "the training weights cannot be used .*'balanced'.: give one number above 0",
    ),
    "a weight of zero": (
        (INPUTS, LABELS, {0: 1.0, 1: 5.0, 2: 0.0}),
        "weights cannot be used .their shape is .21., or some are not above 0.: give",
    ),
    "bfloat16": (
        Split(INPUTS.astype(ml_dtypes.bfloat16), LABELS),
        "the training inputs are of type bfloat16: give",
    ),
    "masked": (
        Split(INPUTS, np.ma.array(LABELS, mask=LABELS > 1)),
        "labels are masked in part: give all of them",
    ),
    "too few weights": (
        Split(INPUTS, LABELS, WEIGHTS[:9]),
        r"have shapes .*\[9\]\]: give one row",
    ),
    "test labels": (
        {"train": (INPUTS, NAMES[LABELS]), "test": (INPUTS, ["pig"] * N)},
        "the test labels have a class that is none of the 3 .no .pig..: leave such",
    ),
}


class OneFile(MapStyle):
    """It seeks in an open file, and is read later, like an image of Pillow."""

    def __getitem__(self, index):
        self.place = index
        return self, LABELS[index]

    def __array__(self, dtype=None, copy=None):
        time.sleep(0.001)
        return INPUTS[self.place]


class Meeting(MapStyle):
    thread_safe = ImageFolder.thread_safe  # True
    threads = Barrier(1)

    def __getitem__(self, index):
        self.threads.wait(10)
        return super().__getitem__(index)


def test_one_thread_reads_at_a_time_unless_the_class_says_thread_safe():
    found = part(OneFile()).select(np.arange(N))
    np.testing.assert_array_equal(found.inputs, INPUTS)
    source = Meeting()
    examples = part(source)
    source.threads = Barrier(2)
    np.testing.assert_array_equal(examples.select(np.arange(2)).inputs, INPUTS[:2])


def read_two_epochs(data):
    batches = Batches(part(data), 8)
    return [list(batches.epoch(epoch)) for epoch in range(2)]


@pytest.mark.parametrize(("data", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(data, sentence):
    """Before training, or as an example is read."""
    with pytest.raises(UserError, match=sentence) as error:
        read_two_epochs(data() if isfunction(data) else data)
    assert "\n" not in str(error.value)


def test_data_sets_with_different_content_have_different_fingerprints():
    """Each number, type, shape and text counts."""
    arrays = Split(INPUTS, LABELS)
    texts = Texts(["a", "bc"], LABELS[:2])
    others = [
        DataSet(arrays, Split(INPUTS, LABELS[::-1].copy())),
        DataSet(arrays._replace(inputs=LABELS), arrays),
        DataSet(arrays._replace(inputs=INPUTS.reshape(N, 2, 3)), arrays),
        DataSet(texts, texts),
        DataSet(texts, texts._replace(texts=["ab", "c"])),
        DataSet(texts, texts._replace(texts=["a", "bc\udcff"])),
        make_data_set(DataSet(PAIRS)),
        make_data_set(DataSet(PAIRS[:20])),
        make_data_set(DataSet(one_changed(label=LABELS[8]))),
    ]
    assert len({fingerprint(data) for data in (DataSet(arrays, arrays), *others)}) == 10


def test_copies_of_a_data_set_have_its_fingerprint():
    arrays = Split(INPUTS, LABELS)
    copies = DataSet(*(jax.tree.map(np.copy, arrays) for _ in range(2)))
    assert fingerprint(copies) == fingerprint(DataSet(arrays, arrays))


@pytest.mark.parametrize(("row", "is_seen"), [(0, True), (1, False)])
def test_a_fingerprint_has_every_second_row_of_a_large_array(monkeypatch, row, is_seen):
    for name in ("LARGE_BYTES", "SAMPLE_BYTES"):
        monkeypatch.setattr(f"pmapdp.custom.arrays.{name}", INPUTS.nbytes // 2)
    before = fingerprint(DataSet(Split(INPUTS, LABELS)))
    assert before.endswith(", from one in 2 examples")
    changed = INPUTS.copy()
    changed[row] += 1
    after = fingerprint(DataSet(Split(changed, LABELS)))
    assert (after != before) == is_seen


def test_files_of_arrays(tmp_path):
    file = tmp_path / "points.npz"
    arrays = {
        "train_inputs": INPUTS,
        "train_labels": LABELS,
        "train_weights": WEIGHTS,
        "classes": NAMES,
    }
    np.savez(file, **arrays, validation_inputs=INPUTS, validation_labels=LABELS)
    data = load_npz(file)
    assert (data.test, data.classes) == (None, ("cat", "cow", "dog"))
    np.testing.assert_array_equal(data.train.weights, WEIGHTS)
