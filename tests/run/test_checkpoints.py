"""Checkpoints hold the state of the call; the newest and the best stay, and another run's are refused."""

import asyncio
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from points import DATA, FiveClasses, Net, run

from pmapdp.config import Config
from pmapdp.errors import DivergedError, UserError
from pmapdp.run.checkpoints import Checkpoints
from pmapdp.state import Task, build, create_state
from pmapdp.train import Custom, load_run, prepare


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_it_holds_the_state_of_the_call(tmp_path):
    """The next update takes over the memory of the state while the checkpoint is being written."""
    config = Config(strategy="jit", devices=4, shard_state="parameters", global_batch_size=20)
    job = prepare(config, Custom(model=Net, data=DATA))
    state = create_state(job.task, job.strategy.state_sharding)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    saved = {}
    for step, (batch, _) in enumerate(zip(job.batches["train"].epoch(0), range(3), strict=False), start=1):
        state, _ = job.strategy.train_step(state, job.strategy.place_batch(batch))
        saved[step] = jax.tree.map(jnp.copy, state)
        checkpoints.save(step, state, {})
    state, _ = job.strategy.train_step(state, job.strategy.place_batch(batch))
    checkpoints.wait()
    assert checkpoints.steps() == [1, 2, 3]
    for step, expected in saved.items():
        assert_same(checkpoints.read(step, job.task).state, expected)
    checkpoints.close()


def test_the_newest_and_the_best_stay_in_a_folder_of_any_name(tmp_path):
    folder = tmp_path / "run[1] {a,b}*?$~'\" ü☃" / "checkpoints"
    task = Task(build(Net), optax.sgd(0.1))
    state, checkpoints = create_state(task), Checkpoints(folder, keep=2)
    for step in range(1, 7):
        checkpoints.save(step, jax.device_put(state), {"best": {"step": min(3, step)}})
    checkpoints.close()
    reader = Checkpoints(folder, read_only=True)
    assert reader.steps() == [3, 5, 6]
    assert_same(reader.read(3, task).state, state)
    np.testing.assert_array_equal(reader.read_weights(6)["head.bias"], state.params["head"]["bias"])


def test_a_run_in_float64_resumes_where_an_event_loop_runs_as_in_a_notebook(tmp_path):
    async def resume():
        return run(workdir=str(tmp_path), dtype="float64", epochs=2)

    run(workdir=str(tmp_path), dtype="float64", epochs=1)
    assert asyncio.run(resume()).epochs[-1]["step"] == 10


def test_what_is_being_written_is_left_alone_by_readers_and_removed_by_the_next_start(finished, folder):
    half_written = folder / "checkpoints" / "99.orbax-checkpoint-tmp"
    half_written.mkdir()
    assert_same(load_run(folder, model=Net)[1], finished[1].state)
    assert half_written.is_dir()
    assert run(workdir=str(folder), epochs=2).epochs == []
    assert not half_written.exists()


def test_a_finished_run_is_trained_on_by_more_epochs(folder):
    """With a constant rate two epochs and then another are three; settings that change no result may change."""
    found = run(workdir=str(folder), epochs=3, keep_checkpoints=1, checkpoint_every=3)
    assert_same(found.state, run(epochs=3).state)
    assert "restored from the checkpoint of step 10\n" in (folder / "log.txt").read_text()
    assert load_run(folder, model=Net)[0].keep_checkpoints == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"epochs": 1}, r"differs in epochs \(2 there, 1 now\)"),
        ({"epochs": 3, "learning_rate": 1e-4}, r"learning_rate \(0.005 there, 0.0001 now\)"),
    ],
)
def test_nothing_else_of_it_can_be_changed(folder, changes, sentence):
    before = (folder / "config.json").read_bytes()
    with pytest.raises(UserError, match=sentence):
        run(workdir=str(folder), **changes)
    assert (folder / "config.json").read_bytes() == before


def test_a_run_that_has_not_ended_keeps_its_epochs(tmp_path):
    settings = {"workdir": str(tmp_path / "run"), "epochs": 2}
    run(**settings, steps=7)
    with pytest.raises(UserError, match=r"step 7 in .* differs in epochs \(2 there, 3 now\)"):
        run(**settings | {"epochs": 3})


def test_checkpoints_of_another_run_are_refused_also_beside_its_config_json(folder):
    settings = json.loads((folder / "config.json").read_text())
    settings["config"]["seed"] = 7
    (folder / "config.json").write_text(json.dumps(settings))
    for read in (lambda: run(workdir=str(folder), epochs=2, seed=7), lambda: load_run(folder, model=Net)):
        with pytest.raises(UserError, match=r"the checkpoint of step 10 .*seed \(0 there, 7 now\)"):
            read()


def test_a_model_that_was_edited_is_no_damage(finished, folder):
    edited = type(Net)("Net", (FiveClasses,), {})
    for read in (lambda: run(edited, workdir=str(folder), epochs=2), lambda: load_run(folder, model=edited)):
        with pytest.raises(
            UserError, match=r"another model .*, in which params.head.bias has the shape \[3\], now \[5\]"
        ):
            read()
    assert_same(load_run(folder, model=Net)[1], finished[1].state)


def test_a_state_that_is_not_finite_is_never_saved(tmp_path):
    """The loss of the update that makes it so is still finite."""
    rule = {"optimizer": lambda schedule: optax.chain(optax.sgd(schedule), optax.scale(np.inf))}
    with pytest.raises(DivergedError, match="the state is not finite after step 1"):
        run(own=rule, workdir=str(tmp_path / "run"), checkpoint_every=1)
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_a_checkpoint_without_its_checksum_is_refused(finished, folder):
    file = folder / "checkpoints" / "10" / "progress" / "metadata"
    progress = json.loads(file.read_text())
    progress["last"]["train"]["loss"] += 1
    file.write_text(json.dumps(progress))
    with pytest.raises(UserError, match=r"its numbers are not those that were written\): .* delete .*checkpoints/10,"):
        run(workdir=str(folder), epochs=2)
    shutil.rmtree(folder / "checkpoints" / "10")
    assert_same(run(workdir=str(folder), epochs=2).state, finished[1].state)


def test_a_full_disk_is_found_before_anything_is_written(tmp_path, monkeypatch):
    checkpoints, state = Checkpoints(tmp_path / "checkpoints"), create_state(Task(build(Net), optax.sgd(0.1)))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(UserError, match=r"could not be written .*No space left on device.* those before it are intact"):
        checkpoints.save(1, jax.device_put(state), {})
    assert checkpoints.steps() == []
