"""Turn texts into the ids of their words, in order.

A text becomes 128 ids. 0 is padding, 1 a word that isn't among the 8,190 most frequent.
A longer text loses its middle.
"""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

VOCABULARY = 8192
LENGTH = 128
# Ids of padding, of a word that isn't in the vocabulary, and of its first word.
PADDING = 0
UNKNOWN = 1
FIRST_WORD = 2
TOKEN = re.compile(r"\w+(?:'\w+)?|[!?]")  # "don't" is one token


def split(text: str) -> list[str]:
    """Split a text into words in lower case and the characters ! and ?."""
    # IMDB's texts are cut out of web pages.
    return TOKEN.findall(text.lower().replace("<br />", " "))


@dataclass(frozen=True)
class Tokens:
    """Turns texts into token ids.

    The attribute is plain data, so an exported file holds it as JSON.

    Attributes:
        vocabulary: At most 8,190 tokens, the most frequent first. Token i has the id
            i + 2.
    """

    vocabulary: list[str]

    @classmethod
    def fit(cls, texts: Sequence[str]) -> "Tokens":
        """Learn the vocabulary from the training texts."""
        counts = Counter(itertools.chain.from_iterable(map(split, texts)))
        # Alphabetically among equals, so the order of the texts doesn't matter.
        by_frequency = sorted(counts, key=lambda token: (-counts[token], token))
        return cls(by_frequency[: VOCABULARY - FIRST_WORD])

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Return `[n, 128]` int32 ids.

        The id is 0 after the end of a text, and 1 for a token outside the vocabulary. A
        longer text keeps its first and its last 64 tokens: reviews tend to begin and
        to end with their verdict.
        """
        words = enumerate(self.vocabulary, start=FIRST_WORD)
        id_of = {word: number for number, word in words}
        ids = np.full((len(texts), LENGTH), PADDING, np.int32)
        for row, tokens in zip(ids, map(split, texts), strict=True):
            if len(tokens) > LENGTH:
                tokens = tokens[: LENGTH // 2] + tokens[-LENGTH // 2 :]
            row[: len(tokens)] = [id_of.get(token, UNKNOWN) for token in tokens]
        return ids
