"""Texts as the ids of their words, in order, for a model that reads them one after the other."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

VOCABULARY = 8192
LENGTH = 128
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
TOKEN = re.compile(r"\w+(?:'\w+)?|[!?]")  # "don't" is one token


def split(text: str) -> list[str]:
    """The tokens of a text: words in lower case, with what follows an apostrophe, and the characters ! and ?."""
    return TOKEN.findall(text.lower().replace("<br />", " "))  # IMDB's are cut out of web pages


@dataclass(frozen=True)
class Tokens:
    """Texts to token ids. All that it knows is data, and can be kept in a file.

    Attributes:
        vocabulary: at most 8,190 tokens, the most frequent first; token i has the id i + 2.
    """

    vocabulary: list[str]

    @classmethod
    def fit(cls, texts: Sequence[str]) -> tuple["Tokens", np.ndarray]:
        """The view that follows from the training texts, and these texts through it, `[n, 128]` int32."""
        counts = Counter(itertools.chain.from_iterable(map(split, texts)))
        by_frequency = sorted(counts, key=lambda token: (-counts[token], token))
        view = cls(by_frequency[: VOCABULARY - FIRST_WORD])
        return view, view(texts)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """n texts as `[n, 128]` int32 ids: 0 after the end of a text, 1 for a token outside the vocabulary.

        A longer text keeps its first and its last 64 tokens: reviews tend to begin and to end with their verdict.
        """
        known = {token: number for number, token in enumerate(self.vocabulary, start=FIRST_WORD)}
        ids = np.full((len(texts), LENGTH), PADDING, np.int32)
        for row, tokens in zip(ids, map(split, texts), strict=True):
            kept = tokens if len(tokens) <= LENGTH else tokens[: LENGTH // 2] + tokens[-LENGTH // 2 :]
            row[: len(kept)] = [known.get(token, UNKNOWN) for token in kept]
        return ids
