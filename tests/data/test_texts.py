"""The synthetic reviews, and the two featurizers of texts.

Tf-idf weights and token ids.
"""

import hashlib
import sys

import numpy as np
import pytest

from pmapdp.data.tfidf import Tfidf
from pmapdp.data.tokens import LENGTH, Tokens, split
from pmapdp.errors import UserError
from pmapdp.registry import MODELS, featurize, load_data

SHA256 = "d64fd9cc84fc9862d01a5b7e9c37e03ae09ef10b4f5719a63ba6442f210eb844"


@pytest.fixture(scope="module")
def corpus():
    return load_data("reviews")


def test_reviews_never_change(corpus):
    """Figures of different versions can be compared only as long as this hash
    stands.
    """
    lines = []
    for part in corpus.parts.values():
        for label, text in zip(part.labels, part.texts, strict=True):
            lines.append(f"{label} {text}")
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == SHA256
    assert len(set(lines)) == 5000


def test_tfidf_equals_scikit_learn(corpus):
    """float64 and its own vocabulary there; the columns beyond the vocabulary are 0."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes a second

    data, _ = featurize(corpus, MODELS["text_mlp"])
    vectorizer = TfidfVectorizer(max_features=1200)
    wanted = (
        vectorizer.fit_transform(corpus.train.texts).toarray(),
        vectorizer.transform(corpus.test.texts).toarray(),
    )
    for part, weights in zip(data.parts.values(), wanted, strict=True):
        assert (part.inputs.shape, part.inputs.dtype) == (
            (len(weights), 1200),
            np.float32,
        )
        np.testing.assert_allclose(
            part.inputs[:, : weights.shape[1]], weights, atol=1e-6
        )
        assert not part.inputs[:, weights.shape[1] :].any()


def test_tfidf_without_scikit_learn(corpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(
        UserError,
        match="need scikit-learn: run pip install scikit-learn, or use model",
    ):
        featurize(corpus, MODELS["text_mlp"])


def words(number: int, start: int = 0) -> str:
    return " ".join(f"w{number}" for number in range(start, number))


def test_the_vocabularies_have_their_limits():
    """The most frequent tokens stay."""
    tfidf = Tfidf.fit([words(1300), words(1200)])
    assert sorted(tfidf.vocabulary) == sorted(words(1200).split())
    np.testing.assert_array_equal(
        tfidf(["unheard of"]), np.zeros((1, 1200), np.float32)
    )
    texts = [words(9000), words(100)]
    assert len(Tokens.fit(texts).vocabulary) == 8190
    assert Tokens.fit(texts)(texts).max() < 8192


def test_tokens_by_hand():
    assert split("I don't LIKE it.<br /><br />Caf\u00e9 no. 7, really?!") == [
        *("i", "don't", "like", "it", "caf\u00e9", "no", "7", "really", "?", "!")
    ]
    texts = ["good good film", "bad film good", ""]
    tokens = Tokens.fit(texts)
    assert tokens.vocabulary == ["good", "film", "bad"]  # by frequency, then by letters
    ids = tokens(texts)
    assert (ids.shape, ids.dtype) == ((3, LENGTH), np.int32)
    assert ids[:, :4].tolist() == [[2, 2, 3, 0], [4, 3, 2, 0], [0, 0, 0, 0]]
    assert not ids[:, 4:].any()
    exported = Tokens(**vars(tokens))  # made of what a file keeps
    assert exported(["bad unheard film"])[0, :4].tolist() == [4, 1, 3, 0]


@pytest.mark.parametrize("length", [LENGTH, LENGTH + 1, 300])
def test_a_long_text_keeps_its_beginning_and_its_end(length):
    tokens = Tokens.fit([words(300)])
    half = LENGTH // 2
    kept = f"{words(half)} {words(length, start=length - half)}"
    np.testing.assert_array_equal(tokens([words(length)]), tokens([kept]))
