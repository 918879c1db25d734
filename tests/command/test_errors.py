"""The last net: whatever happens, a command ends with one line on standard error and its status."""

import os
import resource
import subprocess
import sys

import numpy as np
import pytest
from launch import environment, python
from marks import quick
from trained import train_briefly

from pmapdp.command.environment import changed
from pmapdp.command.shadows import shadow
from pmapdp.export.write import export_model
from pmapdp.run.header import header

COMMAND = """
import sys
from pmapdp.errors import DivergedError, ReplicasError, StoppedError, UserError
from pmapdp.command.ending import run_command
def main(arguments):
    {body}
sys.exit(run_command(main))
"""


def run(body: str, redirection: str = "", **variables: str):
    """A command of this body, started by a shell with its output as `redirection` says; without XLA_FLAGS, which would
    make it import JAX."""
    return subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {redirection}', sys.executable, COMMAND.format(body=body)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment({"XLA_FLAGS": ""} | variables),
        check=False,
    )


@pytest.mark.parametrize(
    ("body", "status", "line"),
    [
        ("pass", 0, ""),
        ("raise UserError('do this')", 2, "error: do this\n"),
        ("raise UserError('a\\n\\x1b[31mb')", 2, "error: a\\n\\x1b[31mb\n"),
        ("raise DivergedError('lower it')", 3, "error: lower it\n"),
        ("raise ReplicasError('start again')", 5, "error: start again\n"),
        ("raise StoppedError('go on so', 143)", 143, "go on so\n"),
        ("raise KeyboardInterrupt", 130, "stopped by the keyboard\n"),
        ("sys.exit()", 0, ""),
        ("sys.exit(5)", 5, ""),
        ("1 / 0", 1, "error: unexpected ZeroDivisionError (division by zero); PMAPDP_TRACEBACK=1"),
        ("assert False", 1, "error: unexpected AssertionError (AssertionError); PMAPDP_TRACEBACK=1"),
        ("raise ValueError('\\n one \\n two')", 1, "error: unexpected ValueError (one); PMAPDP_TRACEBACK=1"),
        ("open('/no/file')", 1, "error: unexpected FileNotFoundError (No such file or directory: /no/file); PM"),
        ("def f(): f()\n    f()", 1, "error: unexpected RecursionError (maximum recursion depth exceeded"),
        ("bytearray(2**62)", 2, "error: no memory is left (MemoryError): free some, or use a smaller batch or model\n"),
    ],
)
def test_one_line_and_a_status(body, status, line):
    done = run(body)
    assert done.returncode == status
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == bool(line)


def test_the_traceback_for_those_who_ask():
    done = run("1 / 0", PMAPDP_TRACEBACK="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("\nerror: unexpected ZeroDivisionError (division by zero)\n")


@pytest.mark.parametrize("body", ["print('x')", "[print('x' * 80) for _ in range(9999)]"])
@pytest.mark.parametrize(
    ("redirection", "status", "line"),
    [
        ("| true; exit ${PIPESTATUS[0]}", 141, ""),  # nobody reads: as `cat` ends, silently
        (">/dev/full", 2, "error: the output cannot be written (No space left on device): free some space\n"),
        (">&-", 0, ""),
        ("2>&1 >/dev/null | true; exit ${PIPESTATUS[0]}", 0, ""),
    ],
)
def test_outputs_that_take_nothing(body, redirection, status, line):
    done = run(body, redirection)
    assert (done.returncode, done.stderr) == (status, line)


def test_an_output_that_takes_nothing_of_rich():
    body = "import rich.console; [rich.console.Console().print('x' * 80) for _ in range(9999)]"
    done = run(body, "| true; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (141, "")


def test_a_help_that_nobody_can_read():
    done = subprocess.run(
        ["bash", "-c", '"$0" -m pmapdp.verify --help >/dev/full', sys.executable],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert (done.returncode, done.stderr.count("No space left on device")) == (2, 1)


def test_an_error_that_nobody_reads():
    assert run("raise UserError('x')", "2>&1 >/dev/null | true; exit ${PIPESTATUS[0]}").returncode == 2


def test_a_terminal_of_another_encoding():
    done = run(
        "print('3 \\N{MULTIPLICATION SIGN} 4, \\udcff'); raise UserError('\\N{MIDDLE DOT}')", PYTHONIOENCODING="ascii"
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "3 ? 4, ?\n", "error: ?\n")


@quick(
    3,
    ("variable", "value", "said"),
    [
        ("JAX_PLATFORMS", "cuda", ""),
        ("JAX_PLATFORMS", "no-such", "known backends"),
        ("JAX_NUM_CPU_DEVICES", "abc", "jax_num_cpu_devices"),
        ("JAX_ENABLE_X64", "perhaps", "perhaps"),
        ("XLA_FLAGS", "--xla_no_such_flag=3", "--xla_no_such_flag"),
        ("XLA_FLAGS", "no-such-file", "no-such-file"),
        ("XLA_FLAGS", "   ", "Could not open file"),
        ("XLA_FLAGS", "--xla_force_host_platform_device_count=abc", "abc"),
    ],
)
def test_environments_that_jax_cannot_start_in(variable, value, said):
    done = python("-m", "pmapdp.train", "--no-compile-cache", env={variable: value})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert f"{variable}={value if value.strip() else repr(value)}" in done.stderr
    assert said in done.stderr


@quick(
    2,
    ("variable", "value", "said"),
    [
        ("JAX_NUMPY_DTYPE_PROMOTION", "strict", "unset it"),
        ("JAX_NUMPY_RANK_PROMOTION", "raise", "unset it"),
        ("JAX_DUMP_IR_TO", "/proc/x", "unset it"),
        ("XLA_FLAGS", "--xla_force_host_platform_device_count=99999", "set at most 1024"),
        ("XLA_FLAGS", "--xla_force_host_platform_device_count=" + "9" * 5000, "set at most 1024"),
        ("JAX_NUM_CPU_DEVICES", "99999", "set at most 1024"),
    ],
)
def test_environments_in_which_no_run_works(variable, value, said):
    """Each ends within 10 s, with a sentence that names the variable."""
    flags, before = ["--no-compile-cache", "--model", "mlp", "--devices", 1, "--steps", 1], seconds_of_children()
    done = python("-m", "pmapdp.train", *flags, env={variable: value}, timeout=60)
    assert done.returncode == 2, done
    assert seconds_of_children() - before < 10  # of computing; how long it waits is up to what else runs
    assert done.stderr.count("\n") == 1
    assert f"{variable}={value}" in done.stderr
    assert done.stderr.endswith(f": {said}\n")


def seconds_of_children() -> float:
    """That the processes which have ended have computed."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_run_shows_the_variables_that_may_change_its_results(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/tmp/cache")
    before = changed()
    for name, value in {"JAX_RANDOM_SEED_OFFSET": "3", "JAX_DEFAULT_MATMUL_PRECISION": "float32"}.items():
        monkeypatch.setenv(name, value)
    assert set(changed()) - set(before) == {"JAX_RANDOM_SEED_OFFSET=3", "JAX_DEFAULT_MATMUL_PRECISION=float32"}
    assert not any("PLATFORMS" in each or "CACHE" in each for each in before)
    job, state = train_briefly(model="mlp", steps=0)
    lines = header(job, job.strategy.place_state(state))
    (shown,) = (line for line in lines if line.startswith("environ"))
    assert "JAX_RANDOM_SEED_OFFSET=3" in shown
    assert shown.endswith(": the results may be others than without")


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["/proc/none", "/dev/null/none"])
def test_a_cache_that_cannot_be_written_is_left_out(folder):
    flags = ["--model", "mlp", "--devices", 1, "--steps", 1]
    done = python("-m", "pmapdp.train", *flags, env={"XDG_CACHE_HOME": folder, "JAX_COMPILATION_CACHE_DIR": None})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_half_an_entry_of_the_cache_is_left_out(tmp_path):
    """As where another process is about to write it, or was killed."""
    flags = ["-m", "pmapdp.train", "--model", "mlp", "--devices", 1, "--steps", 1]
    for _ in range(2):
        done = python(*flags, env={"JAX_COMPILATION_CACHE_DIR": str(tmp_path)})
        assert (done.returncode, done.stderr) == (0, "")
        entries = [path for path in tmp_path.iterdir() if path.name.endswith("-cache")]
        assert entries
        for path in entries:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("kilobytes", [300_000, 700_000, 1_200_000, 1_700_000])
def test_little_memory(kilobytes):
    command = f'ulimit -v {kilobytes}; exec "$0" -m pmapdp.train --no-progress --no-compile-cache --devices 2 --steps 3'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 2, done
    assert done.stderr.startswith(f"error: ulimit -v {kilobytes} leaves ")


def test_the_current_folder_can_be_left_out(tmp_path):
    """Of `types.py` Python's own start gives a traceback, before a command has begun."""
    (tmp_path / "types.py").write_text("raise ImportError('shadow')")
    for safe, status in ((["-P"], 0), ([], 1)):
        command = [sys.executable, *safe, "-m", "pmapdp.port", "--help"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment(), check=False)
        assert done.returncode == status, done.stderr


@quick(3, "name", ["random", "numpy", "signal", "json", "optax", "threading", "typing", "heapq", "rich", "argparse"])
@pytest.mark.parametrize("content", ["raise ImportError('shadow')", "x = 1"])
def test_a_file_in_the_place_of_a_module_is_named(tmp_path, name, content):
    """As when somebody calls a first try `random.py`, and starts the command beside it."""
    (tmp_path / f"{name}.py").write_text(content)
    command = [sys.executable, "-m", "pmapdp.train", "--steps", "1", "--no-compile-cache"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=environment(), timeout=60, check=False
    )
    assert done.returncode == 2, done
    assert done.stderr.startswith(f"error: {tmp_path / name}.py stands in the place of the module {name} (")
    assert done.stderr.count("\n") == 1


def test_looking_for_such_a_file_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "optax.py"
    path.write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(sys.modules), list(sys.path)
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile(path.read_text(), str(path), "exec"))
    assert shadow(caught.value) == (
        f"{path} stands in the place of the module optax (ZeroDivisionError): rename it, or move it"
    )
    assert shadow(ZeroDivisionError()) is None
    assert (dict(sys.modules), list(sys.path)) == before


def test_a_file_is_not_blamed_for_a_package_that_is_missing(tmp_path, monkeypatch):
    """Also where some package has installed a module of its name."""
    for folder in ("site-packages", "here"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "stands_twice.py").write_text("x = 1")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "here"), str(tmp_path / "site-packages")])
    with pytest.raises(ModuleNotFoundError) as caught:
        import absent_package.inner  # noqa: F401
    assert shadow(caught.value) is None
    found = shadow(ModuleNotFoundError("no", name="stands_twice.inner"))
    assert found.startswith(f"{tmp_path / 'here' / 'stands_twice.py'} stands in the place of the module stands_twice (")


def test_a_model_is_not_blamed_for_an_environment_that_jax_cannot_start_in(tmp_path):
    job, state = train_briefly(model="mlp", steps=0)
    export_model(job.task, state, tmp_path / "model.zip", examples=job.data.test, metadata={"labels": ""})
    np.save(tmp_path / "digit.npy", np.zeros((28, 28), np.uint8))
    files = tmp_path / "model.zip", tmp_path / "digit.npy"
    done = python("-m", "pmapdp.predict", *files, env={"JAX_PLATFORMS": "cuda"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: JAX cannot start with JAX_PLATFORMS=cuda")


@pytest.mark.slow
def test_nothing_is_moved_to_a_device_unasked(tmp_path):
    np.save(tmp_path / "digit.npy", np.zeros((28, 28), np.uint8))
    folder, exported = tmp_path / "run", tmp_path / "model.zip"
    for command in (
        ["train", "--model", "mlp", "--devices", 2, "--epochs", 1, "--workdir", folder],
        ["train", "--model", "mlp", "--devices", 2, "--epochs", 1, "--workdir", folder],  # resumes
        ["export", folder, exported],
        ["evaluate", exported],
        ["predict", exported, tmp_path / "digit.npy"],
    ):
        done = python("-m", f"pmapdp.{command[0]}", *command[1:], env={"JAX_TRANSFER_GUARD": "disallow"})
        assert (done.returncode, done.stderr) == (0, ""), command
    command = ["-m", "pmapdp.compare", "--model", "mlp", "--devices", 2, "--steps", 2, "--strategies", "jit"]
    done = python(*command, env={"JAX_TRANSFER_GUARD": "disallow"})
    assert done.returncode == 0, done.stderr


def test_other_programs_keep_their_tracebacks(tmp_path):
    """The package is silent about errors of its own commands only."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__init__.py").write_text("import pmapdp\n1 / 0\n")
    (tmp_path / "theirs" / "program.py").write_text("")
    env = environment()
    env["PYTHONPATH"] += os.pathsep + str(tmp_path)
    done = python("-m", "theirs.program", env=env)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
