"""Texts as scikit-learn's tf-idf weights.

They say how often a token occurs in a text and how rare it is, but not in which order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pmapdp.errors import UserError

FEATURES = 1200


@dataclass(frozen=True)
class Tfidf:
    """Turns texts into tf-idf weights.

    The attributes are plain data, so an exported file holds them as JSON.

    Attributes:
        vocabulary: The most frequent tokens of the training set, at most 1,200. Token i
            has column i.
        idf: Their inverse document frequencies.
    """

    vocabulary: list[str]
    idf: list[float]

    @classmethod
    def fit(cls, texts: Sequence[str]) -> "Tfidf":
        """Learn vocabulary and frequencies from the training texts."""
        vectorizer = make_vectorizer(max_features=FEATURES).fit(texts)
        vocabulary = vectorizer.get_feature_names_out().tolist()
        return cls(vocabulary, vectorizer.idf_.tolist())

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return `[n, 1200]` float32 rows of length 1.

        A text without a known token has a row of zeros. The last columns stay 0 if the
        training set has fewer than 1,200 tokens.
        """
        vectorizer = make_vectorizer(vocabulary=self.vocabulary)
        vectorizer.idf_ = np.array(self.idf, np.float32)
        weights = vectorizer.transform(texts)  # sparse, [n, at most 1200]
        # The model has a fixed number of inputs, also if the vocabulary is smaller.
        weights.resize((len(texts), FEATURES))
        return weights.toarray()


def make_vectorizer(**settings: Any) -> Any:
    """Make a float32 `TfidfVectorizer`.

    Its tokens are words of two letters or more, in lower case.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer  # takes a second
    except ImportError:
        advice = "run pip install scikit-learn, or use --model transformer"
        raise UserError(f"tf-idf weights need scikit-learn: {advice}") from None
    return TfidfVectorizer(dtype=np.float32, **settings)
