"""Folders that a run refuses, and leaves every file of as it is: those of others, and those of another run."""

import dataclasses
import json
import os
import shutil

import pytest
from run_folders import JOB, begin, change_progress, content, refusal
from running import run

from pmapdp.config import Config
from pmapdp.errors import UserError
from pmapdp.run.trained import load_run, read_config
from pmapdp.train import train

SETTINGS = dataclasses.asdict(Config())
NET = """
from flax import nnx

class Net(nnx.Module):
    def __init__(self, *, rngs, dtype, param_dtype):
        self.hidden = nnx.Linear(784, 16, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.logits = nnx.Linear(16, 10, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

    def __call__(self, inputs):
        return self.logits(nnx.relu(self.hidden(inputs.reshape(inputs.shape[0], -1))))
"""


@pytest.mark.parametrize("name", ["checkpoints/100/x", "metrics.jsonl", "log.txt"])
def test_a_folder_of_others_is_refused_and_left_as_it_is(tmp_path, name):
    file = tmp_path / "folder" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    sentence = refusal(tmp_path / "folder")
    assert f"holds {'/'.join(name.split('/')[:2])}, and no config.json says that a run of pmapdp wrote it" in sentence
    assert "name a new folder" in sentence


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "[]", '"text"', "{}", "7", "NaN", '{"config": {}}', "[" * 10_000, '{"config": ', "\0"),
        '{"config": [], "global_batch_size": 64}',
        '{"config": {}, "global_batch_size": "64"}',
        '{"config": {}, "global_batch_size": 64, "format": "another"}',
    ],
)
def test_a_config_json_that_no_run_wrote_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert "name another folder" in refusal(tmp_path)
    with pytest.raises(UserError, match="name another folder"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("model", 5), ("seed", "0"), ("epochs", None), ("learning_rate", []), ("devices", -1)]
)
def test_a_setting_of_another_type_is_refused(folder, name, value):
    file = folder / "config.json"
    document = json.loads(file.read_text())
    document["config"][name] = value
    file.write_text(json.dumps(document))
    with pytest.raises(UserError, match=rf"config.json is not as a run writes it.*{name}"):
        read_config(folder)
    assert "config.json is not as a run writes it" in refusal(folder)


def test_a_setting_that_an_earlier_version_lacks_has_its_default(folder):
    """Both in config.json and in what a checkpoint belongs to; any field may have come later."""
    document = json.loads((folder / "config.json").read_text())
    del document["config"]["seed"]
    (folder / "config.json").write_text(json.dumps(document))
    kept = json.loads((folder / "checkpoints" / "18" / "progress" / "metadata").read_text())["belongs_to"]
    del kept["seed"]
    change_progress(folder, 18, checksum=True, belongs_to=kept)
    assert "seed (0 there, 7 now)" in refusal(folder, seed=7)
    begin(folder)
    assert (folder / "checkpoints" / "18").is_dir()
    assert read_config(folder).seed == 0


@pytest.mark.parametrize("name", ["pmapdp.lock", "config.json", "log.txt", "metrics.jsonl"])
def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=f"named pipe|holds {name}"):
        begin(tmp_path)


@pytest.mark.parametrize("name", ["", "gs://bucket/run", "s3://bucket/run", "x" * 300, "run\0"])
def test_a_name_that_is_no_folder_is_refused(name):
    with pytest.raises(UserError, match=r"--workdir .*(runs/first|leave it out|mount the bucket)"):
        begin(name)


@pytest.mark.parametrize("name", ["config.json", "checkpoints/18/progress/metadata"])
def test_a_metrics_file_that_is_a_file_of_the_run_is_refused(folder, name):
    """Before anything else, also in a folder that is not there yet."""
    before = content(folder)
    for workdir in (folder, folder.parent / "later"):
        with pytest.raises(
            UserError, match=rf"--metrics-file .*{name} is a file of the run in {workdir}: name another"
        ):
            train(dataclasses.replace(JOB, workdir=str(workdir), metrics_file=os.path.relpath(workdir / name)))
    assert content(folder) == before
    assert not (folder.parent / "later").exists()


def test_links_that_lead_nowhere_are_refused(folder, tmp_path):
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").symlink_to(tmp_path / "nowhere" / "at all")
    assert "cannot be used" in refusal(folder)
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(folder / "config.json")
    assert "config.json" in refusal(folder)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"--workdir .* runs/first"):
        begin(tmp_path / "link")


# What a checkpoint belongs to


def test_checkpoints_of_another_run_are_refused_also_beside_another_config_json(folder, tmp_path):
    train(dataclasses.replace(JOB, workdir=str(tmp_path / "other"), seed=7, steps=3))
    shutil.copy(tmp_path / "other" / "config.json", folder / "config.json")
    sentence = refusal(folder, seed=7)
    assert "the checkpoint of step 18" in sentence
    assert "seed (0 there, 7 now)" in sentence
    with pytest.raises(UserError, match=r"the checkpoint of step 18 .*seed \(0 there, 7 now\)"):
        load_run(folder)


def test_without_config_json_no_checkpoint_is_taken(folder):
    (folder / "config.json").unlink()
    assert "no config.json says" in refusal(folder, seed=7)


@pytest.mark.slow
def test_checkpoints_of_another_model_of_ones_own_are_no_damage(tmp_path):
    """A file of Python keeps its name when somebody edits it."""
    (tmp_path / "net.py").write_text(NET)
    flags = ["--model", f"{tmp_path / 'net.py'}:Net", "--workdir", tmp_path / "run", "--steps", 2, "--no-progress"]
    run(*flags)
    for old, new, said in (("16", "8", "hidden.bias has the shape [16], now [8]"), ("hidden", "h", "now [16]")):
        (tmp_path / "net.py").write_text(NET.replace(old, new))
        before = content(tmp_path / "run" / "checkpoints")
        for module, arguments in (("train", flags), ("evaluate", [tmp_path / "run"])):
            _, err = run(*arguments, module=f"pmapdp.{module}", status=2)
            assert "the checkpoint of step 2 in " in err
            assert said in err
        assert content(tmp_path / "run" / "checkpoints") == before
