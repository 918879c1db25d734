"""Arrays of every type for inputs and labels: used with the numbers that they hold, or refused in a sentence."""

import itertools

import jax
import ml_dtypes
import numpy as np
import pytest

from pmapdp.custom.arrays import check_data
from pmapdp.custom.content import fingerprint
from pmapdp.custom.data_sets import as_data_set
from pmapdp.data.dataset import DataSet, Split, Texts
from pmapdp.errors import UserError

INPUTS = np.arange(12).reshape(6, 2)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def checked(inputs=INPUTS, labels=LABELS, classifies=False) -> Split:
    """The training split of a data set whose both parts are these arrays."""
    data = as_data_set(DataSet(Split(inputs, labels), Split(inputs, labels)))
    return check_data(data, classifies=classifies).train


INTEGERS = [f"{order}{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8) for order in "<>"]
FLOATS = [f"{order}f{size}" for size in (2, 4, 8) for order in "<>"] + ["longdouble"]


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
@pytest.mark.parametrize("what", ["inputs", "labels"])
def test_numbers_stay_what_they_are(dtype, what):
    """In a type of JAX without 64 bits, and in this machine's byte order."""
    given = (INPUTS if what == "inputs" else LABELS).astype(dtype)
    found = getattr(checked(**{what: given}), what)
    np.testing.assert_array_equal(found, given)
    assert found.dtype.isnative
    assert found.dtype.itemsize <= 4
    if what == "labels" and np.dtype(dtype).kind in "biu":
        assert found.dtype == np.int32


@pytest.mark.parametrize("classifies", [True, False])
@pytest.mark.parametrize("what", ["inputs", "labels"])
@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        *(("i8", number) for number in (2**31, 2**32, 2**32 + 1, 2**40, -(2**31) - 1, -(2**32), 2**63 - 1, -(2**63))),
        *(("u8", number) for number in (2**32, 2**32 + 1, 2**63, 2**64 - 1)),
        *(("f8", number) for number in (1e39, -1e300, 1.7e308)),
        ("longdouble", np.longdouble("1e4000")),
    ],
    ids=str,
)
def test_a_number_that_does_not_fit_is_refused(what, dtype, number, classifies):
    array = (INPUTS if what == "inputs" else LABELS).astype(dtype)
    array[0] = number
    with pytest.raises(UserError, match=f"the training {what} .* are from .* which do not fit in .*32"):
        checked(**{what: array}, classifies=classifies)


def test_labels_of_32_bits_without_a_sign_are_refused_where_they_do_not_fit():
    with pytest.raises(UserError, match="which do not fit in int32"):
        checked(labels=np.array([0, 1, 2, 0, 1, 2**31], np.uint32))
    assert checked(inputs=np.full((6, 2), 2**32 - 1, np.uint32)).inputs.dtype == np.uint32


class Failing:
    """An object whose conversion to an array fails."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("first line\nsecond line")


def refused_arrays() -> dict[str, object]:
    """What is no array of numbers, six examples of each."""
    six = np.arange(6)
    return {
        "complex": six + 1j,
        "object": np.array([None] * 6),
        "text": np.array(["a"] * 6),
        "bytes": np.array([b"a"] * 6),
        "datetime": six.astype("M8[s]"),
        "timedelta": six.astype("m8[s]"),
        "void": six.astype("V8"),
        "record": np.zeros(6, [("a", "f4")]),
        "bfloat16": six.astype(ml_dtypes.bfloat16),
        "masked": np.ma.array(six, mask=[1, 0, 0, 0, 0, 0]),
        "nan": np.array([np.nan] * 6),
        "infinity": np.array([np.inf] * 6),
        "ragged": [[1], [1, 2]] * 3,
        "failing": Failing(),
        "None": None,
        "dictionary": {"a": 1},
        "generator": (each for each in range(6)),
        "one number": 3,
        "nothing": np.zeros((0, 2)),
    }


# Labels that are texts are names of classes.
@pytest.mark.parametrize(
    ("what", "name"), sorted({*itertools.product(["inputs", "labels"], refused_arrays())} - {("labels", "text")})
)
def test_what_is_no_array_of_numbers_is_refused(name, what):
    with pytest.raises(UserError, match=rf"the training (inputs|{what}) .*(give|replace)"):
        checked(**{what: refused_arrays()[name]})


@pytest.mark.parametrize(
    "weights", [np.zeros(6), np.ones(5), np.ones((6, 1)), [], np.zeros((0, 3)), -np.ones(6), [np.inf] * 6]
)
def test_weights_that_are_not_one_above_0_for_each_example_are_refused(weights):
    with pytest.raises(UserError, match=r"the training weights .*(above 0|finite)"):
        check_data(DataSet(Split(INPUTS, LABELS, weights)))


def test_inputs_whose_names_are_not_all_texts_are_refused():
    with pytest.raises(UserError, match=r"the training inputs have the names \['a', 1\]"):
        checked({"a": INPUTS, 1: INPUTS})


@pytest.mark.parametrize(
    "change",
    [
        lambda array: array.tolist(),
        lambda array: array[::-1],
        lambda array: np.asfortranarray(array),
        lambda array: np.ma.array(array),
        lambda array: np.broadcast_to(array, array.shape),
        lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    ],
)
def test_arrays_of_every_layout(change):
    found = checked(change(INPUTS), change(LABELS))
    np.testing.assert_array_equal(found.inputs, np.asarray(change(INPUTS)))
    np.testing.assert_array_equal(found.labels, np.asarray(change(LABELS)))


@pytest.mark.parametrize("classes", [5, "ab", [1, 2], None, {"a"}])
def test_classes_that_are_no_names_are_refused(classes):
    with pytest.raises(UserError, match=r"classes=.* are no names"):
        check_data(DataSet(Split(INPUTS, LABELS), Split(INPUTS, LABELS), classes))


def test_the_content_of_a_data_set_is_told_apart(monkeypatch):
    """By each number, type, shape and text, and the name of the augmentation; a large array by some of its examples."""
    part, texts = Split(INPUTS, LABELS), Texts(["a", "bc"], LABELS[:2])
    others = [
        DataSet(part, Split(INPUTS, LABELS[::-1])),
        DataSet(part._replace(inputs=INPUTS.astype(np.int32)), part),
        DataSet(part._replace(inputs=INPUTS.reshape(6, 1, 2)), part),
        DataSet(texts, texts),
        DataSet(texts, texts._replace(texts=["ab", "c"])),
        DataSet(texts, texts._replace(texts=["a", "bc\udcff"])),
    ]
    others += [DataSet(part, part, augment=augment) for augment in (np.flip, np.roll)]
    assert len({fingerprint(each) for each in (DataSet(part, part), *others)}) == 9
    assert fingerprint(DataSet(part, part)) == fingerprint(DataSet(*(jax.tree.map(np.copy, part) for _ in range(2))))
    for name in ("LARGE", "SAMPLE"):
        monkeypatch.setattr(f"pmapdp.custom.content.{name}", INPUTS.nbytes // 2)
    assert fingerprint(DataSet(part, part)).endswith(", from one in 2 examples")
    for row, told in ((0, True), (1, False)):
        changed = INPUTS.copy()
        changed[row] += 1
        other = DataSet(part._replace(inputs=changed), part)
        assert (fingerprint(other) != fingerprint(DataSet(part, part))) == told
