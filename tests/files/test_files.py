"""One way in and one way out for files: whatever stands at a name, the outcome is the content or one sentence."""

import errno
import os
import socket
import subprocess

import pytest

from pmapdp.command.ending import run_command
from pmapdp.errors import UserError, in_one_line
from pmapdp.files.python_files import from_python_file
from pmapdp.files.reading import read_file, read_json
from pmapdp.files.writing import require_writable, write_file


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with everything that can stand at a name beside a regular file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo("pipe")
    os.symlink("loop", "loop")
    os.symlink("nothing", "dangling")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    (tmp_path / "file").write_bytes(b"before")
    return tmp_path


NOT_REGULAR = "it is a folder, a named pipe or a device"
WRONG = {
    "folder": NOT_REGULAR,
    "pipe": NOT_REGULAR,
    "loop": "Too many levels of symbolic links",
    "socket": "No such device or address",
    "/dev/full": NOT_REGULAR,
    "file/below": "Not a directory",
    "missing/file": "No such file or directory",
    "x" * 300: "File name too long",
    "zero\0byte": "",  # each Python says it in other words
}


@pytest.mark.parametrize("name", [*WRONG, "", "."])
def test_what_cannot_be_read(place, name):
    why = WRONG.get(name, "")
    with pytest.raises(UserError) as caught:
        read_file(name, advice="name another")
    assert str(caught.value).startswith(f"{in_one_line(name) or repr('')} cannot be read ({why}")
    assert str(caught.value).endswith("): name another")


@pytest.mark.parametrize("name", [*WRONG, "", ".", "..", "/", "folder/"])
@pytest.mark.parametrize("write", [lambda name: write_file(name, b"after"), require_writable])
def test_what_cannot_be_written(place, name, write):
    before = {path: (path.lstat().st_mode, path.lstat().st_mtime_ns) for path in place.iterdir()}
    with pytest.raises(UserError, match=r"cannot be written \(.*\): name a file"):
        write(name)
    assert {path: (path.lstat().st_mode, path.lstat().st_mtime_ns) for path in place.iterdir()} == before


def test_a_file_is_replaced_whole(place):
    os.chmod("file", 0o640)
    write_file("file", "ä\n")
    assert read_file("file") == "ä\n".encode()
    assert os.stat("file").st_mode & 0o777 == 0o640
    write_file("dangling", b"new")
    assert os.readlink("dangling") == "nothing"
    assert read_file("nothing") == b"new"
    assert sorted(os.listdir()) == ["dangling", "file", "folder", "loop", "nothing", "pipe", "socket"]


def test_a_link_at_another_temporary_name_is_not_followed(place):
    os.symlink("file", "out.json.tmp")
    write_file("out.json", "{}")
    assert read_file("file") == b"before"


def test_a_failed_write_leaves_the_file_before(place, monkeypatch):
    def disk_is_full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", disk_is_full)
    before = sorted(os.listdir())
    with pytest.raises(UserError, match=r"file cannot be written \(No space left on device\)"):
        write_file("file", b"after")
    assert read_file("file") == b"before"
    assert sorted(os.listdir()) == before


def test_too_large(place):
    subprocess.run(["truncate", "-s", "1T", "hole"], check=True)
    with pytest.raises(UserError, match=r"hole cannot be read \(it has 1,099,511,627,776 bytes, more than"):
        read_file("hole")


@pytest.mark.parametrize("text", ["", "[" * 100_000, "\udcff", "9" * 5000])
def test_what_is_no_json(place, text):
    (place / "file").write_text(text, errors="surrogateescape")
    with pytest.raises(UserError, match=r"^file cannot be read \(.*\): start anew$"):
        read_json("file", advice="start anew")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\0", "code.py cannot be read at line 1 ("),
        ("\nx = = 5", "code.py cannot be read at line 2 (invalid syntax"),
        ("x = 5", "code.py has no 'f'"),
    ],
)
def test_a_file_of_python_that_cannot_be_used(place, text, said):
    (place / "code.py").write_text(text)
    with pytest.raises(UserError) as caught:
        from_python_file("code.py:f", "code.py:f")
    assert str(caught.value).startswith(f"code.py:f: {said}")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(0)", "it ends Python"),
        ("raise GeneratorExit", "GeneratorExit: GeneratorExit"),
        ("class E(BaseException): __str__ = None\nraise E", "E: E"),
        ("class E(Exception):\n  def __str__(self): raise self\nraise E", "E: E"),
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("import json; json.loads('')", "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
    ],
)
@pytest.mark.parametrize("when", ["at import", "when called"])
def test_an_error_in_a_file_of_python_is_told_with_its_line(place, capsys, code, said, when):
    """Whatever is raised, and whoever notices it: also where it ends Python in good order."""
    body = code if when == "at import" else "def f():\n  " + code.replace("\n", "\n  ") + "\n"
    (place / "code.py").write_text(body + "\nf = print\n" * (when == "at import"))
    assert run_command(lambda _: from_python_file("code.py:f", "code.py:f")(), []) == 2
    line = body.rstrip().count("\n") + 1
    assert capsys.readouterr().err == f"error: code.py fails at line {line} ({said}): fix that line\n"
