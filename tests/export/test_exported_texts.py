"""Exported text models: strings in, classes out, through the vocabulary in the file."""

import json
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest
from archives import pack, unpack

from pmapdp import cli
from pmapdp.config import Config
from pmapdp.evaluate.__main__ import main as evaluate
from pmapdp.export import __main__ as export
from pmapdp.export.read import load_exported
from pmapdp.export.write import export_model
from pmapdp.predict import main as predict
from pmapdp.registry import MODELS, featurize, load_data
from pmapdp.state import Task, build, create_state
from pmapdp.train import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run on the synthetic reviews, the file exported from it, and its last metrics."""
    folder = tmp_path_factory.mktemp("texts")
    workdir, file = str(folder / "run"), str(folder / "sentiment.zip")
    config = Config(
        model="text_mlp",
        dataset="reviews",
        strategy="jit",
        devices=8,
        global_batch_size=64,
        epochs=3,
        optimizer="sgd",
        learning_rate=0.64,
        schedule="cosine",
        workdir=workdir,
        progress=False,
        compile_cache=False,
    )
    epochs = train(config).epochs
    assert cli.run(export.main, [workdir, file]) == 0
    return file, epochs[-1]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    """A transformer as it begins, and the file exported from it."""
    task = Task(build(MODELS["transformer"]), optax.identity())
    state = create_state(task)
    path = tmp_path_factory.mktemp("transformer") / "model.zip"
    data, view = featurize(load_data("reviews"), MODELS["transformer"])
    metadata = {"labels": ["negative", "positive"]}
    export_model(task, state, path, examples=data.test, metadata=metadata, view=view)
    return task.model_with(state.params, state.model_state), path


def test_the_run_learns(run):
    """Half would be chance; counting words gets no further than about 0.8."""
    assert run[1]["test"]["accuracy"] > 0.7


def test_same_accuracy_through_strings(run, capsys):
    file, expected = run
    texts, labels = load_data("reviews").test
    exported = load_exported(file)
    classes = exported.outputs(exported.view(texts))["logits"].argmax(-1)
    assert (classes == labels).mean() == expected["test"]["accuracy"]
    capsys.readouterr()
    assert cli.run(evaluate, [file, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["test"]["accuracy"] == expected["test"]["accuracy"]
    assert result["test"]["loss"] == pytest.approx(expected["test"]["loss"], abs=1e-6)
    assert result["test"]["examples"] == 1000


@pytest.mark.slow
def test_transformer_same_logits_through_strings(transformer):
    model, path = transformer
    exported = load_exported(path)
    found = exported.outputs(exported.view(load_data("reviews").test.texts[:20]))["logits"]
    wanted = jax.jit(model.__call__)(featurize(load_data("reviews"), MODELS["transformer"])[0].test.inputs[:20])
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_features_equal_those_of_training(run):
    """Those of scikit-learn, fitted to the training set."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes a second

    corpus = load_data("reviews")
    vectorizer = TfidfVectorizer(max_features=1200, dtype=np.float32).fit(corpus.train.texts)
    wanted = vectorizer.transform(corpus.test.texts).toarray()
    found = load_exported(run[0]).view(corpus.test.texts)
    np.testing.assert_array_equal(found[:, : wanted.shape[1]], wanted)
    assert not found[:, wanted.shape[1] :].any()


@pytest.mark.slow
def test_what_is_in_the_file(run, transformer):
    files = unpack(run[0])
    metadata = json.loads(files["metadata.json"])
    assert metadata["view"] == "tfidf"
    assert metadata["input"] == {"dtype": "float32", "shape": ["batch", 1200]}
    assert metadata["labels"] == ["negative", "positive"]
    view = json.loads(files["view.json"])
    assert len(view["vocabulary"]) == len(view["idf"])
    files = unpack(transformer[1])
    metadata = json.loads(files["metadata.json"])
    assert (metadata["view"], metadata["input"]) == ("tokens", {"dtype": "int32", "shape": ["batch", 128]})
    assert list(json.loads(files["view.json"])) == ["vocabulary"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "view",
    [[], {}, {"vocabulary": 5}, {"vocabulary": [["a"]]}, {"vocabulary": ["a"], "idf": [1, 2]}, {"words": ["a"]}],
    ids=str,
)
def test_vocabularies_of_another_form(run, transformer, capsys, tmp_path, view):
    for file in (run[0], transformer[1]):
        forged = unpack(file) | {"view.json": json.dumps(view).encode()}
        (tmp_path / "forged.zip").write_bytes(pack(forged))
        assert cli.run(predict, [str(tmp_path / "forged.zip"), *TEXTS]) == 2
        assert "forged.zip is damaged, or is no exported model (" in capsys.readouterr().err


TEXTS = ["The music was wonderful. I found the cast superb!", "The plot was dull. The ending was terrible."]


def lines_of(capsys, *arguments):
    assert cli.run(predict, list(arguments)) == 0
    return capsys.readouterr().out.splitlines()


def test_texts_on_the_command_line(run, capsys):
    first, second = (line.split(maxsplit=2) for line in lines_of(capsys, run[0], *TEXTS))
    assert [first[0], second[0]] == ["positive", "negative"]
    assert [first[2], second[2]] == TEXTS
    assert 0.5 < float(first[1]) <= 1

    results = [json.loads(line) for line in lines_of(capsys, run[0], "--json", *TEXTS)]
    assert [result["text"] for result in results] == TEXTS
    assert [result["class"] for result in results] == ["positive", "negative"]
    for result in results:
        assert list(result["probabilities"]) == ["negative", "positive"]
        assert result["probability"] == max(result["probabilities"].values())


@pytest.mark.slow
def test_lines_of_a_file_and_of_standard_input(run, capsys, tmp_path):
    long = "A wonderful film. " * 20
    content = "\r\n\r\n".join([*TEXTS, long, "\u00e7a alors"]).encode("utf-8-sig")
    (tmp_path / "texts.txt").write_bytes(content)
    lines = lines_of(capsys, run[0], "--lines", str(tmp_path / "texts.txt"))
    assert [line.split()[0] for line in lines[:3]] == ["positive", "negative", "positive"]
    assert lines[2].endswith("film. A...")
    assert len(lines[2]) < 90
    assert lines[3].endswith("\u00e7a alors")
    command = [sys.executable, "-m", "pmapdp.predict", run[0], "--lines", "-"]
    done = subprocess.run(command, input=content, capture_output=True, timeout=300, check=True)
    assert done.stdout.decode().splitlines() == lines


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "INPUT is missing: try python -m pmapdp.predict FILE"),
        (["--lines", "missing.txt"], "missing.txt cannot be read (No such file or directory): name a file with one"),
        (["--lines", "."], ". cannot be read (it is a folder, a named pipe or a device): name a file"),
        (["--lines", "latin.txt"], "latin.txt is no text in UTF-8"),
        (["--lines", "empty.txt"], "empty.txt holds no text: write one text a line"),
        (["--line", "texts.txt"], "unknown argument '--line': did you mean '--lines'?"),
        (["-x"], "unknown argument '-x'"),
    ],
)
def test_mistakes(run, capsys, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / "empty.txt").write_text("\n \n")
    assert cli.run(predict, [run[0], *arguments]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"error: {sentence.replace('FILE', run[0])}")
    assert output.err.count("\n") == 1
    assert output.out == ""
