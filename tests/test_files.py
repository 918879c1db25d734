"""One way in and one way out for files: whatever stands at a name, the outcome is the content or one sentence."""

import errno
import os
import socket
import subprocess
from typing import Any, Literal, NotRequired

import pytest

from pmapdp.errors import UserError
from pmapdp.files import read_file, read_json, require_writable, write_file
from pmapdp.forms import parse_json


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


WRONG = {
    "folder": "Is a directory",
    "pipe": "it is a named pipe",
    "loop": "Too many levels of symbolic links",
    "socket": "No such device or address",
    "/dev/full": "it is a device",
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
    assert str(caught.value).startswith(f"{name or repr('')} cannot be read ({why}")
    assert str(caught.value).endswith("): name another")


@pytest.mark.parametrize("name", [*WRONG, "", ".", "/", "folder/"])
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
    with pytest.raises(UserError, match="it has another length than its 0 bytes"):
        read_file("/proc/self/maps")
    subprocess.run(["truncate", "-s", "1T", "hole"], check=True)
    with pytest.raises(UserError, match=r"hole cannot be read \(it has 1,099,511,627,776 bytes, more than"):
        read_json("hole", dict, advice="")


FORM = {"seed": int, "rate": float, "name": str | None, "kind": Literal["a", "b"], "sizes": list[int]}
RIGHT = '{"seed": 1, "rate": 2, "name": null, "kind": "a", "sizes": [], "more": 0}'


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is no JSON that can be read (Expecting value: line 1 column 1 (char 0))"),
        ("[" * 100_000, "is no JSON that can be read ("),
        (b"\xff\xff", "is no JSON that can be read ("),
        ("9" * 5000, "is no JSON that can be read ("),
        (RIGHT.replace("2", "NaN"), "holds nan as rate, not a finite number"),
        ("null", "holds None, not an object"),
        ("[]", "holds [], not an object"),
        ("{}", "has no field seed"),
        (RIGHT.replace("1", "true"), "holds True as seed, not a whole number"),
        (RIGHT.replace("1", "1.5"), "holds 1.5 as seed, not a whole number"),
        (RIGHT.replace("2", "1e999"), "holds inf as rate, not a finite number"),
        (RIGHT.replace("2", "1" + "0" * 400), "as rate, not a finite number"),
        (RIGHT.replace("2", '"2"'), "holds '2' as rate, not a finite number"),
        (RIGHT.replace("null", "0"), "holds 0 as name, not a text or null"),
        (RIGHT.replace('"a"', '"c"'), "holds 'c' as kind, not one of a, b"),
        (RIGHT.replace("[]", "{}"), "holds {} as sizes, not a list"),
        (RIGHT.replace("[]", "[1, null]"), "holds None as sizes[1], not a whole number"),
    ],
)
def test_json_of_another_form(text, wrong):
    with pytest.raises(UserError) as caught:
        parse_json(text, FORM, "config.json", advice="start anew")
    assert str(caught.value).startswith("config.json ")
    assert wrong in str(caught.value)
    assert str(caught.value).endswith(": start anew")
    assert len(str(caught.value)) < 200


def test_json_of_the_right_form():
    assert parse_json(RIGHT, FORM, "", advice="")["rate"] == 2
    form = {"inner": {"counts": dict[str, int]}, "any": Any, "perhaps": NotRequired[int]}
    assert parse_json(b'{"inner": {"counts": {"a": 1}}, "any": [{}]}', form, "", advice="")["any"] == [{}]
    with pytest.raises(UserError, match=r"file holds 'x' as inner\.counts\.a, not a whole number: advice"):
        parse_json('{"inner": {"counts": {"a": "x"}}, "any": 0}', form, "file", advice="advice")
    with pytest.raises(UserError, match=r"file has no field inner\.counts"):
        parse_json('{"inner": {}, "any": 0}', form, "file", advice="")
    with pytest.raises(UserError, match="file holds None as perhaps, not a whole number"):
        parse_json('{"inner": {"counts": {}}, "any": 0, "perhaps": null}', form, "file", advice="")
