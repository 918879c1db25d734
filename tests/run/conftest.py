"""One finished run for all files of this folder."""

import shutil

import pytest
from points import run


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of a run of two epochs of five updates, and its outcome."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, run(workdir=str(folder), epochs=2)


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of that folder."""
    return shutil.copytree(finished[0], tmp_path / "run")
