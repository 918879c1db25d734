"""No command writes onto what it reads, a file of a run, or a file of another kind, and finds that out at once."""

import json
import os
from pathlib import Path

import pytest

from pmapdp.errors import UserError
from pmapdp.export.write import export_run
from pmapdp.files.outputs import HTML, JSON, LINES, MODEL, Output, check_outputs
from pmapdp.files.reading import read_file
from pmapdp.run.workdir import read_run

FILES = {
    "mine.py": b"x = 1\n",
    "data.npz": b"PK\x03\x04data",
    "old.json": b'{"a": 1}',
    "old.jsonl": b'{"event": "start"}\n',
    "old.html": b"<!DOCTYPE html><p>",
    "old.zip": b"PK\x03\x04" + 26 * b"." + b"arrays/",
    "theirs.zip": b"PK\x03\x04" + 26 * b"." + b"train_inputs.npy",
    "empty": b"",
    "letter.txt": b"Dear",
    "run/config.json": b'{"format": "pmapdp run 1", "config": {}}',
    "run/metrics.jsonl": b'{"event": "start"}\n',
    "run/log.txt": b"epoch 1",
    "run/events.out.tfevents.1": b"{",
    "run/pmapdp.lock": b"",
    "run/checkpoints/5/state/_METADATA": b"{}",
    "run/damaged/5/state/_METADATA": b"{}",
    "spoilt/config.json": b"",  # of a machine that lost power: its checkpoints may be whole
    "spoilt/pmapdp.lock": b"",
    "spoilt/checkpoints/5/state/_METADATA": b"{}",
    "other/config.json": b'{"format": "mine"}',
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    os.symlink("mine.py", "link")
    os.symlink("run", "linked")
    os.link("data.npz", "hard")
    return tmp_path


OF_A_RUN = [name for name in FILES if name.startswith(("run/", "spoilt/"))]
READ = "a file that this command reads"


@pytest.mark.parametrize("kind", [JSON, MODEL])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, f"a file of the run in {{place}}/{name.partition('/')[0]}") for name in OF_A_RUN),
        ("linked/metrics.jsonl", "a file of the run in {place}/run"),
        ("run/../run/log.txt", "a file of the run in {place}/run"),
        ("run/checkpoints/new", "a file of the run in {place}/run"),
        ("run/profile", "a file of the run in {place}/run"),
        *((name, READ) for name in ("mine.py", "./mine.py", "link", "data.npz", "hard", "{place}/data.npz")),
        ("new.py", READ),
        ("letter.txt", "a file of another kind, which would be lost"),
        ("old.html", "a file of another kind, which would be lost"),
        ("theirs.zip", "a file of another kind, which would be lost"),
    ],
)
def test_what_is_not_to_be_lost_is_refused(place, name, said, kind):
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    name = name.format(place=place)
    with pytest.raises(UserError) as caught:
        check_outputs(Output("--json", name, kind), inputs=["mine.py", None, "data.npz", "new.py", "\0"])
    assert str(caught.value).startswith(f"--json {name} is {said.format(place=place)}: name another file")
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("new", start) for start in (JSON, LINES, HTML, MODEL)),
        *(("empty", start) for start in (JSON, LINES, HTML, MODEL)),
        *(("old.json", JSON), ("old.jsonl", LINES), ("old.html", HTML), ("old.zip", MODEL)),
        *(("run/report.json", JSON), ("run/checkpoints.zip", MODEL), ("other/config.json", JSON)),
        *(("other/log.txt", JSON), ("[a]{b}*?!~$%#&;'\" .json", JSON), ("\udcff.json", JSON)),
    ],
)
def test_what_may_be_written_is_not(place, name, kind):
    assert check_outputs(Output("--json", name, kind), Output("--html", None, HTML)) == [place / name, None]


@pytest.mark.parametrize(
    ("name", "said"), [("old.json", "of another kind"), ("hard metrics", "with several names"), ("empty link", "with")]
)
def test_lines_are_appended_to_those_of_other_runs_alone(place, name, said):
    """A hard link to the metrics of a run would let two runs write to one file."""
    os.link("run/metrics.jsonl", "hard metrics")
    os.link("empty", "empty link")
    with pytest.raises(UserError, match=f"--metrics-file {name} is a file {said}"):
        check_outputs(Output("--metrics-file", name, LINES))


@pytest.mark.parametrize("path", [0, True, b"x", [], {}, object(), 3.5, Path])
def test_what_is_no_path_is_refused(path):
    """By what reads and what writes."""
    for use in (
        lambda: check_outputs(Output("--json", path, JSON)),
        lambda: read_run(path),
        lambda: read_file(path),
        lambda: export_run("run", path),
    ):
        with pytest.raises(UserError, match=r"is no path: give a text or a pathlib.Path"):
            use()


@pytest.mark.parametrize("name", ["empty", "/dev/stdout"])
def test_where_the_command_prints_is_no_output(place, name):
    """As of `--json report.json > report.json`: the one would replace the other."""
    kept = os.dup(1)
    with open("empty") as printed:
        os.dup2(printed.fileno(), 1)
    try:
        with pytest.raises(UserError, match=f"--json {name} is where this command prints: name another file"):
            check_outputs(Output("--json", name, JSON))
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@pytest.mark.parametrize(
    ("name", "kind"), [("new.json", HTML), ("new.html", JSON), ("new.html", LINES), ("empty.json", HTML)]
)
def test_an_ending_that_says_another_kind_is_refused(place, name, kind):
    with pytest.raises(UserError, match=f"--page {name} is the name of a file of another kind: name another file"):
        check_outputs(Output("--page", name, kind))


def test_two_outputs_have_two_names(place):
    os.symlink("page", "other name")
    with pytest.raises(UserError, match="--html other name is also what --json names"):
        check_outputs(Output("--json", "page", JSON), Output("--html", "other name", HTML))


@pytest.mark.parametrize("name", ["log.txt", "config.json", "checkpoints/1", "events.out.x"])
def test_a_run_that_is_not_there_yet(place, name):
    with pytest.raises(UserError, match=f"is a file of the run in {place}/later"):
        check_outputs(Output("--metrics-file", f"later/{name}", JSON), run="later")
    (path,) = check_outputs(Output("--metrics-file", "later/mine.jsonl", JSON), run="later")
    assert path == place / "later/mine.jsonl"
    with pytest.raises(UserError, match=r"--json nowhere/report.json cannot be written \(No such file"):
        check_outputs(Output("--json", "nowhere/report.json", JSON), run="later")


def test_the_current_folder_may_change(place):
    (path,) = check_outputs(Output("--json", "report.json", JSON))
    os.chdir("other")
    assert path == place / "report.json"
    assert json.loads(Path("config.json").read_text()) == {"format": "mine"}
