"""Checkpoints hold the state of the call; the newest and the best stay, another run's
are refused, and `--init-from` takes the weights of another run, or of an exported file,
in place of random ones."""

import asyncio
import dataclasses
import gc
import json
import logging
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import forks
import jax
import jax.numpy as jnp
import numpy as np
import optax
import points
import pytest
import small_job
from points import DATA, FiveClasses, Net, run

from pmapdp.config import Config
from pmapdp.errors import DivergedError, UserError
from pmapdp.export import export_run
from pmapdp.job import CustomParts, make_job, make_task
from pmapdp.registry import MODELS
from pmapdp.run.checkpoints import Checkpoints, hide_further_errors
from pmapdp.run.same_run import Provenance, fixed_settings, require_same_run
from pmapdp.run.saved_run import load_weights
from pmapdp.state import Task, build, create_state
from pmapdp.train import load_run

RUN = Provenance(fixed_settings(Config()), {}, {})
PROGRESS = {"examples": 0, "best": {}, "last": {}}
RATE = optax.constant_schedule(0.1)


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_it_holds_the_state_of_the_call(tmp_path):
    """The next update takes over the memory of the state while the checkpoint is being written."""
    config = Config(
        strategy="jit", devices=4, shard_state="parameters", global_batch_size=20
    )
    job = make_job(config, CustomParts(model=Net, data=DATA))
    state = job.strategy.place_state(create_state(job.task))
    checkpoints = Checkpoints(tmp_path / "checkpoints", RUN)
    saved = {}
    for step, (batch, _) in enumerate(
        zip(job.batches["train"].epoch(0), range(3), strict=False), start=1
    ):
        state, _ = job.strategy.train_step(state, job.strategy.place_batch(batch))
        saved[step] = jax.tree.map(jnp.copy, state)
        checkpoints.save(step, state, PROGRESS)
    state, _ = job.strategy.train_step(state, job.strategy.place_batch(batch))
    checkpoints.wait()
    assert checkpoints.saved_steps() == [1, 2, 3]
    for step, expected in saved.items():
        assert_same(checkpoints.read(step, job.task)[0], expected)
    checkpoints.close()


def test_the_newest_and_the_best_stay_in_a_folder_of_any_name(tmp_path):
    """In float64, and read where an event loop runs, as in a notebook."""
    folder = tmp_path / "run[1] {a,b}*?$~'\" ü☃" / "checkpoints"

    async def read(reader):
        return reader.read(3, task)[0]

    with jax.enable_x64(True):
        task = Task(build(Net, dtype="float64"), optax.sgd(0.1))
        state = create_state(task)
        checkpoints = Checkpoints(folder, RUN, keep=2)
        for step in range(1, 7):
            best = {"step": min(3, step)}
            saved = dataclasses.replace(state, step=np.int32(step))
            checkpoints.save(step, jax.device_put(saved), PROGRESS | {"best": best})
        checkpoints.close()
        reader = Checkpoints(folder, RUN, read_only=True)
        assert reader.saved_steps() == [3, 5, 6]
        found = asyncio.run(read(reader))
    assert found.params["head"]["bias"].dtype == "float64"
    assert_same(found, dataclasses.replace(state, step=np.int32(3)))


def test_what_is_being_written_is_left_alone_by_readers_and_removed_by_the_next_start(
    finished, folder
):
    """The same command again is already done."""
    half_written = folder / "checkpoints" / "99.orbax-checkpoint-tmp"
    half_written.mkdir()
    _, state, last = load_run(folder, model=Net)
    assert_same(state, finished[1].state)
    assert half_written.is_dir()
    assert run(workdir=str(folder), epochs=2).epochs == finished[1].epochs
    assert not half_written.exists()
    log = (folder / "log.txt").read_text()
    assert "restored from the checkpoint of step 10" in log
    assert log.count("test accuracy: best") == 2
    assert load_run(folder, model=Net)[2] == last


def test_a_finished_run_is_trained_on_by_more_epochs(folder):
    """With a constant rate two epochs and then another are three; settings that change no result may change."""
    found = run(workdir=str(folder), epochs=3, keep_checkpoints=1, checkpoint_every=3)
    assert_same(found.state, run(epochs=3).state)
    assert load_run(folder, model=Net)[0].keep_checkpoints == 1


Edited = type("Net", (FiveClasses,), {})


@pytest.mark.parametrize(
    ("model", "changes", "sentence"),
    [
        (Net, {"epochs": 1}, r"differs in epochs \(2 there, 1 now\)"),
        (
            Net,
            {"epochs": 3, "learning_rate": 1e-4},
            r"learning_rate \(0.005 there, 0.0001 now\)",
        ),
        (
            Edited,
            {"epochs": 2},
            r"differs in .*the shape of params.head.bias \(\[3\] there, \[5\] now\)",
        ),
    ],
)
def test_nothing_else_of_it_can_be_changed(finished, model, changes, sentence):
    """Not even the model's code; no byte of the folder is changed."""
    folder = finished[0]
    before = small_job.contents(finished[0])
    with pytest.raises(
        UserError,
        match=rf"the checkpoint of step 10 .* is of another configuration, .*{sentence}",
    ):
        run(model, workdir=str(folder), **changes)
    assert small_job.contents(folder) == before


def test_a_checkpoint_that_does_not_fit_its_folder_is_not_read(finished, folder):
    """The model was edited, or config.json was."""
    with pytest.raises(
        UserError, match=r"the shape of params.head.bias \(\[3\] there, \[5\] now\)"
    ):
        load_run(folder, model=Edited)
    settings = json.loads((folder / "config.json").read_text())
    settings["config"]["seed"] = 7
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(
        UserError, match=r"the checkpoint of step 10 .*seed \(0 there, 7 now\)"
    ):
        load_run(folder, model=Net)


def test_a_checkpoint_of_0_3_is_compared_by_its_settings():
    """It has neither learning rates nor hashes, and lacks settings that are new.

    It may have values of settings without effect, which are refused today.
    """
    config = Config(optimizer="sgd", schedule="constant")
    run = Provenance(fixed_settings(config), {"0": 0.1}, {"loss": "ab", "model": "cd"})
    saved = {name: x for name, x in run.settings.items() if name != "best"}
    saved |= {"base_batch_size": 256, "weight_decay": 0.1}
    progress = {"belongs_to": saved, "examples": 0, "last": {}, "shapes": {}}
    require_same_run("it", progress, run, {})
    saved["seed"] = 7
    with pytest.raises(UserError, match=r"it is .* seed \(7 there, 0 now\): use"):
        require_same_run("it", progress, run, {})


def test_a_run_that_has_not_ended_keeps_its_epochs(tmp_path):
    settings = {"workdir": str(tmp_path / "run"), "epochs": 2}
    run(**settings, steps=7)
    with pytest.raises(
        UserError, match=r"step 7 in .* differs in epochs \(2 there, 3 now\)"
    ):
        run(**settings | {"epochs": 3})


def test_a_state_that_is_not_finite_is_never_saved(tmp_path):
    """The loss of the update that makes it so is still finite."""
    rule = {
        "optimizer": lambda schedule: optax.chain(
            optax.sgd(schedule), optax.scale(np.inf)
        )
    }
    with pytest.raises(DivergedError, match="the state is not finite after step 1"):
        run(custom=rule, workdir=str(tmp_path / "run"), checkpoint_every=1)
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_a_checkpoint_without_its_checksum_is_refused(finished, folder):
    """The sentence says what to do: the run then goes on from the checkpoint before it, to the same bits."""
    file = folder / "checkpoints" / "10" / "progress" / "metadata"
    progress = json.loads(file.read_text())
    progress["last"]["train"]["loss"] += 1
    file.write_text(json.dumps(progress))
    with pytest.raises(
        UserError,
        match=r"its numbers are not those that were written\): .* delete .*checkpoints/10,",
    ):
        run(workdir=str(folder), epochs=2)
    with pytest.raises(
        UserError,
        match=r"its numbers are not those that were written\): name the workdir of a run",
    ):
        run(init_from=str(folder))
    shutil.rmtree(folder / "checkpoints" / "10")
    assert_same(run(workdir=str(folder), epochs=2).state, finished[1].state)


def test_a_full_disk_is_found_before_anything_is_written(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "checkpoints", RUN)
    state = create_state(Task(build(Net), optax.sgd(0.1)))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(
        UserError,
        match=r"could not be written .*No space left on device.* those before it are intact",
    ):
        checkpoints.save(1, jax.device_put(state), PROGRESS)
    assert checkpoints.saved_steps() == []


@pytest.fixture(scope="module")
def source(finished, tmp_path_factory):
    """A run of two epochs, and its exported file."""
    file = tmp_path_factory.mktemp("source") / "model.zip"
    export_run(str(finished[0]), file, model=Net, data=DATA)
    return {"run": finished[0], "file": file}


def test_a_run_starts_from_the_weights_of_another_and_says_so(finished, tmp_path):
    """With a learning rate of 0 the weights stay as they were, and update counts and moments start anew."""
    settings = {
        "workdir": str(tmp_path / "run"),
        "init_from": str(finished[0]),
        "learning_rate": 0.0,
    }
    found = run(**settings)
    assert_same(found.state.params, finished[1].state.params)
    assert (
        run(**settings, steps=5).state.step == found.state.step == 5
    )  # resumed: from its own checkpoint
    log, metrics = (
        (tmp_path / "run" / name).read_text() for name in ("log.txt", "metrics.jsonl")
    )
    assert (
        log.count(f"starts from 4 arrays of {finished[0]}, which had made 10 updates\n")
        == 1
    )
    assert '"event": "init_from"' in metrics
    with pytest.raises(
        UserError, match="differs in init_from"
    ):  # what a run began with belongs to it
        run(**settings | {"init_from": None})


@pytest.mark.parametrize("kind", ["run", "file"])
def test_another_head_starts_as_the_seed_makes_it(finished, source, kind):
    task, news = load_weights(
        make_task(Config(), CustomParts(), build(FiveClasses), RATE), str(source[kind])
    )
    np.testing.assert_array_equal(
        task.model.hidden.kernel[...], finished[1].state.params["hidden"]["kernel"]
    )
    np.testing.assert_array_equal(
        task.model.head.kernel[...], build(FiveClasses).head.kernel[...]
    )
    assert news.startswith(
        f"starts from 2 arrays of {source[kind]}, which had made 10 updates"
    )
    assert news.endswith("; as the seed makes them: head.bias, head.kernel")


def test_the_other_run_may_have_had_more_devices(finished, tmp_path):
    flags = [
        "--init-from",
        finished[0],
        "--model",
        "mlp",
        "--strategy",
        "single",
        "--steps",
        1,
    ]
    with forks.start("train", flags, tmp_path / "output"):
        pass
    assert (
        "has no array of MLP, for example no hidden1.bias"
        in (tmp_path / "output").read_text()
    )


def test_a_file_without_weights_is_one_sentence(source):
    cut = source["file"].with_name("cut")
    task = make_task(Config(), CustomParts(), build(MODELS["mlp"]), RATE)
    cut.write_bytes(source["file"].read_bytes()[:-100])
    for path, sentence in (
        (cut, r"cut is damaged or is no exported model \("),
        (source["file"], "has no array of MLP, for example no hid"),
    ):
        with pytest.raises(UserError, match=sentence):
            load_weights(task, str(path))


def test_a_folder_that_was_renamed_or_copied_is_refused(finished, folder):
    """Its name says after which update a run goes on, and what it holds is of another."""
    checkpoints = folder / "checkpoints"
    sentence = r"checkpoints/7 holds the state after update 10, so it was renamed"
    shutil.rmtree(checkpoints / "5")
    (checkpoints / "10").rename(checkpoints / "7")
    for use in (
        lambda: run(workdir=str(folder), epochs=2),
        lambda: load_run(folder, model=Net),
        lambda: run(init_from=str(folder)),
    ):
        with pytest.raises(UserError, match=sentence):
            use()
    (checkpoints / "7").rename(checkpoints / "10")
    shutil.copytree(checkpoints / "10", checkpoints / "15")
    with pytest.raises(UserError, match="15 holds the state after update 10"):
        run(workdir=str(folder), epochs=2)
    shutil.rmtree(checkpoints / "15")
    assert_same(run(workdir=str(folder), epochs=2).state, finished[1].state)


def test_checkpoints_that_are_a_file_are_one_message(folder):
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").write_text("")
    for use in (
        lambda: run(workdir=str(folder), epochs=2),
        lambda: load_run(folder, model=Net),
    ):
        with pytest.raises(UserError, match=r"checkpoints is a file, .*: move it away"):
            use()


def test_reads_that_nobody_waits_for_are_not_logged(caplog):
    """asyncio logs them if one read fails before the others. A user's own are still logged."""

    async def forget(error):
        asyncio.get_running_loop().create_future().set_exception(error)

    def forget_a_read():
        asyncio.run(forget(ValueError("DATA_LOSS: ... [tensorstore_spec='{...}']")))

    @hide_further_errors()
    def read():
        forget_a_read()
        raise ValueError("the first")

    before = (sys.unraisablehook, logging.getLogger("absl").level, warnings.filters[:])
    with pytest.raises(ValueError, match="the first"):
        read()
    assert not caplog.records
    with hide_further_errors():
        asyncio.run(forget(ValueError("the user's own")))
        gc.collect()
    forget_a_read()  # not in a read of ours
    gc.collect()
    own, foreign = caplog.records
    assert "the user's own" in own.getMessage()
    assert "tensorstore_spec" in foreign.getMessage()
    after = (sys.unraisablehook, logging.getLogger("absl").level, warnings.filters[:])
    assert after == before


@pytest.mark.parametrize("damaged", ["state/**/d/*", "state/manifest.ocdbt"])
def test_the_message_about_damaged_files_stands_alone(folder, damaged):
    """Orbax reads in parallel, and what fails after the first file has nothing new to say."""
    for file in (folder / "checkpoints" / "10").glob(damaged):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    program = f"""
import sys
from pmapdp import cli
from points import Net, run
sys.exit(cli.run(lambda _: run(workdir={str(folder)!r}, epochs=2), []))
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(points.__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert re.fullmatch(r"error: .*, or delete .*checkpoints/10, .*\n", result.stderr)
