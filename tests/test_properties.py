"""Whatever comes from outside, the outcome is a result or one sentence with its status, soon, and nothing else changes.

Hypothesis draws the cases: 50 of each kind, and 500 with the marker `slow`, the same on every machine.
"""

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import resource
import shutil
from datetime import timedelta

import numpy as np
import pytest
from archives import npy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from trained import train_briefly

from pmapdp import cli, files
from pmapdp.config import Config, flag
from pmapdp.data.mnist import read_idx
from pmapdp.errors import UserError
from pmapdp.evaluate import __main__ as evaluate
from pmapdp.export import __main__ as export
from pmapdp.export.read import load_exported
from pmapdp.export.write import export_model
from pmapdp.files import write_file
from pmapdp.predict import __main__ as predict
from pmapdp.predict.inputs import read_examples, read_lines
from pmapdp.processes.options import ProcessesOptions
from pmapdp.recipes import RECIPES
from pmapdp.run.literal_path import LiteralPath
from pmapdp.run.trained import read_config
from pmapdp.run.workdir import claimed

CASES = pytest.mark.parametrize("cases", [50, pytest.param(500, marks=pytest.mark.slow)])
SECONDS = 5
MEGABYTES = 600  # above what the process has taken before


def hold(cases: int, check, **drawn: st.SearchStrategy) -> None:
    """Draw `cases` cases, give them to `check`, and look at the time of each and the memory of all."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    options = settings(
        max_examples=cases,
        deadline=timedelta(seconds=SECONDS),
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    options(given(**drawn)(check))()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024


def result_or_sentence(work) -> object | None:
    """What `work` returns, or None where it ends with status 2 and one line on standard error."""
    results = []
    error, output = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(output):
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
    st.sampled_from([*FLAGS, "--json", "--lines", "--help", "--no-progress", "--", "-", "-h", "--no-fresh", *RECIPES]),
    st.sampled_from(["pmap", "jit", "true", "3", "0", "-1", "1e999", "nan", "9" * 400, "", "3,7", "data=4", "gs://x"]),
    st.builds("{}={}".format, st.sampled_from(FLAGS), st.text(max_size=8)),
    st.builds(lambda name: name.replace("-", "_"), st.sampled_from(FLAGS)),
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=12),
)


@CASES
def test_flags(cases):
    def check(arguments):
        config = result_or_sentence(lambda: cli.parse_with_recipe(ProcessesOptions, arguments, None)[0])
        assert config is None or config == "help" or isinstance(config, Config)
        for command in (predict, evaluate, export):
            result_or_sentence(lambda: cli.parse(command.Options, arguments, None))  # noqa: B023

    hold(cases, check, arguments=st.lists(WORDS, max_size=8))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*vars(Config()), "x"]), inner),
    max_leaves=8,
)


@CASES
def test_settings_of_a_run(cases, tmp_path):
    """config.json with fields of any form, cut anywhere."""
    right = {"format": "pmapdp run 1", "config": dataclasses.asdict(Config()), "global_batch_size": 64}

    def check(changes, whole, place, cut):
        content = whole if place == 0 else right | (changes if place == 1 else {"config": right["config"] | changes})
        text = json.dumps(content).encode()
        (tmp_path / "config.json").write_bytes(text[: len(text) - cut])
        config = result_or_sentence(lambda: read_config(tmp_path))
        assert config is None or isinstance(config, Config)
        assert os.listdir(tmp_path) == ["config.json"]

    names = st.sampled_from([*right, *vars(Config()), "x"])
    hold(
        cases,
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

    places = st.integers(0, len(data) - 1) | st.integers(max(0, len(data) - 300), len(data) - 1)
    return st.builds(
        alter,
        st.lists(st.tuples(places, st.integers(0, 255)), max_size=3),
        st.just(0) | st.integers(0, len(data)),
        st.just(b"") | st.binary(max_size=20),
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The bytes of an exported model."""
    job, state = train_briefly(steps=0, model="convnet")
    path = tmp_path_factory.mktemp("exported") / "model.zip"
    export_model(job.task, state, path, examples=job.data.test, metadata={"labels": "0123456789"})
    return path.read_bytes()


@CASES
def test_exported_models(cases, exported, tmp_path):
    (tmp_path / "model.zip").write_bytes(exported)
    right = load_exported(tmp_path / "model.zip")

    def check(content):
        (tmp_path / "model.zip").write_bytes(content)
        found = result_or_sentence(lambda: load_exported(tmp_path / "model.zip"))
        if found is not None:
            assert found.metadata == right.metadata
            for name, array in right.arrays.items():
                np.testing.assert_array_equal(found.arrays[name], array)
        assert os.listdir(tmp_path) == ["model.zip"]

    hold(cases, check, content=altered(exported) | st.binary(max_size=200).map(lambda tail: b"PK" + tail))


def images() -> dict[str, bytes]:
    """A picture of 28 x 28 in every format that is read."""
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28)).astype(np.uint8)
    files = {"array": npy(pixels)}
    for kind in ("PNG", "JPEG"):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind)
        files[kind] = file.getvalue()
    return files


@CASES
@pytest.mark.parametrize("kind", ["array", "PNG", "JPEG"])
def test_images(cases, kind, tmp_path):
    content = images()[kind]

    def check(content):
        (tmp_path / "image").write_bytes(content)
        found = result_or_sentence(lambda: read_examples(tmp_path / "image", (28, 28, 1)))
        assert found is None or (found.shape, found.dtype) == ((1, 28, 28, 1), np.uint8)
        assert os.listdir(tmp_path) == ["image"]

    hold(cases, check, content=altered(content) | st.binary(max_size=200).map(lambda tail: content[:8] + tail))


@CASES
def test_lines(cases, tmp_path):
    def check(content):
        (tmp_path / "lines").write_bytes(content)
        found = result_or_sentence(lambda: read_lines(str(tmp_path / "lines")))
        assert found is None or (found and all(line.strip() and "\n" not in line for line in found))

    hold(
        cases,
        check,
        content=st.binary(max_size=50) | st.text(max_size=50).map(lambda text: text.encode("utf-8", "replace")),
    )


@CASES
def test_idx_files(cases, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 28, 28)).astype(np.uint8)
    packed = gzip.compress(bytes([0, 0, 8, 3]) + np.array(pixels.shape, ">i4").tobytes() + pixels.tobytes())
    checksum = hashlib.md5(packed, usedforsecurity=False).hexdigest()

    def check(content):
        (tmp_path / "idx.gz").write_bytes(content)
        found = result_or_sentence(lambda: read_idx(tmp_path / "idx.gz", checksum))
        assert found is None or np.array_equal(found, pixels)

    hold(cases, check, content=altered(packed) | st.binary(max_size=100))


def test_a_broken_promise_is_found():
    """The check of these tests, tested."""
    with pytest.raises(AssertionError):
        result_or_sentence(lambda: 1 / 0)
    assert result_or_sentence(lambda: (_ for _ in ()).throw(UserError("x"))) is None


PARTS = st.sampled_from(
    [
        *("run", "checkpoints", "5", "_METADATA", "config.json", "metrics.jsonl", "log.txt", "events.out.x", "net.py"),
        *("data.npz", "link", "linked", "..", ".", "", "new", "report.json", "mine", "\udcff", "a\\b", "*", "[n]et.py"),
    ]
)
NAMES = st.lists(PARTS | st.text(max_size=6), min_size=1, max_size=5).map("/".join)


@CASES
def test_outputs(cases, tmp_path):
    """Whatever a file is called, what a command reads and what a run has keep every byte."""
    kept = {
        "net.py": b"x = 1",
        "data.npz": b"PK\x03\x04",
        "run/config.json": b'{"format": "pmapdp run 1"}',
        "run/metrics.jsonl": b'{"event": "start"}\n',
        "run/checkpoints/5/_METADATA": b"{}",
    }
    for name, content in kept.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    os.symlink("net.py", tmp_path / "link")
    os.symlink("run/checkpoints", tmp_path / "linked")

    def check(name, kind):
        def write():
            path = files.check_output("--json", f"{tmp_path}/{name}", kind, [str(tmp_path / "data.npz")])
            assert path.is_relative_to(tmp_path) or ".." in name
            if path.is_relative_to(tmp_path):  # not where the name leads out of the test's folder
                write_file(path, b"new")
                assert path.read_bytes() == b"new"
                path.unlink()

        result_or_sentence(write)
        assert {name: (tmp_path / name).read_bytes() for name in kept} == kept

    hold(cases, check, name=NAMES, kind=st.sampled_from([files.JSON, files.LINES, files.HTML, files.MODEL]))


@CASES
def test_workdirs(cases, tmp_path):
    """A folder of any name holds its run, at that very place, or is refused and nothing is made."""

    def check(name):
        folder = tmp_path / "place" / name.replace("/", "").replace("\0", "")[:60]
        shutil.rmtree(tmp_path / "place", ignore_errors=True)

        def claim():
            with claimed(folder, Config(), 64):
                assert read_config(folder).global_batch_size == 64
                assert [path.name for path in LiteralPath(folder).glob("conf*")] == ["config.json"]
                return True

        if folder.name in ("place", "..", "."):
            return
        if result_or_sentence(claim):
            assert os.listdir(tmp_path / "place") == [folder.name]
        else:
            assert not (tmp_path / "place").exists()

    hold(
        cases, check, name=st.text(alphabet=st.sampled_from("[]{}*?!~$%#&;'\"\\ \udcffab\ngs:")) | st.text(max_size=20)
    )
