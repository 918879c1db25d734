"""The synthetic reviews, and the two views of texts: tf-idf weights and token ids."""

import hashlib
import re

import numpy as np
import pytest
from examples import parts

from pmapdp.data import reviews
from pmapdp.data.tfidf import Tfidf
from pmapdp.data.tokens import LENGTH, Tokens, split
from pmapdp.registry import MODELS, load_data, viewed

SHA256 = "d64fd9cc84fc9862d01a5b7e9c37e03ae09ef10b4f5719a63ba6442f210eb844"


@pytest.fixture(scope="module")
def corpus():
    return load_data("reviews")


def test_reviews_never_change(corpus):
    """Figures of different versions of this project can be compared only as long as this hash stands."""
    lines = [f"{label} {text}" for part in parts(corpus) for text, label in zip(part.texts, part.labels, strict=True)]
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == SHA256


def test_reviews_are_balanced_and_all_different(corpus):
    assert [np.bincount(part.labels).tolist() for part in parts(corpus)] == [[2000, 2000], [500, 500]]
    assert len({text for part in parts(corpus) for text in part.texts}) == 5000


def test_a_reader_who_minds_negations_finds_the_class(corpus):
    """Another way to the label than the grammar's: adjectives and negations by their letters, then the majority."""
    polarity = {word: 2 * number - 1 for number, words in enumerate(reviews.ADJECTIVES) for word in words}
    negations = re.compile(r"\b(not|never|nobody|anything but)\b")
    for part in parts(corpus):
        for text, label in zip(part.texts, part.labels, strict=True):
            total = 0
            for sentence in re.split(r"[.!]", text.lower()):
                found = [polarity[word] for word in sentence.split() if word in polarity]
                total += sum(found) * (-1 if negations.search(sentence) else 1)
            assert (total > 0) == label, text


def test_tfidf_equals_scikit_learn(corpus):
    """float64 and its own vocabulary there; the columns beyond the vocabulary are 0."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes a second

    data, _ = viewed(load_data("reviews"), MODELS["text_mlp"])
    vectorizer = TfidfVectorizer(max_features=1200)
    wanted = vectorizer.fit_transform(corpus.train.texts).toarray(), vectorizer.transform(corpus.test.texts).toarray()
    for found, weights in zip(parts(data), wanted, strict=True):
        assert found.inputs.shape == (len(weights), 1200)
        assert found.inputs.dtype == np.float32
        np.testing.assert_allclose(found.inputs[:, : weights.shape[1]], weights, atol=1e-6)
        assert not found.inputs[:, weights.shape[1] :].any()


def test_tfidf_keeps_the_most_frequent_tokens():
    texts = [" ".join(f"w{number}" for number in range(count)) for count in range(1, 1302)]
    view, weights = Tfidf.fit(texts)
    assert sorted(view.vocabulary) == sorted(f"w{number}" for number in range(1200))
    assert weights.shape == (1301, 1200)
    np.testing.assert_array_equal(view(["unheard of"]), np.zeros((1, 1200), np.float32))


@pytest.mark.parametrize("kind", [Tfidf, Tokens])
def test_a_view_made_of_its_data_is_the_same_view(corpus, kind):
    """As after reading an exported file: bit for bit what the training set went through."""
    view, inputs = kind.fit(corpus.train.texts)
    again = kind(**{name: value for name, value in vars(view).items() if name in ("vocabulary", "idf")})
    np.testing.assert_array_equal(again(corpus.train.texts), inputs)


def test_tokens_by_hand():
    assert split("I don't LIKE it.<br /><br />Caf\u00e9 no. 7, really?!") == [
        *("i", "don't", "like", "it", "caf\u00e9", "no", "7", "really", "?", "!")
    ]
    view, ids = Tokens.fit(["good good film", "bad film good", ""])
    assert view.vocabulary == ["good", "film", "bad"]  # by frequency, then by letters
    assert ids.shape == (3, LENGTH)
    assert ids.dtype == np.int32
    assert ids[:, :4].tolist() == [[2, 2, 3, 0], [4, 3, 2, 0], [0, 0, 0, 0]]
    assert not ids[:, 4:].any()
    assert view(["bad unheard film"])[0, :4].tolist() == [4, 1, 3, 0]


def test_a_long_text_keeps_its_beginning_and_its_end():
    view, _ = Tokens.fit([" ".join(f"w{number}" for number in range(300))])
    ids = {token: number + 2 for number, token in enumerate(view.vocabulary)}
    for words in (LENGTH, LENGTH + 1, 300):
        wanted = [*range(LENGTH // 2), *range(words - LENGTH // 2, words)]
        assert view([" ".join(f"w{number}" for number in range(words))])[0].tolist() == [ids[f"w{n}"] for n in wanted]


def test_the_vocabulary_has_its_limit():
    texts = [" ".join(f"w{number}" for number in range(9000)), " ".join(f"w{number}" for number in range(100))]
    view, ids = Tokens.fit(texts)
    assert len(view.vocabulary) == 8190
    assert ids.max() < 8192
