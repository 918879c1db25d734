"""Whatever stands at a name, the outcome is the file's content, or one sentence and nothing lost."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from pmapdp.errors import UserError, in_one_line
from pmapdp.files import (
    HTML,
    JSON,
    LINES,
    MODEL,
    check_output,
    load_from_file,
    read_file,
    read_json,
    require_writable,
    write_file,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with all that can be at a name besides a regular file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo("pipe")
    os.symlink("loop", "loop")
    os.symlink("nothing", "dangling")
    (tmp_path / "file").write_bytes(b"before")
    return tmp_path


NOT_REGULAR = "it is a folder, a named pipe or a device"
WRONG = {
    "folder": NOT_REGULAR,
    "pipe": NOT_REGULAR,
    "/dev/null": NOT_REGULAR,
    "loop": "Too many levels of symbolic links",
    "file/below": "Not a directory",
    "missing/file": "No such file or directory",
    "x" * 300: "File name too long",
    "zero\0byte": "",  # each Python says it in other words
    "": "",
}


@pytest.mark.parametrize("name", WRONG)
def test_only_regular_files_are_read(folder, name):
    with pytest.raises(UserError) as caught:
        read_file(name, advice="name another")
    assert str(caught.value).startswith(f"{in_one_line(name) or repr('')} cannot be read ({WRONG[name]}")
    assert str(caught.value).endswith("): name another")


@pytest.mark.parametrize("name", [*WRONG, ".", "folder/"])
@pytest.mark.parametrize("write", [lambda name: write_file(name, b"after"), require_writable])
def test_only_regular_files_are_written(folder, name, write):
    before = {path: path.lstat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(UserError, match=r"cannot be written \(.*\): name a file"):
        write(name)
    assert {path: path.lstat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_file_is_replaced_whole(folder):
    os.chmod("file", 0o640)
    write_file("file", "ä\n")
    assert read_file("file") == "ä\n".encode()
    assert os.stat("file").st_mode & 0o777 == 0o640
    write_file("dangling", b"new")
    assert os.readlink("dangling") == "nothing"
    assert read_file("nothing") == b"new"
    assert sorted(os.listdir()) == ["dangling", "file", "folder", "loop", "nothing", "pipe"]


def test_a_failed_write_leaves_the_file_before(folder, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    before = sorted(os.listdir())
    with pytest.raises(UserError, match=r"file cannot be written \(No space left on device\)"):
        write_file("file", b"after")
    assert read_file("file") == b"before"
    assert sorted(os.listdir()) == before


def test_a_file_that_is_too_large(folder):
    subprocess.run(["truncate", "-s", "1T", "hole"], check=True)
    with pytest.raises(UserError, match=r"hole cannot be read \(it has 1,099,511,627,776 bytes, more than"):
        read_file("hole")


@pytest.mark.parametrize("text", ["", "[" * 100_000, "\udcff", "9" * 5000])
def test_what_is_not_json(folder, text):
    (folder / "file").write_text(text, errors="surrogateescape")
    with pytest.raises(UserError, match=r"^file cannot be read \(.*\): start anew$"):
        read_json("file", advice="start anew")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\0", "code.py:f: code.py cannot be read at line 1 ("),
        ("\nx = = 5", "code.py:f: code.py cannot be read at line 2 (invalid syntax"),
        ("x = 5", "code.py:f: code.py has no 'f'"),
        (None, "code.py:f: there is no file code.py of Python: name one, for example my_file.py:f"),
    ],
)
def test_a_file_of_python_that_cannot_be_used(folder, text, said):
    if text is not None:
        (folder / "code.py").write_text(text)
    with pytest.raises(UserError) as caught:
        load_from_file("code.py:f", "code.py:f")
    assert str(caught.value).startswith(said)


CONTENTS = {
    JSON: b'{"a": 1}',
    LINES: b'{"event": "start"}\n',
    HTML: b"<!DOCTYPE html><p>",
    MODEL: b"PK\x03\x04" + 26 * b"." + b"arrays/",
}
OTHERS = {b'{\n  "format": "pmapdp run 2"', b"x = 1\n", b"PK\x03\x04" + 26 * b"." + b"train_inputs.npy", b"Dear"}


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_file_of_another_kind_is_not_overwritten(folder, kind):
    for content in {*CONTENTS.values(), *OTHERS, b""}:
        (folder / "file").write_bytes(content)
        if content in (CONTENTS[kind], b""):
            assert check_output("--json", "file", kind) == folder / "file"
        else:
            with pytest.raises(UserError, match="--json file is a file of another kind, which would be lost: name"):
                check_output("--json", "file", kind)
        assert Path("file").read_bytes() == content


def test_an_input_is_not_overwritten(folder):
    os.symlink("data.json", "link")
    (folder / "data.json").write_bytes(b"{}")
    assert check_output("--json", None, JSON) is None
    assert check_output("--json", "new [1].json", JSON, ["data.json", None]) == folder / "new [1].json"
    for name in ("data.json", "./data.json", "link"):
        with pytest.raises(UserError, match=f"--json {name} is also a file that this command reads or writes: name"):
            check_output("--json", name, JSON, ["data.json", None])
