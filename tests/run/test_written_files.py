"""The files that a run writes, where the disk is full, takes no file, or holds half a line."""

import asyncio
import gc
import shutil
from pathlib import Path

import pytest
from disks import small_disk
from marks import quick
from run_folders import COMMAND, refused

from pmapdp.errors import UserError
from pmapdp.run.checkpoint import orbax
from pmapdp.run.log import LinesFile
from pmapdp.run.tensorboard import TensorBoard


def test_half_a_line_is_ended_first(tmp_path):
    (tmp_path / "lines").write_bytes(b'{"event": "start"}\n{"event": "ep')
    file = LinesFile(tmp_path / "lines")
    file.event("epoch", epoch=1)
    file.close()
    assert (tmp_path / "lines").read_text().splitlines() == [
        '{"event": "start"}',
        '{"event": "ep',
        '{"event": "epoch", "epoch": 1}',
    ]


def test_a_folder_that_takes_no_file_of_tensorboard():
    with pytest.raises(UserError, match=r"/proc cannot be written \(.*\): name a file in a folder that exists"):
        TensorBoard(Path("/proc"))


@pytest.mark.slow
def test_an_error_of_the_disk_is_an_error_of_the_command(tmp_path):
    """Nothing is kept in a buffer, so the error comes with the line, and once."""
    with small_disk(tmp_path / "disk", "size=8k") as disk:
        file = LinesFile(disk / "lines", "--metrics-file lines")
        file.line("x" * 3000)
        with pytest.raises(UserError, match="--metrics-file lines cannot be written"):
            file.line("x" * 6000)
        file.close()
        (disk / "lines").unlink()
        assert "No space left" in refused(*COMMAND, "--workdir", disk / "run")[1]
        (disk / "x").write_bytes(bytes(shutil.disk_usage(disk).free))
        (disk / "metrics").touch()
        assert "No space left" in refused(*COMMAND, "--metrics-file", disk / "metrics")[1]
        another = disk / "another"
        assert f"--workdir {another} cannot be written (No space" in refused(*COMMAND, "--workdir", another)[1]


@quick(1, ("options", "sentence"), [("ro", "Read-only file system"), ("nr_inodes=2", "No space left on device")])
def test_checkpoints_that_cannot_be_written_end_the_run(tmp_path, options, sentence):
    with small_disk(tmp_path / "run" / "checkpoints", options):
        out, err = refused(*COMMAND, "--workdir", tmp_path / "run")
    assert (out == "") == (options == "ro")  # that is found out before the first update
    assert sentence in err


def test_an_error_in_a_task_of_orbax_is_said_once(caplog):
    """Python's collector, at any moment, has asyncio log the tracebacks of tasks whose errors nobody has asked for."""
    orbax()
    loop = asyncio.new_event_loop()
    for package in ("orbax", "another"):
        names = {}
        exec(compile("async def create():\n    raise OSError(28)", f"/{package}/path.py", "exec"), names)
        loop.run_until_complete(asyncio.wait([loop.create_task(names["create"]())]))
    gc.collect()
    loop.close()
    assert ["/another/path.py" in record.getMessage() for record in caplog.records] == [True]
