"""Lesson 19's program: one result on one device, on eight, in two processes and after a
kill.

A smaller network and text than the lesson's, so that most of the time goes into
starting the processes.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import build
import jax
import numpy as np
import pytest
from notebooks import built, figures, printed
from solutions import solutions

from pmapdp.lessons.programs import launch

PROGRAM = build.FOLDER / "program" / "19_gpt.py"
SMALL = {
    "BYTES = 70_000": "BYTES = 20_000",
    "WIDTH = 96": "WIDTH = 64",
}
# Seven decimals are printed. In float32 another order of the sums changed the last one
# by 3 at most.
TOLERANCE = 1e-6


# What lesson 19 changes for a longer run, which takes 16 minutes on two busy cores.
LONGER = {
    "BYTES = 70_000": "BYTES = 1_000_000",
    "WIDTH = 96": "WIDTH = 128",
    "LAYERS = 1": "LAYERS = 4",
    "EPOCHS = 3": "EPOCHS = 4",
    "PEAK_RATE = 5e-3": "PEAK_RATE = 2e-3",
    "TEMPERATURE = 0.7": "TEMPERATURE = 0.5",
}


BY_BACKEND = 'jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16'


def write_program(folder: Path, changes: dict[str, str]) -> str:
    """Write the program, smaller and with other changes, and return its path."""
    text = PROGRAM.read_text()
    for old, new in (SMALL | changes).items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "small_gpt.py"
    path.write_text(text)
    return str(path)


def test_each_epoch_prints_its_tokens_per_second():
    """In the notebook. Two cores' speeds say nothing, so any number will do."""
    (cell,) = [
        cell
        for cell in built(build.source_of("19")).cells
        if build.TAKE_HOME in cell.metadata.get("tags", [])
    ]
    line = r"^epoch \d: loss .* \| test: loss .* \| (\d[\d,]*) tokens/s$"
    speeds = re.findall(line, printed(cell), re.MULTILINE)
    assert len(speeds) == 3
    assert all(int(speed.replace(",", "")) > 0 for speed in speeds)


def kill_after_first_epoch(process: subprocess.Popen[str], folder: Path) -> None:
    launch.wait_for(folder / "0", process)
    process.kill()
    output, _ = process.communicate()
    assert process.returncode == -9, output


def test_the_program_has_what_lesson_19_says_each_lesson_gave_it():
    lesson = build.source_of("19").read_text()
    section = lesson.partition("# ## Read the program")[2].partition("# %%")[0]
    section = section.replace("\n# ", " ")
    numbers = set(re.findall(r"lesson (\d\d)", section))
    assert numbers == {"03", "05", "08", "09", "10", "13", "14", "16", "17", "20"}
    program = PROGRAM.read_text()
    of_exercises = {"update_once", "place_rows", "PROCESSES"}
    names = set(re.findall(r"`(\w+)`", section)) - of_exercises
    assert len(names) > 10
    for name in names:
        line = rf"^\s*(def {name}\(|(self\.)?{name} = )"
        assert re.search(line, program, re.MULTILINE), name
    for heading in ("Many processes", "Resume"):
        assert f'"{heading}"' in section
        assert re.search(rf"^# {heading} \(", program, re.MULTILINE), heading
    for call in re.findall(r"`(lax\.\w+)`", section):
        assert call == "lax.pmean" or f"{call}(" in program  # pmean is lesson 05's


ALL_REDUCES = """
import runpy, sys
from unittest import mock
import jax
from jax import lax
from pmapdp.collectives import collectives

program = runpy.run_path(sys.argv.pop(1))
train_step, batch = program["train_step"], program["place_batch"](program["batch"])
shardings, replicated = program["shardings"], program["replicated"]
options = program["options"] | {"out_shardings": (shardings, replicated)}
constrain = lax.with_sharding_constraint


def step_with(constraint):
    def step(state, batch):
        with mock.patch.object(lax, "with_sharding_constraint", constraint):
            return train_step.__wrapped__(state, batch)

    return jax.jit(step, **options)


def constrain_to_shards(gradients, sharding):
    return jax.tree.map(lambda g: constrain(g, program["shard"](g)), gradients)


parameters = jax.tree.leaves(program["state"][0])
print(len(parameters), sum(x.nbytes for x in parameters))
for constraint in (constrain, lambda x, sharding: x, constrain_to_shards):
    compiled = step_with(constraint).lower(program["state"], batch).compile()
    kinds = {message.kind: message for message in collectives(compiled.as_text())}
    reduces, gathers = kinds["all-reduce"], kinds["all-gather"]
    memory = compiled.memory_analysis().temp_size_in_bytes
    print(reduces.runs, reduces.bytes, gathers.runs, gathers.bytes, memory)
"""


@pytest.mark.nightly
def test_one_line_of_the_step_saves_seventeen_all_reduces(tmp_path):
    """Without it each array's squares are summed by an all-reduce of their own."""
    program = write_program(tmp_path, {"EPOCHS = 3": "EPOCHS = 1"})
    run = launch.start(1, "-c", ALL_REDUCES, program, str(tmp_path / "run"))
    (lines,) = launch.outputs(run)
    rows = [list(map(int, line.split())) for line in lines[-4:]]
    (arrays, size), with_line, without_line, to_shards = rows
    assert arrays == 18
    assert (with_line[0], without_line[0], to_shards[0]) == (1, 18, 18)
    assert without_line[1] - with_line[1] == 18 * 4  # 18 sums in float32
    np.testing.assert_allclose((with_line[1], with_line[3]), size, rtol=0.01)
    assert with_line[2] == without_line[2] == 18
    np.testing.assert_allclose(with_line[4], without_line[4], rtol=0.01)


@pytest.mark.slow
def test_a_batch_that_the_devices_cannot_share_gets_a_plain_message(tmp_path):
    run = subprocess.run(
        [sys.executable, PROGRAM, str(tmp_path / "run")],
        env=os.environ | {"PROCESSES": "1", "DEVICES": "16"},
        capture_output=True,
        text=True,
    )
    last_line = run.stderr.splitlines()[-1]
    assert last_line == "AssertionError: B = 16 is not divisible by K = 2 x 16 devices"


def test_the_settings_appear_whole_in_a_folder_that_is_new(tmp_path, monkeypatch):
    """A process that reads before the rename finds no file, and writes its own."""
    check_settings = solutions("19_train_a_small_gpt")["fixed_check_settings"]
    file = tmp_path / "new" / "settings.json"
    settings = {"WIDTH": 96, "BETAS": (0.9, 0.95)}
    rename = Path.replace

    def rename_after_another_process(part, target):
        if jax.process_index() == 0:
            assert not file.exists()
            monkeypatch.setattr(jax, "process_index", lambda: 1)
            check_settings(file, settings)
        return rename(part, target)

    monkeypatch.setattr(Path, "replace", rename_after_another_process)
    assert check_settings(file, settings) == settings
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.nightly
def test_one_result_on_any_devices_in_two_processes_and_after_a_kill(tmp_path):
    program = write_program(tmp_path, {})
    lines = {}
    (lines["eight"],) = launch.outputs(launch.start(1, program, str(tmp_path / "8")))
    on_one_device = launch.start(1, program, str(tmp_path / "1"), DEVICES="1")
    (lines["one"],) = launch.outputs(on_one_device)
    in_two = launch.start(2, program, str(tmp_path / "2"))
    lines["two processes"], second = launch.outputs(in_two)

    folder = tmp_path / "killed"
    kill_after_first_epoch(launch.start(1, program, str(folder))[0], folder)
    (lines["killed"],) = launch.outputs(launch.start(1, program, str(folder)))

    losses = {name: figures("\n".join(found)) for name, found in lines.items()}
    assert losses["eight"].shape == (3, 2)
    assert losses["eight"][-1, 0] < losses["eight"][0, 0] - 0.5
    for name in ("one", "two processes"):
        np.testing.assert_allclose(losses[name], losses["eight"], atol=TOLERANCE)
    assert lines["one"][0] == "process 0 has 1 of 1 devices"
    assert lines["two processes"][0] == "process 0 has 4 of 8 devices"
    assert second == ["process 1 has 4 of 8 devices"]

    # On the same devices a resumed run has the same bits, and so writes the same text.
    (resumes,) = [line for line in lines["killed"] if line.startswith("resumes")]
    first_epoch = 1 + int(resumes.split()[-1])
    assert first_epoch in (1, 2)
    np.testing.assert_array_equal(losses["killed"], losses["eight"][first_epoch:])
    assert lines["killed"][-1] == lines["eight"][-1]


@pytest.mark.nightly
def test_bfloat16_learns_as_float32_does(tmp_path):
    """Forced on a CPU, where the program computes in float32."""
    losses = {}
    for dtype in ("float32", "bfloat16"):
        program = write_program(tmp_path, {BY_BACKEND: f"jnp.{dtype}"})
        (lines,) = launch.outputs(launch.start(1, program, str(tmp_path / dtype)))
        losses[dtype] = figures("\n".join(lines))
    np.testing.assert_allclose(losses["bfloat16"], losses["float32"], atol=0.03)
    assert (losses["bfloat16"] != losses["float32"]).any()


@pytest.mark.nightly
def test_a_longer_run_writes_words_of_the_library(tmp_path):
    """Its text and its loss differ a little between versions of Python."""
    lesson = build.source_of("19").read_text()
    assert "\n".join(f"#    {setting}" for setting in LONGER.values()) in lesson
    program = write_program(tmp_path, LONGER)
    run = subprocess.run(
        [sys.executable, program, str(tmp_path / "longer")],
        env=os.environ | {"PROCESSES": "1", "DEVICES": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    losses = figures(run.stdout)
    assert losses.shape == (4, 2)
    assert losses[-1, 1] < 1.57 + 0.3
    text = run.stdout.partition(f"epoch {len(losses) - 1}:")[2].partition("\n")[2]
    written = re.findall("[A-Za-z]{3,}", text[64:])  # behind the given beginning
    assert len(written) > 10, text
    library = "".join(
        path.read_text() for path in sorted(Path(os.__file__).parent.glob("*.py"))
    )
    known = set(re.findall("[A-Za-z]{3,}", library))
    share = np.mean([word in known for word in written])
    assert share > 0.8, written
