"""Texts as tf-idf weights over the most frequent tokens of the training set, by scikit-learn's `TfidfVectorizer`.

Order and grammar are lost; how often a word stands in a text, and how rare it is, stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FEATURES = 1200


@dataclass(frozen=True)
class Tfidf:
    """Texts to tf-idf weights. All that it knows is data, and can be kept as JSON.

    Attributes:
        vocabulary: at most 1,200 tokens; token i has column i.
        idf: their inverse document frequencies.
    """

    vocabulary: list[str]
    idf: list[float]

    @classmethod
    def fit(cls, texts: Sequence[str]) -> tuple["Tfidf", np.ndarray]:
        """The view that follows from the training texts, and these texts through it, `[n, 1200]` float32."""
        vectorizer = make_vectorizer(max_features=FEATURES)
        weights = vectorizer.fit_transform(texts)
        return cls(vectorizer.get_feature_names_out().tolist(), vectorizer.idf_.tolist()), dense(weights)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """n texts as `[n, 1200]` float32 rows of length 1, or 0 where no token is known.

        The last columns stay 0 where the training set has fewer than 1,200 tokens.
        """
        vectorizer = make_vectorizer(vocabulary=self.vocabulary)
        vectorizer.idf_ = np.array(self.idf, np.float32)
        return dense(vectorizer.transform(texts))


def make_vectorizer(**settings: Any) -> Any:
    """A `TfidfVectorizer` that computes in float32; tokens are words of two letters or more, in lower case."""
    # scikit-learn takes about a second to import, which runs on other data need not spend.
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(dtype=np.float32, **settings)


def dense(weights: Any) -> np.ndarray:
    """A sparse `[n, at most 1200]` matrix as a `[n, 1200]` array."""
    weights.resize((weights.shape[0], FEATURES))
    return weights.toarray()
