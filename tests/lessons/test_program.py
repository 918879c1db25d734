"""The program that grows.

Each script is short, gives the result of one device, and differs little from the last.

Each script but 03_ragged and 07_flax_norm is a cell of its lesson's notebook, and
test_alone.py runs it there again.
Lesson 14 kills its script and resumes it, lesson 17 runs its script as two processes.
"""

import ast
import difflib
import functools
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import build
import numpy as np
import pytest
from notebooks import built, figures, printed

from pmapdp.lessons.programs import launch, patch
from pmapdp.port.__main__ import report_program

OLD = "12 old"  # the pmap program that lesson 12 ports; it is no version of the others
BROKEN = "12_pmap_2022"  # the same before its repair
RAGGED = "03 ragged"  # half of the way from 02 to 03: Flax and Optax, nothing padded
FLAX_NORM = "07 flax"  # half of the way from 05 to 07: running averages, padding counts
NAMES = {"03_ragged": RAGGED, "07_flax_norm": FLAX_NORM, "12_old_pmap": OLD}
PROGRAMS = {
    NAMES.get(path.stem, path.stem[:2]): path
    for path in sorted((build.FOLDER / "program").glob("*.py"))
    # 19 is longer and has other data: see test_gpt.py.
    if path.stem not in ("19_gpt", BROKEN)
}
# As 05: one network and data, the work split anew.
SAME_RESULT = ("03", "04", "09", "10", "11", "13", "14", "15", "16", "17", "18", "21")

# Lines of the later script that the earlier one doesn't have, at most.
NEW_LINES = {
    ("02", RAGGED): 25,
    (RAGGED, "03"): 25,
    ("03", "04"): 20,
    ("03", "05"): 20,
    ("04", "05"): 10,
    ("03", "09"): 12,
    ("05", "07"): 40,
    ("05", FLAX_NORM): 20,
    (FLAX_NORM, "07"): 27,
    ("05", "08"): 30,
    ("05", "09"): 12,
    ("05", "10"): 10,
    ("09", "11"): 12,
    (OLD, "12"): 20,
    **{("09", later): 25 for later in ("13", "14", "15", "16")},
    ("14", "17"): 26,
    ("09", "18"): 30,
    ("13", "20"): 6,
    ("10", "21"): 20,
}

# In float64, with 15 decimals, over two epochs, and in a process that has eight
# devices.
FLOAT64 = {
    "np.float32": "np.float64",
    "rngs=rngs)": "rngs=rngs, param_dtype=np.float64)",
    ":.4f}": ":.15f}",
}
FLOAT64 |= {
    "128, 5  #": "128, 2  #",
    'jax.config.update("jax_num_cpu_devices", 8)': "",
    'os.environ["NPROC"]': "_",
}


@functools.cache
def figures_of(number: str) -> np.ndarray:
    """The figures of a script in its lesson's notebook.

    Lessons 03 and 07 show only what changes in two scripts, so these are run.
    """
    if number in (RAGGED, FLAX_NORM):
        command = [sys.executable, PROGRAMS[number]]
        on_cpu = os.environ | {"JAX_PLATFORMS": "cpu"}
        # The tests' own settings of XLA would round in another way than a notebook.
        del on_cpu["XLA_FLAGS"]
        on_cpu.pop("JAX_COMPILATION_CACHE_DIR", None)
        done = subprocess.run(
            command, env=on_cpu, capture_output=True, text=True, check=True
        )
        return figures(done.stdout)
    cells = built(build.source_of(number[:2])).cells
    if number == OLD:
        (cell,) = (cell for cell in cells if "%run -i old_train.py" in cell.source)
    else:
        text = PROGRAMS[number].read_text().rstrip()
        (cell,) = (cell for cell in cells if cell.source == text)
    return figures(printed(cell))


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=pytest.mark.nightly if number == FLAX_NORM else [])
        for number in PROGRAMS
    ],
)
def test_script_is_short_and_learns(number):
    assert (
        60
        <= sum(bool(line.strip()) for line in PROGRAMS[number].read_text().splitlines())
        <= 110
    )
    found = figures_of(number)
    assert found.shape == (5, 2 if number[:2] == "12" else 4)
    assert found[-1, 0] < 0.5  # loss
    assert found[-1, -1] > 0.86  # accuracy on the test set


def new_lines(earlier: str, later: str) -> list[str]:
    """The lines of the later script that the earlier one doesn't have."""
    old, new = (
        PROGRAMS[number].read_text().splitlines() for number in (earlier, later)
    )
    return [
        line
        for line in difflib.ndiff(old, new)
        if line.startswith("+ ") and line[2:].strip()
    ]


@pytest.mark.parametrize(("earlier", "later"), NEW_LINES)
def test_the_difference_is_small(earlier, later):
    added = new_lines(earlier, later)
    assert len(added) <= NEW_LINES[earlier, later], "\n".join(added)


@pytest.mark.nightly
@pytest.mark.parametrize("script", ["14_resume", "17_processes", "19_gpt"])
def test_a_script_that_saves_asks_for_a_folder(script):
    path = build.FOLDER / "program" / f"{script}.py"
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 1
    wanted = "name a folder for the checkpoints on the command line"
    assert done.stderr.splitlines()[-1] == wanted
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
def test_lesson_21s_script_says_that_one_device_is_not_enough(tmp_path):
    text = PROGRAMS["21"].read_text()
    on_one = text.replace('jax_num_cpu_devices", 8', 'jax_num_cpu_devices", 1')
    assert on_one != text
    path = tmp_path / "on_one.py"
    path.write_text(on_one)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 1
    assert "this needs two devices" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def new_code_lines(earlier: str, later: str) -> int:
    """Count the later script's new lines below its docstring."""
    texts = [PROGRAMS[number].read_text() for number in (earlier, later)]
    old, new = (
        text.splitlines()[ast.parse(text).body[0].end_lineno :] for text in texts
    )
    added = [line for line in difflib.ndiff(old, new) if line.startswith("+ ")]
    return sum(bool(line[2:].strip()) for line in added)


@pytest.mark.parametrize(
    ("earlier", "later", "count", "words"),
    [
        ("09", "11", 11, "Change eleven lines"),
        (OLD, "12", 16, "Then sixteen new lines"),
        ("09", "13", 18, "It takes eighteen new lines"),
        ("09", "14", 13, "With thirteen new or changed lines"),
        ("09", "15", 20, "about twenty new lines"),
        ("09", "16", 15, "changes fifteen lines of your program"),
        ("14", "17", 21, "Change twenty-one lines"),
    ],
)
def test_a_lesson_counts_its_new_lines(earlier, later, count, words):
    assert new_code_lines(earlier, later) == count
    source = build.source_of(later).read_text().replace("\n# ", " ")
    assert words in source


def test_lesson_05_counts_its_new_lines():
    for earlier, count in (("04", 9), ("03", 15)):
        assert new_code_lines(earlier, "05") == count
    text = " ".join(
        cell.source.replace("\n", " ")
        for cell in built(build.source_of("05")).cells
        if cell.cell_type == "markdown"
    )
    assert "you'll change nine lines, two of them inside the training step" in text
    assert "only fifteen lines are new" in text


def test_two_lines_of_the_training_step_differ_between_one_device_and_pmap():
    def step(number):
        body = ast.parse(PROGRAMS[number].read_text()).body
        (node,) = [node for node in body if getattr(node, "name", "") == "train_step"]
        return ast.unparse(node).splitlines()

    added = [
        line[2:].strip()
        for line in difflib.ndiff(step("03"), step("05"))
        if line.startswith("+ ")
    ]
    assert len(added) == 2
    assert (
        added[0] == "gradients, count = lax.pmean((gradients, sums['count']), 'data')"
    )


def test_jax_finds_the_gradients_that_numpy_has_by_hand():
    np.testing.assert_allclose(figures_of("01"), figures_of("02"), atol=2e-4)


def test_padding_changes_no_figure(tmp_path):
    """In float64, because float32's rounding depends on the processor."""
    found = []
    for number in (RAGGED, "03"):
        text = PROGRAMS[number].read_text()
        for old, new in (
            ("rngs=rngs)", "rngs=rngs, param_dtype=float)"),
            ("inputs.astype(np.float32)", "inputs"),
        ):
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "in_float64.py"
        path.write_text(text)
        done = subprocess.run(
            [sys.executable, path],
            env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(figures(done.stdout))
    # Only the last printed digit may be rounded in another way.
    np.testing.assert_allclose(*found, atol=1.1e-4, rtol=0)
    assert found[0].shape == (5, 4)


@pytest.mark.parametrize("number", SAME_RESULT)
def test_all_ways_give_the_figures_of_pmap(number):
    found = figures_of(number)
    wanted = figures_of("05")
    # The scripts print four decimals; rounding in float32 may change the last one of a
    # loss, and tip a few of the 5,000 and 1,000 examples into another class.
    np.testing.assert_allclose(found[:, ::2], wanted[:, ::2], atol=2e-4)
    np.testing.assert_allclose(found[:, 1], wanted[:, 1], atol=5.5 / 5_000)
    np.testing.assert_allclose(found[:, 3], wanted[:, 3], atol=2.5 / 1_000)


def test_bfloat16_hardly_changes_the_losses():
    found = figures_of("20")
    wanted = figures_of("13")
    np.testing.assert_allclose(found[-1, ::2], wanted[-1, ::2], atol=1e-3)
    assert (found != wanted).any()
    loss, test_loss = wanted[-1, ::2]
    lesson = build.source_of("20").read_text()
    assert f"a loss of {loss:.4f}, and of {test_loss:.4f} on" in lesson


def run_old_program(text: str, folder: Path) -> subprocess.CompletedProcess:
    """Run a version of lesson 12's old program as a script of its own."""
    path = folder / "old_train.py"
    path.write_text(text)
    command = [sys.executable, path]
    plain = os.environ | {"NO_COLOR": "1"}  # Python 3.13 may colour its errors
    return subprocess.run(command, env=plain, capture_output=True, text=True)


def last_line(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def require_same_figures(actual: np.ndarray, expected: np.ndarray) -> None:
    """Require equal losses, and accuracies that at most one of 896 examples changes.

    Processors round differently, and rounding may tip an example.
    """
    np.testing.assert_allclose(actual[:, 0], expected[:, 0], atol=2e-4)
    np.testing.assert_allclose(actual[:, 1], expected[:, 1], atol=1.5 / 896)


@pytest.mark.slow
def test_the_program_of_2022_stops_twice_and_lesson_12_repairs_four_lines(tmp_path):
    broken = (build.FOLDER / "program" / f"{BROKEN}.py").read_text()
    gone = "AttributeError: jax.device_put_replicated is deprecated"
    assert last_line(run_old_program(broken, tmp_path)).startswith(gone)
    rows = report_program(str(tmp_path / "old_train.py"))["lines"]
    assert [row["status"] for row in rows].count("gone") == 2

    for old, new in {
        "from flax import linen": "from flax import jax_utils, linen",
        "jax.device_put_replicated": "jax_utils.replicate",
        ", jax.devices())": ")",
    }.items():
        broken = broken.replace(old, new)
    found = last_line(run_old_program(broken, tmp_path))
    assert found == "ValueError: too many values to unpack (expected 2)"

    # What `init` returned then, and so the old figures:
    frozen = "__import__('flax').core.freeze(variables).pop("
    done = run_old_program(broken.replace("variables.pop(", frozen), tmp_path)
    require_same_figures(figures(done.stdout), figures_of(OLD))

    repaired = PROGRAMS[OLD].read_text().splitlines()[1:]  # without its docstring
    added = set(repaired) - set(
        (build.FOLDER / "program" / f"{BROKEN}.py").read_text().splitlines()
    )
    assert len(added) == 4
    assert len(new_lines(OLD, "12")) == 17


def test_the_repairs_of_lesson_12_make_the_old_program(tmp_path):
    sources = [cell.source for cell in built(build.source_of("12")).cells]
    (listing,) = (text for text in sources if text.startswith("%%writefile"))
    (repair,) = (text for text in sources if "%run -i old_train.py" in text)
    _, repairs, _ = repair.split('"""')
    program = tmp_path / "old_train.py"
    program.write_text(listing.partition("\n")[2] + "\n")
    broken = (build.FOLDER / "program" / f"{BROKEN}.py").read_text()
    assert program.read_text() == broken
    patch.apply(str(program), repairs)
    repaired = program.read_text().splitlines()[1:]  # without its docstring
    assert repaired == PROGRAMS[OLD].read_text().splitlines()[1:]
    with pytest.raises(ValueError, match="has these lines 0 times"):
        patch.apply(str(program), repairs)


def test_the_port_prints_what_the_old_program_prints():
    require_same_figures(figures_of("12"), figures_of(OLD))


def test_one_device_and_pmap_agree_to_14_digits_in_float64(float64, capsys):
    found = []
    for number in ("03", "05"):
        text = PROGRAMS[number].read_text()
        for old, new in FLOAT64.items():
            assert old in text or number == "03"
            text = text.replace(old, new)
        exec(compile(text, PROGRAMS[number].name, "exec"), {})
        found.append(figures(capsys.readouterr().out))
    one, eight = found
    np.testing.assert_allclose(eight, one, rtol=2e-14)
    assert (eight != np.round(eight, 10)).any(), "the figures have 15 decimals"


SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NODELIST": "127.0.0.1",
    "SLURM_STEP_NUM_TASKS": "2",
}
OPEN_MPI_5 = {"OMPI_COMM_WORLD_SIZE": "2"}
OPEN_MPI_4 = OPEN_MPI_5 | {"OMPI_MCA_orte_hnp_uri": "4096.0;tcp://127.0.0.1:1"}
RANKS = {
    "SLURM": ("SLURM_PROCID", "SLURM_LOCALID"),
    "OMPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
}


def run_two_tasks(
    launcher: dict[str, str],
    folder: Path,
    expected: str = "2",
    program: Path = PROGRAMS["17"],
) -> list[tuple[int, str]]:
    """The exit status and the output of a program as both tasks of a launcher, which
    is known by the variables that it sets. `expected` is PROCESSES.
    """
    port = launch.free_port()
    name = next(iter(launcher)).partition("_")[0]
    tasks = []
    for task in range(2):
        variables = {"JAX_COORDINATOR_PORT": str(port), "JAX_PLATFORMS": "cpu"}
        variables |= launcher | dict.fromkeys(RANKS[name], str(task))
        variables["PROCESSES"] = expected
        process = subprocess.Popen(
            [sys.executable, program, folder],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        tasks.append(process)
    outputs = [task.communicate(timeout=300)[0] for task in tasks]
    return [
        (task.returncode, output) for task, output in zip(tasks, outputs, strict=True)
    ]


def require_one_run(tasks: list[tuple[int, str]]) -> None:
    """Both tasks trained together, and gave the figures of the notebook."""
    (first_status, first), (second_status, second) = tasks
    assert (first_status, second_status) == (0, 0), first + second
    assert "process 0 has 4 of 8 devices" in first
    assert "process 1 has 4 of 8 devices" in second
    np.testing.assert_allclose(figures(first), figures_of("17"), atol=2e-4)
    assert "epoch" not in second


@pytest.mark.slow
def test_two_tasks_of_slurm_are_one_run(tmp_path):
    require_one_run(run_two_tasks(SLURM, tmp_path))


@pytest.mark.nightly
def test_two_tasks_of_open_mpi_4_are_one_run(tmp_path):
    require_one_run(run_two_tasks(OPEN_MPI_4, tmp_path))


@pytest.mark.nightly
def test_two_tasks_time_their_step_with_what_lesson_18_copies(tmp_path):
    """Its last section names what goes into lesson 17's program, and shows the rest."""
    lesson = build.source_of("18").read_text().replace("\n# ", "\n")
    words = "Copy `import time` and `measure` into lesson 17's program"
    assert words in lesson.replace("\n", " ")
    (snippet,) = re.findall(r"```python\n(.*?)```", lesson, re.DOTALL)
    text = PROGRAMS["18"].read_text()
    (measure,) = (
        ast.get_source_segment(text, node)
        for node in ast.parse(text).body
        if getattr(node, "name", "") == "measure"
    )
    loop = "for epoch in range("
    before, _, after = PROGRAMS["17"].read_text().partition(loop)
    program = tmp_path / "timed.py"
    copied = f"import time\n{measure}\n{textwrap.dedent(snippet)}"
    program.write_text(f"{before}{copied}{loop}{after}")

    for status, output in run_two_tasks(SLURM, tmp_path / "run", program=program):
        assert status == 0, output
        (quartiles,) = re.findall(r"^\[(\S+) +(\S+) +(\S+)\]$", output, re.MULTILINE)
        lower, median, upper = map(float, quartiles)
        assert 0 < lower <= median <= upper


@pytest.mark.nightly
def test_two_tasks_train_nothing_if_four_were_expected(tmp_path):
    for status, output in run_two_tasks(SLURM, tmp_path, expected="4"):
        assert status != 0
        assert "2 processes are connected" in output
        assert "epoch" not in output


def test_lesson_17s_script_asks_for_the_number_of_processes(tmp_path):
    command = [sys.executable, PROGRAMS["17"], tmp_path]
    variables = {key: os.environ[key] for key in os.environ if key != "PROCESSES"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 1
    wanted = "say in PROCESSES how many processes you start, as in PROCESSES=1"
    assert done.stderr.splitlines()[-1] == wanted
    assert "Traceback" not in done.stderr


def test_lesson_17s_script_says_that_its_devices_cannot_share_the_batch(tmp_path):
    text = PROGRAMS["17"].read_text().replace("B, EPOCHS = 128", "B, EPOCHS = 100")
    program = tmp_path / "hundred.py"
    program.write_text(text)
    command = [sys.executable, program, tmp_path / "run"]
    variables = os.environ | {"PROCESSES": "1", "JAX_PLATFORMS": "cpu"}
    variables.pop("XLA_FLAGS", None)
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 1
    last_line = done.stderr.splitlines()[-1]
    assert last_line == "AssertionError: B = 100 is not divisible by 8 devices"
    assert not (tmp_path / "run").exists()


def test_lesson_19s_script_does_not_train_alone_as_a_task_of_a_launcher(tmp_path):
    """Without the number of processes both tasks would write into one folder."""
    script = build.FOLDER / "program" / "19_gpt.py"
    variables = {key: os.environ[key] for key in os.environ if key != "PROCESSES"}
    variables |= OPEN_MPI_4 | dict.fromkeys(RANKS["OMPI"], "0")
    done = subprocess.run(
        [sys.executable, script, tmp_path / "run"],
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    wanted = "say in PROCESSES how many processes you start, as in PROCESSES=1"
    assert done.stderr.splitlines()[-1] == wanted
    assert not done.stdout
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
def test_two_tasks_of_slurm_are_one_run_of_lesson_19s_script(tmp_path):
    text = (build.FOLDER / "program" / "19_gpt.py").read_text()
    for old, new in {
        "BYTES = 70_000": "BYTES = 20_000",
        "EPOCHS = 3": "EPOCHS = 1",
    }.items():
        assert old in text
        text = text.replace(old, new)
    program = tmp_path / "small_gpt.py"
    program.write_text(text)
    tasks = run_two_tasks(SLURM, tmp_path / "run", program=program)
    (first_status, first), (second_status, second) = tasks
    assert (first_status, second_status) == (0, 0), first + second
    assert "process 0 has 4 of 8 devices" in first
    assert "process 1 has 4 of 8 devices" in second
    assert first.count("epoch 0: ") == 1
    assert "epoch" not in second


@pytest.mark.nightly
def test_lesson_17s_script_does_not_train_alone_if_two_were_expected(tmp_path):
    command = [sys.executable, PROGRAMS["17"], tmp_path]
    for unknown in ({}, {"WORLD_SIZE": "2", "RANK": "0"}, {"SLURM_NTASKS": "2"}):
        variables = os.environ | {"PROCESSES": "2", "JAX_PLATFORMS": "cpu"} | unknown
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
        assert done.returncode == 1
        assert "coordinator_address should be defined" in done.stderr
        assert "epoch" not in done.stdout


@pytest.mark.nightly
def test_two_tasks_that_jax_does_not_connect_train_nothing(tmp_path):
    """Before 0.11.2 JAX doesn't recognize Open MPI 5, and then it wants mpi4py."""
    refusals = ("coordinator_address should be defined", "requires mpi4py")
    for status, output in run_two_tasks(OPEN_MPI_5, tmp_path):
        assert status == 1
        assert any(words in output for words in refusals), output
        assert "epoch" not in output


def test_lesson_02_averages_with_the_line_of_pmap():
    """Its text says that the line stays as it is."""
    (line,) = [
        line.partition("  #")[0]
        for line in PROGRAMS["05"].read_text().splitlines()
        if "lax.pmean" in line
    ]
    assert f"{line}\n" in build.source_of("02").read_text()
