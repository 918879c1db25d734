"""A finished run, for tests that spoil its folder."""

import dataclasses
import shutil

import pytest
from run_folders import JOB

from pmapdp.train import train


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(dataclasses.replace(JOB, workdir=str(folder)))
    return folder


@pytest.fixture
def folder(finished_run, tmp_path):
    """A copy of a finished run of three epochs of six updates."""
    return shutil.copytree(finished_run, tmp_path / "run")
