"""Programs that call `train`: examples, other uses of JAX, notebooks, large data."""

import importlib
import re
import time
from pathlib import Path

import forks
import numpy as np
import pytest
from launch import environment, python

ROOT = Path(__file__).parents[2]
EXAMPLES = [
    ("weighted_table", {"strategy": "jit"}, lambda test: test["loss"] < 0.025),
    (
        "weighted_table",
        {"strategy": "jit", "weighted": False},
        lambda test: test["loss"] > 0.035,
    ),
    pytest.param(
        "next_token",
        {"strategy": "shard_map"},
        lambda test: test["loss"] < 2.75,
        marks=pytest.mark.nightly,
    ),
    (
        "images_in_folders",
        {"strategy": "pmap"},
        lambda test: test["examples"] == 360 and test["accuracy"] > 0.97,
    ),
]


def without_numbers(text):
    return re.sub(r"[0-9][0-9.e-]*", "N", text)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "settings", "is_reached"), EXAMPLES)
def test_an_example_reaches_what_the_page_says(
    name, settings, is_reached, tmp_path, monkeypatch, capsys
):
    """And prints what its docstring shows, but for the numbers."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    example = importlib.import_module(name)
    main = example.main
    where = tmp_path
    if name == "next_token":
        where = ROOT / "LICENSE"
    result = main(where, **settings, devices=2, progress=False, compile_cache=False)
    assert is_reached(result.epochs[-1]["test"])
    printed = without_numbers(capsys.readouterr().out).splitlines()
    shown = re.findall(r"^    (epoch .*|test .*)$", example.__doc__, re.MULTILINE)
    assert len(shown) == 2
    for line in shown:
        assert any(row.startswith(without_numbers(line)) for row in printed)
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) <= 80


@pytest.mark.slow
def test_a_line_of_jnp_before_train():
    """The run takes the device that JAX has, and its header says how to have more."""
    program = (
        "import jax.numpy as jnp; jnp.ones(3); import points; points.loss(devices=None)"
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    assert "1 CPU device on" in done.stdout
    assert (
        "call pmapdp.devices.simulate(8) before its first use for more" in done.stdout
    )


MAPPED = """
import sys
import numpy as np
from pmapdp.data.dataset import DataSet, Split
from points import loss
from small_job import OfPictures

OfPictures.size = 256 * 256 * 3
images = np.load(sys.argv[1], mmap_mode="r")
labels = np.arange(len(images)) % 2
data = DataSet(Split(images, labels), Split(images[:40], labels[:40]))
settings = {"strategy": "jit", "steps": 3, "global_batch_size": 8}
loss({"data": data}, model=OfPictures, workdir=sys.argv[2], **settings)
# Of this program alone: getrusage would begin with what its parent has taken.
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print("peak of", int(line.split()[1]) // 1024, "MiB")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "n", "most"),
    [
        ("uint8", 510_000, 1024),
        # The rows that are sampled are 8 times as wide.
        pytest.param("float64", 64_000, 1536, marks=pytest.mark.nightly),
        pytest.param("int64", 64_000, 1536, marks=pytest.mark.nightly),
    ],
)
def test_a_hundred_gigabytes_train_within_one(dtype, n, most, tmp_path):
    """Three updates from a sparse file take about a gigabyte.

    They have a workdir, for which the content of the data is sampled. The peak of the
    resident memory has the pages of the file in it.
    """
    file = tmp_path / "images.npy"
    np.lib.format.open_memmap(file, "w+", dtype, (n, 256, 256, 3))
    assert file.stat().st_size > 100e9
    done = python("-c", MAPPED, file, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert f"{n:,} to train, 40 to test, fingerprint" in done.stdout
    assert "from one in" in done.stdout
    assert int(done.stdout.split("peak of ")[1].split()[0]) < most


@pytest.mark.slow
def test_a_notebook_that_is_stopped(tmp_path, monkeypatch):
    """The kernel's stop button ends a run with a checkpoint. The next cell resumes."""
    from jupyter_client.manager import start_new_kernel

    monkeypatch.setattr(
        "jupyter_client.provisioning.local_provisioner.launch_kernel",
        forks.launch_kernel,
    )
    run = tmp_path / "run"
    manager, client = start_new_kernel(env=environment())
    try:
        cell = [
            "from points import loss",
            f"settings = dict(workdir={str(run)!r}, epochs=10**6)",
            "loss(**settings)",
        ]
        # Unless told so, the kernel drops what arrives just after the error.
        first = client.execute("\n".join(cell), stop_on_error=False)
        deadline = time.monotonic() + 120
        while not list(run.glob("checkpoints/[0-9]*")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        manager.interrupt_kernel()
        while (message := client.get_shell_msg(timeout=60))["parent_header"].get(
            "msg_id"
        ) != first:
            pass
        answer = message["content"]
        assert answer["ename"] == "StoppedError"
        assert "a checkpoint is in" in answer["evalue"]
        step = max(
            int(path.name)
            for path in run.glob("checkpoints/[0-9]*")
            if path.name.isdigit()
        )
        assert f"after step {step:,}:" in answer["evalue"]
        answer = client.execute(
            f"loss(**settings, steps={step} + 3)", reply=True, timeout=60
        )["content"]
        assert answer["status"] == "ok", answer
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert (
        f"restored from the checkpoint of step {step:,}"
        in (run / "log.txt").read_text()
    )
