"""Texts as rows of token ids: a tokenizer, and a vocabulary made from the texts to train on."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedstrata.errors import DataError, check

PADDING, UNKNOWN = 0, 1
"""The ids before the first word's."""

WORD = re.compile(r"[^\W_]+")


def tokens(text: str) -> list[str]:
    """The words and numbers of a text, in lower case."""
    return WORD.findall(text.lower())


@dataclass(frozen=True)
class Vocabulary:
    """The words that have an id of their own: the first is 2, for 0 is padding and 1 every other word."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str], size: int = 20_000, min_count: int = 2) -> "Vocabulary":
        """The most frequent words, ties in the order of the alphabet: `size` ids at most, the first two included.

        Give it the texts to train on alone: test texts must not say which words are known.
        """
        check(size >= 2, f"size must be at least 2, for padding and unknown words; got {size}")
        check(not isinstance(texts, str), "a vocabulary is made of several texts; got a single one")
        counts = Counter(word for text in texts for word in tokens(text))
        often = [word for word, count in counts.items() if count >= min_count]
        return cls(tuple(sorted(often, key=lambda word: (-counts[word], word))[: size - 2]))

    def __len__(self) -> int:
        """How many ids there are, padding and unknown included."""
        return len(self.words) + 2

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each word."""
        return {word: i for i, word in enumerate(self.words, start=2)}

    def encode(self, texts: Iterable[str], length: int) -> np.ndarray:
        """The ids of each text's first words, padded, [n, length]."""
        check(length >= 1, f"length must be at least 1; got {length}")
        check(not isinstance(texts, str), "encode takes several texts; got a single one")
        rows = [[self.ids.get(word, UNKNOWN) for word in tokens(text)[:length]] for text in texts]
        encoded = np.full((len(rows), length), PADDING, dtype=np.int64)
        for row, ids in zip(encoded, rows, strict=True):
            row[: len(ids)] = ids
        return encoded

    def to_json(self) -> str:
        """As text, for `from_json`."""
        return json.dumps(self.words, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Vocabulary":
        """The vocabulary that `to_json` wrote."""
        try:
            words = json.loads(text)
        except json.JSONDecodeError as e:
            raise DataError(f"this vocabulary is not JSON: {e}") from None
        if not isinstance(words, list) or not all(isinstance(w, str) for w in words) or len(set(words)) < len(words):
            raise DataError("a vocabulary in JSON is a list of different words")
        return cls(tuple(words))
