"""Whatever a file or a command line holds, the outcome is what was written or one
sentence, soon, and nothing changes.

Hypothesis draws 25 cases of each kind, the same on every machine.
"""

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import resource
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from trained import train_briefly

from pmapdp import cli
from pmapdp.config import Config, flag
from pmapdp.custom import images as custom_images
from pmapdp.data.mnist import read_idx
from pmapdp.distributed import ProcessesOptions
from pmapdp.export import export_model, load_exported
from pmapdp.files import open_file
from pmapdp.flags import parse_with_recipe
from pmapdp.recipes import RECIPES
from pmapdp.run.workdir import read_config
from pmapdp.train import COMMAND

MEGABYTES = 600  # above what the process has taken before


def hold(check, **drawn):
    """Draw cases, give them to `check`, and look at the time of each and the memory of
    all.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    options = {
        "derandomize": True,
        "database": None,
        "suppress_health_check": list(HealthCheck),
    }
    settings(max_examples=25, deadline=timedelta(seconds=5), **options)(
        given(**drawn)(check)
    )()
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024
    )


def result_or_sentence(work):
    """Return the result of `work`, or None if it ends with status 2 and one line on
    standard error.
    """
    results = []
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        status = cli.run(lambda arguments: results.append(work()), [])
    if status == 0:
        assert error.getvalue() == ""
        return results[0] if results else "help"
    assert status == 2, error.getvalue()
    assert error.getvalue().startswith("error: ")
    assert error.getvalue().count("\n") == 1
    return None


FLAGS = [flag(field.name) for field in dataclasses.fields(Config)]
WORDS = st.one_of(
    st.sampled_from(
        [
            *FLAGS,
            "--json",
            "--lines",
            "--help",
            "--no-progress",
            "--",
            "-",
            "-h",
            "--no-fresh",
            *RECIPES,
        ]
    ),
    st.sampled_from(
        [
            "pmap",
            "jit",
            "true",
            "3",
            "0",
            "-1",
            "1e999",
            "nan",
            "9" * 400,
            "",
            "3,7",
            "data=4",
            "gs://x",
        ]
    ),
    st.builds("{}={}".format, st.sampled_from(FLAGS), st.text(max_size=8)),
    st.builds(lambda name: name.replace("-", "_"), st.sampled_from(FLAGS)),
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=12),
)


def test_flags():
    def check(arguments):
        config = result_or_sentence(
            lambda: parse_with_recipe(COMMAND, ProcessesOptions, arguments)[0]
        )
        assert config is None or config == "help" or isinstance(config, Config)

    hold(check, arguments=st.lists(WORDS, max_size=8))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*vars(Config()), "x"]), inner)
    ),
    max_leaves=8,
)


def test_settings_of_a_run(tmp_path):
    """config.json with fields of any form, cut anywhere."""
    right = {"format": "pmapdp run 2", "config": dataclasses.asdict(Config())}

    def check(changes, whole, place, cut):
        if place == 0:
            content = whole
        elif place == 1:
            content = right | changes
        else:
            content = right | {"config": right["config"] | changes}
        text = json.dumps(content).encode()
        (tmp_path / "config.json").write_bytes(text[: len(text) - cut])
        config = result_or_sentence(lambda: read_config(tmp_path))
        assert config is None or isinstance(config, Config)
        assert os.listdir(tmp_path) == ["config.json"]

    names = st.sampled_from([*right, *vars(Config()), "x"])
    hold(
        check,
        changes=st.dictionaries(names, JSON, max_size=3),
        whole=JSON,
        place=st.integers(0, 2),
        cut=st.one_of(st.just(0), st.integers(0, 40)),
    )


def altered(data: bytes) -> st.SearchStrategy[bytes]:
    """`data` with some bytes replaced, cut short, or with others behind it."""

    def alter(edits, cut, tail):
        changed = bytearray(data)
        for position, value in edits:
            changed[position] = value
        return bytes(changed[: len(changed) - cut]) + tail

    places = st.integers(0, len(data) - 1) | st.integers(
        max(0, len(data) - 300), len(data) - 1
    )
    return st.builds(
        alter,
        st.lists(st.tuples(places, st.integers(0, 255)), max_size=3),
        st.just(0) | st.integers(0, len(data)),
        st.just(b"") | st.binary(max_size=20),
    )


RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (28, 28)).astype(np.uint8)
DIGITS = RANDOM.integers(0, 256, (3, 28, 28)).astype(np.uint8)


def picture():
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG")
    return file.getvalue()


def exported_model():
    job, state = train_briefly(steps=0, model="convnet")
    export_model(
        job.task,
        state,
        "model.zip",
        examples=job.batches["test"].split,
        metadata={"labels": "0123456789"},
    )
    with open("model.zip", "rb") as file:
        return file.read()


def require_same_model(found, right):
    assert found.metadata == right.metadata
    assert found.model.mlir_module_serialized == right.model.mlir_module_serialized
    for name, array in right.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)


def require_image(found, right):
    assert (found.shape, found.dtype) == ((1, 28, 28, 1), np.uint8)


def read_digits(path):
    return read_idx(path, hashlib.md5(idx(), usedforsecurity=False).hexdigest())


def idx():
    return gzip.compress(
        bytes([0, 0, 8, 3])
        + np.array(DIGITS.shape, ">i4").tobytes()
        + DIGITS.tobytes(),
        mtime=0,
    )


def read_image(path):
    with open_file(path, advice="name another") as file:
        return custom_images.read_image(file, "L")[np.newaxis]


# What makes a right file, what reads it, and what must be so of anything that was read
# from another.
FILES = {
    "exported model": (exported_model, load_exported, require_same_model),
    "PNG": (picture, read_image, require_image),
    "idx": (idx, read_digits, np.testing.assert_array_equal),
}


@pytest.mark.parametrize("kind", FILES)
def test_files(kind, tmp_path, monkeypatch):
    """Altered, cut or followed by others, or no such file at all."""
    monkeypatch.chdir(tmp_path)
    make, read, require = FILES[kind]
    content = make()
    path = tmp_path / ("model.zip" if kind == "exported model" else "file")
    path.write_bytes(content)
    right = read(str(path))

    def check(content):
        path.write_bytes(content)
        found = result_or_sentence(lambda: read(str(path)))
        if found is not None:
            require(found, right)
        assert os.listdir(tmp_path) == [path.name]

    others = st.binary(max_size=200)
    hold(
        check,
        content=altered(content) | others | others.map(lambda tail: content[:8] + tail),
    )
