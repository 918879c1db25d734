"""Promise 6: no data loss, no silent wrong number, no hang, no code from a data file,
no write outside the folder.
"""

import contextlib
import json
import os
import shutil
import stat
import threading

import entry
import forks
import jax
import numpy as np
import pytest
import small_job
from launch import python

LINE = f"{small_job.NET}:Line"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished run, and its result."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, small_job.train(workdir=str(folder))


@pytest.fixture
def folder(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "run")


def refuse(folder, **settings):
    """The sentence with which a folder is refused; not a byte in it has changed."""
    before = small_job.contents(folder)
    with pytest.raises(entry.user_error()) as caught:
        small_job.train(workdir=str(folder), **settings)
    assert small_job.contents(folder) == before
    return str(caught.value)


# No data loss


def test_a_run_that_does_not_fit_its_folder_changes_nothing(folder):
    assert "seed" in refuse(folder, seed=7)
    assert "optimizer" in refuse(folder, optimizer="sgd")


@pytest.mark.parametrize("name", ["checkpoints/100/x", "metrics.jsonl", "config.json"])
def test_a_folder_of_others_is_left_as_it_is(tmp_path, name):
    (tmp_path / "mine" / name).parent.mkdir(parents=True)
    (tmp_path / "mine" / name).write_text("mine")
    assert "mine" in refuse(tmp_path / "mine")


def test_a_checkpoint_that_somebody_set_aside_stays_and_stops_nothing(finished, folder):
    """`mv 12 12.bak`, to go on from the one before."""
    (folder / "checkpoints" / "12").rename(folder / "checkpoints" / "12.bak")
    before = small_job.contents(folder / "checkpoints" / "12.bak")
    found = small_job.train(workdir=str(folder))
    jax.tree.map(np.testing.assert_array_equal, found.state, finished[1].state)
    assert small_job.contents(folder / "checkpoints" / "12.bak") == before


def test_two_runs_cannot_use_one_folder(folder, tmp_path):
    flags = small_job.flags(
        tmp_path, model=LINE, workdir=tmp_path / "busy", epochs=10**6
    )
    with forks.start("train", flags, tmp_path / "output") as process:
        while not (tmp_path / "busy" / "checkpoints").exists():
            assert process.is_alive(), (tmp_path / "output").read_text()
        done = entry.run_command("train", *flags)
        process.kill()
    assert done.status == 2
    assert str(process.pid) in done.err


@pytest.mark.parametrize("command", ["export", "train"])
def test_no_file_of_yours_is_overwritten(finished, tmp_path, command):
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    if command == "export":
        flags = small_job.flags(tmp_path, model=LINE, workdir=tmp_path / "run", steps=1)
        assert entry.run_command("train", *flags).status == 0
        done = entry.run_command("export", tmp_path / "run", mine)
        assert "mine.txt" in done.err
    else:
        data = small_job.write_data(tmp_path)
        before = data.read_bytes()
        done = entry.run_command(
            "train",
            *small_job.flags(tmp_path, model=LINE),
            "--steps",
            1,
            "--metrics-file",
            data,
        )
        assert data.read_bytes() == before
    assert done.status == 2
    assert mine.read_text() == "mine"


def test_half_a_line_that_a_kill_left_does_not_spoil_the_next(folder):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"event": "ep')
    small_job.train(workdir=str(folder), epochs=4)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    assert [line["epoch"] for line in whole if line["event"] == "epoch"] == [1, 2, 3, 4]


# No silent wrong number


def files_of(checkpoint):
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
@pytest.mark.parametrize("which", ["largest", "progress"])
def test_a_damaged_checkpoint_is_never_taken_for_whole(finished, folder, which, how):
    """The run stops with a sentence and leaves it, or goes on from an older one to the
    same bits.
    """
    checkpoint = folder / "checkpoints" / "12"
    files = files_of(checkpoint)
    path = max(files, key=lambda path: path.stat().st_size)
    if which == "progress":
        path = next(
            path
            for path in files
            if path.parent.name != "d" and b"loss" in path.read_bytes()
        )
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with contextlib.suppress(entry.user_error()):
        found = small_job.train(workdir=str(folder))
        jax.tree.map(np.testing.assert_array_equal, found.state, finished[1].state)
    assert (folder / "checkpoints" / "9").is_dir()


def test_data_of_the_same_name_with_other_numbers_are_refused(folder):
    other = entry.data_set(small_job.points(70, 5), small_job.TEST)
    assert "data" in refuse(folder, data=other, epochs=4)


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_its_last_checkpoint(
    tmp_path,
):
    """The state in every checkpoint is finite."""
    flags = small_job.flags(
        tmp_path,
        workdir=tmp_path / "run",
        learning_rate=1e30,
        optimizer="sgd",
        checkpoint_every=1,
    )
    done = entry.run_command("train", *flags)
    assert done.status == 3
    assert done.err.count("\n") == 1
    for step in entry.checkpoint_steps(tmp_path / "run"):
        for array in entry.arrays_on_disk(tmp_path / "run", step).values():
            assert np.isfinite(array).all()


# No hang

OF_PICTURES = [
    "--model",
    f"{small_job.NET}:OfPictures",
    "--global-batch-size",
    8,
    "--epochs",
    1,
    "--dataset",
]


@pytest.mark.parametrize("kind", ["dataset", "metrics-file", "picture", "config"])
def test_a_named_pipe_stops_nothing(tmp_path, kind):
    flags = small_job.flags(tmp_path, model=LINE, workdir=tmp_path / "run", epochs=1)
    pipe = {
        "dataset": "pipe.npz",
        "metrics-file": "pipe",
        "picture": "photos/cat/x.png",
        "config": "run/config.json",
    }
    pipe = tmp_path / pipe[kind]
    pipe.parent.mkdir(parents=True, exist_ok=True)
    if kind == "picture":
        pictures(tmp_path / "photos")
    os.mkfifo(pipe)
    extra = {"picture": [*OF_PICTURES, tmp_path / "photos"], "config": []}.get(
        kind, [f"--{kind}", pipe]
    )
    with forks.start("train", [*flags, *extra], tmp_path / "output") as process:
        killer = threading.Timer(300, process.kill)
        killer.start()
        process.join()
        killer.cancel()
    output = (tmp_path / "output").read_text()
    assert process.exitcode == 2, output
    assert pipe.name in output


# No code from a data file


class Writes:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("name", ["train_inputs", "classes", "unknown"])
def test_a_pickle_in_a_data_file_is_not_run(tmp_path, name):
    flags = small_job.flags(tmp_path, model=LINE, steps=1, epochs=1)
    flags = [str(text) for text in flags if text not in ("--checkpoint-every", 3)]
    with np.load(tmp_path / "data.npz") as file:
        arrays = dict(file)
    arrays[name] = np.array([Writes(tmp_path / "ran")], dtype=object)
    np.savez(tmp_path / "data.npz", **arrays)
    done = entry.run_command("train", *flags)
    assert done.status == 2
    assert not (tmp_path / "ran").exists()


def pictures(folder):
    from PIL import Image

    for label, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(12):
            Image.new("RGB", (8, 8), (number, 99 * label, 9)).save(
                folder / name / f"{number}.png"
            )


def test_a_picture_starts_no_other_program(tmp_path, monkeypatch):
    """A `.png` that is PostScript would make Pillow start Ghostscript on it."""
    pictures(tmp_path / "photos")
    text = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n"
    text += "showpage\n%%EOF\n"
    (tmp_path / "photos" / "cat" / "x.png").write_text(text)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "gs"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exit 0\ntouch {tmp_path}/ran\nexit 1\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    done = entry.run_command(
        "train", *OF_PICTURES, tmp_path / "photos", "--no-compile-cache"
    )
    assert done.status == 2
    assert "x.png" in done.err
    assert not (tmp_path / "ran").exists()


# No write outside the named folder


def test_a_run_writes_in_its_folder_alone(tmp_path, monkeypatch):
    """Neither in the current folder nor at home, with the cache of compiled programs
    off.
    """
    home = tmp_path / "home"
    here = tmp_path / "here"
    home.mkdir()
    here.mkdir()
    flags = small_job.flags(tmp_path, model=LINE, workdir=tmp_path / "run", epochs=1)
    before = small_job.contents(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    assert entry.run_command("train", *flags).status == 0
    after = small_job.contents(tmp_path)
    assert {
        name: content for name, content in after.items() if name.split("/")[0] != "run"
    } == before


# Linux and macOS

LINUX_ALONE = (
    *(
        "posix_fallocate",
        "posix_fadvise",
        "sched_getaffinity",
        "sched_setaffinity",
        "memfd_create",
        "copy_file_range",
    ),
    *(
        "splice",
        "eventfd",
        "pidfd_open",
        "getrandom",
        "fdatasync",
        "getxattr",
        "setxattr",
        "listxattr",
        "pipe2",
    ),
    *("O_TMPFILE", "O_PATH", "O_DIRECT"),
)
WITHOUT = f"""
import os, sys
os.process_cpu_count = os.cpu_count  # as on macOS, from Python 3.13 on
for name in {LINUX_ALONE}:
    if hasattr(os, name):
        delattr(os, name)
import entry
done = entry.run_command("train", *sys.argv[1:])
print(done.out, done.err)
sys.exit(done.status)
"""


@pytest.mark.parametrize("anew", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_with_a_folder_needs_nothing_that_linux_alone_has(
    tmp_path, monkeypatch, anew
):
    """On macOS these functions of `os` do not exist.

    `anew` also while everything is imported.
    """
    flags = small_job.flags(tmp_path, model=LINE, workdir=tmp_path / "run")
    if anew:
        # Compiled in the other case.
        done = python("-c", WITHOUT, *flags, env={"XLA_FLAGS": os.environ["XLA_FLAGS"]})
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        # As on macOS.
        monkeypatch.setattr(os, "process_cpu_count", os.cpu_count, raising=False)
        for name in filter(
            str.islower, LINUX_ALONE
        ):  # Python's own modules have looked for the others
            monkeypatch.delattr(os, name, raising=False)
        assert entry.run_command("train", *flags).status == 0
    assert entry.checkpoint_steps(tmp_path / "run")[-1] == 12
