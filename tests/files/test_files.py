"""Whatever stands at a name, the outcome is the file's content, or one sentence and
nothing lost.
"""

import errno
import os
from pathlib import Path

import pytest

from pmapdp.errors import UserError
from pmapdp.files import (
    MODEL_SIGNATURES,
    PAGE_SIGNATURES,
    REPORT_SIGNATURES,
    RESULTS_SIGNATURES,
    check_output,
    load_from_file,
    read_file,
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
    **dict.fromkeys(("folder", "pipe", "/dev/null"), NOT_REGULAR),
    "loop": "Too many levels of symbolic links",
    "missing/file": "No such file or directory",
}


@pytest.mark.parametrize("name", WRONG)
def test_only_regular_files_are_read_and_written(folder, name):
    before = {path: path.lstat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(
        UserError, match=rf"^{name} cannot be read \({WRONG[name]}\): advice"
    ):
        read_file(name, advice="advice")
    with pytest.raises(
        UserError,
        match=rf"^{name} cannot be written \(.*\): name a file in a folder that exists",
    ):
        write_file(name, b"after")
    assert {path: path.lstat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_file_is_replaced_whole_or_not_at_all(folder, monkeypatch):
    write_file("file", "ä\n")
    assert Path("file").read_text() == "ä\n"
    write_file("dangling", b"new")
    assert (os.readlink("dangling"), Path("nothing").read_bytes()) == (
        "nothing",
        b"new",
    )

    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(
        UserError, match=r"file cannot be written \(No space left on device\)"
    ):
        write_file("file", b"after")
    assert Path("file").read_text() == "ä\n"
    assert sorted(os.listdir()) == [
        "dangling",
        "file",
        "folder",
        "loop",
        "nothing",
        "pipe",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "\nx = = 5",
            r"code.py cannot be read \(invalid syntax \(code.py, line 2\)\): "
            "correct it, or name another",
        ),
        ("x = 5\ndef g(): pass", "unknown name in /.*/code.py 'f': choose from g$"),
        (
            None,
            r"code.py cannot be read \(No such file or directory\): "
            r".*, as in my_file.py:f$",
        ),
    ],
)
def test_a_file_of_python_that_cannot_be_used(folder, text, said):
    if text is not None:
        (folder / "code.py").write_text(text)
    with pytest.raises(UserError, match=said):
        load_from_file("code.py:f")


CONTENTS = {
    REPORT_SIGNATURES: b'{\n  "ok": true',
    RESULTS_SIGNATURES: b'{"event": "start"}\n',
    PAGE_SIGNATURES: b"<!DOCTYPE html><p>",
    MODEL_SIGNATURES: b"PK\x03\x04" + 26 * b"." + b"arrays/",
}
OTHERS = {
    b'{\n  "format": "pmapdp run 2"',
    b"x = 1\n",
    b"PK\x03\x04" + 26 * b"." + b"train_inputs.npy",
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_file_of_another_kind_is_not_overwritten(folder, kind):
    for content in {*CONTENTS.values(), *OTHERS, b""}:
        (folder / "file").write_bytes(content)
        if content in (CONTENTS[kind], b""):
            assert check_output("--json", "file", kind) == folder / "file"
            assert (
                check_output("--json", "new [1].json", kind) == folder / "new [1].json"
            )
        else:
            with pytest.raises(
                UserError,
                match="json file is a file of another kind, which would be lost: name",
            ):
                check_output("--json", "file", kind)
        assert Path("file").read_bytes() == content


def test_two_folders_of_yours_keep_their_own_helpers(tmp_path):
    """Python keeps one module of a name, so the second would be given the first."""
    for folder, number in (("a", 3), ("b", 999)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "shared_by_both.py").write_text(f"W = {number}\n")
        text = "from shared_by_both import W\n\ndef f():\n    return W\n"
        (tmp_path / folder / "net.py").write_text(text)
    assert load_from_file(f"{tmp_path}/a/net.py:f")() == 3
    assert load_from_file(f"{tmp_path}/a/net.py:f")() == 3  # again
    with pytest.raises(UserError, match=r"b/net\.py .*a/shared_by_both\.py"):
        load_from_file(f"{tmp_path}/b/net.py:f")
    (tmp_path / "b" / "alone.py").write_text("def f():\n    return 5\n")
    assert load_from_file(f"{tmp_path}/b/alone.py:f")() == 5
    (tmp_path / "b" / "shared_by_both.py").rename(tmp_path / "b" / "of_b.py")
    text = "from of_b import W\n\ndef f():\n    return W\n"
    (tmp_path / "b" / "net.py").write_text(text)
    assert load_from_file(f"{tmp_path}/b/net.py:f")() == 999
