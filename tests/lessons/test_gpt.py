"""Lesson 19's program: one result on one device, on eight, in two processes and after a
kill.

A smaller network and text than the lesson's, so that most of the time goes into
starting the processes.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import build
import numpy as np
import pytest
from notebooks import figures

from pmapdp.lessons.programs import launch

PROGRAM = build.FOLDER / "program" / "19_gpt.py"
SMALL = {
    "BYTES = 80_000": "BYTES = 20_000",
    "WIDTH = 96": "WIDTH = 64",
}
# Four decimals are printed. In float32 another order of the sums changed the last one
# by 1 at most.
TOLERANCE = 2.5e-4


# What lesson 19 changes for a longer run, which takes 16 minutes on two busy cores.
LONGER = {
    "BYTES = 80_000": "BYTES = 1_000_000",
    "WIDTH = 96": "WIDTH = 128",
    "LAYERS = 1": "LAYERS = 4",
    "EPOCHS = 3": "EPOCHS = 4",
    "PEAK_RATE = 5e-3": "PEAK_RATE = 2e-3",
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


def kill_after_first_epoch(process: subprocess.Popen[str], folder: Path) -> None:
    while not (folder / "0").exists() and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    output, _ = process.communicate()
    assert process.returncode == -9, output


@pytest.mark.slow
def test_a_batch_that_the_devices_cannot_share_gets_a_plain_message(tmp_path):
    run = subprocess.run(
        [sys.executable, PROGRAM, str(tmp_path / "run")],
        env=os.environ | {"DEVICES": "16"},
        capture_output=True,
        text=True,
    )
    last_line = run.stderr.splitlines()[-1]
    assert last_line == "AssertionError: B = 16 is not divisible by K = 2 x 16 devices"


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
    assert "\n".join(f"# {setting}" for setting in LONGER.values()) in lesson
    assert "The test loss\n# fell to 1.57" in lesson
    program = write_program(tmp_path, LONGER)
    run = subprocess.run(
        [sys.executable, program, str(tmp_path / "longer")],
        env=os.environ | {"DEVICES": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    losses = figures(run.stdout)
    assert losses.shape == (4, 2)
    np.testing.assert_allclose(losses[-1, 1], 1.57, atol=0.3)
    text = run.stdout.partition(f"epoch {len(losses) - 1}:")[2].partition("\n")[2]
    written = re.findall("[A-Za-z]{3,}", text[64:])  # behind the given beginning
    library = "".join(
        path.read_text() for path in sorted(Path(os.__file__).parent.glob("*.py"))
    )
    known = set(re.findall("[A-Za-z]{3,}", library))
    share = np.mean([word in known for word in written])
    assert share > 0.8, written
