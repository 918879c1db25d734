"""`python -m pmapdp.verify` on a file of the user's: what it prints, and its exit status."""

import json
import subprocess
import sys

import pytest
from launch import environment, python
from marks import quick

from pmapdp import cli
from pmapdp.verify.__main__ import main

FILE = """
import jax, numpy as np
def reference(w, batch):
    loss, g = jax.value_and_grad(lambda w: ((batch["x"] @ w) ** 2).mean())(w)
    return w - 0.1 * g, loss
def device_step(w, batch):
    loss, g = jax.value_and_grad(lambda w: ((batch["x"] @ w) ** 2).mean())(w)
    return w - 0.1 * jax.lax.REDUCE(g, "data"), jax.lax.pmean(loss, "data")
def check():
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    return dict(reference=reference, step=jax.pmap(device_step, "data"), state=np.ones(3, np.float32), batch={"x": x})
def broken():
    return check() | dict(reference=lambda w, batch: 1 / 0)
def stopped():
    raise SystemExit(0)
def own_kind():
    raise type("Mine", (BaseException,), {})("x")
def left():
    raise GeneratorExit
def closed():
    import sys
    sys.stdout.close()
    return check()
def closed_below():
    import os
    os.close(1)
    return check()
def listed():
    return [check()]
def misspelt():
    return check() | dict(layuot="stacked")
def incomplete():
    return dict(reference=reference, step=jax.pmap(device_step, "data"))
"""


@quick(
    4,
    ("reduce", "target", "status", "said"),
    [
        ("pmean", "step.py:check", 0, "checks passed"),
        ("psum", "step.py:check", 1, "use lax.pmean in place of lax.psum"),
        ("pmean", "step.py:broken", 1, "step.py:13 in <lambda>: ZeroDivisionError"),
        ("pmean", "step.py:absent", 2, "has no 'absent': use one of broken, check, closed, closed_below, device_step"),
        ("pmean", "step.py:listed", 2, "step.py:listed does not return the arguments of verify ('list' object is not"),
        ("pmean", "step.py:misspelt", 2, "(got an unexpected keyword argument 'layuot'): return them in a dictionary"),
        ("pmean", "step.py:incomplete", 2, "(missing a required argument: 'state'): return them in a dictionary"),
        ("pmean", "absent.py:check", 2, "there is no file"),
        ("pmean", "step.py", 2, "does not say what to take from which file: try my_file.py:verification"),
        ("pmean", "step.py:stopped", 1, "step.py:15 in stopped: SystemExit: 0"),
        ("pmean", "step.py:own_kind", 1, "step.py:17 in own_kind: Mine: x"),
        ("pmean", "step.py:left", 1, "step.py:19 in left: GeneratorExit: GeneratorExit"),
        ("pmean", "step.py:closed", 2, "error: the output cannot be written (it was closed): leave it open"),
        ("pmean", "step.py:closed_below", 2, "error: the output cannot be written (Bad file descriptor): leave it op"),
        ("1 / 0", "step.py:check", 2, "step.py cannot be read at line 8 (invalid syntax"),
    ],
)
def test_the_command_verifies_a_file(tmp_path, reduce, target, status, said):
    (tmp_path / "step.py").write_text(FILE.replace("REDUCE", reduce))
    done = python("-m", "pmapdp.verify", tmp_path / target, "--devices", 4, "--json", tmp_path / "report.json")
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
    assert done.stderr.count("\n") == (status > 0)
    if target == "step.py:check" and status < 2:
        assert json.loads((tmp_path / "report.json").read_text())["ok"] == (status == 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: FILE.py:FUNCTION: try python -m pmapdp.verify my_step.py"),
        (["step.py:check", "--device", "4"], "unknown argument '--device': did you mean '--devices'?"),
        (["step.py:check", "--devices", "0"], "0 devices cannot be simulated: use 1 or more"),
        (["step.py:check", "--json", "nowhere/report.json"], "--json nowhere/report.json cannot be written"),
    ],
)
def test_a_wrong_command_is_one_sentence(capsys, arguments, said):
    assert cli.run(main, arguments) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: {said}")
    assert line.count("\n") == 1


def test_the_report_is_where_it_was_asked_for(tmp_path, monkeypatch):
    """Also when the user's function changes the current folder; and it never replaces the file that is verified."""
    monkeypatch.chdir(tmp_path)
    text = FILE.replace("REDUCE", "pmean") + "import os\nos.makedirs('sub', exist_ok=True)\nos.chdir('sub')\n"
    (tmp_path / "step.py").write_text(text)
    for name, status in (("report.json", 0), ("step.py", 2), ("./sub/../step.py", 2)):
        command = [sys.executable, "-m", "pmapdp.verify", "step.py:check", "--devices", "2", "--json", name]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
        assert done.returncode == status, done.stderr
    assert "is a file that this command reads: name another file" in done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["ok"]
    assert (tmp_path / "step.py").read_text() == text


def test_importing_does_not_start_jax():
    code = "import pmapdp.verify, jax; assert not jax._src.xla_bridge._backends"
    assert python("-c", code, env=environment()).returncode == 0
