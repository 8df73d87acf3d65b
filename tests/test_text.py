"""Texts as token ids."""

import numpy as np
import pytest

from fedstrata.data import Vocabulary, tokens
from fedstrata.errors import DataError, SettingError

TEXTS = ["The cat saw the dog.", "A dog, a cat; the 2nd bird!", "Dogs aren't birds"]


def test_tokens_are_words_and_numbers_in_lower_case():
    found = tokens("The 2nd CAT's tail-end: 3.14, snake_case, Überraschung!")
    assert " ".join(found) == "the 2nd cat s tail end 3 14 snake case überraschung"
    assert tokens(" ...\n") == []


def test_words_come_by_falling_count_and_ties_by_the_alphabet():
    v = Vocabulary.of(TEXTS)
    assert v.words == ("the", "a", "cat", "dog")
    assert v.ids == {"the": 2, "a": 3, "cat": 4, "dog": 5}
    assert len(v) == 6
    assert Vocabulary.of(reversed(TEXTS)) == v
    assert Vocabulary.of(TEXTS, size=4).words == ("the", "a")
    assert Vocabulary.of(TEXTS, min_count=1).words[4:6] == ("2nd", "aren")
    assert Vocabulary.of([]).words == ()


def test_texts_are_cut_and_padded():
    ids = Vocabulary.of(TEXTS).encode(["The dog saw THE cat and the dog", "a unicorn", ""], length=5)
    assert ids.dtype == np.int64
    assert ids.tolist() == [[2, 5, 1, 2, 4], [3, 1, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert Vocabulary.of(TEXTS).encode([], 3).shape == (0, 3)


def test_a_vocabulary_travels_as_json():
    v = Vocabulary.of(["naïve naïve \u2028 word word"])
    assert Vocabulary.from_json(v.to_json()) == v
    for wrong in ("{", '{"a": 1}', "[1]", '["a", "a"]'):
        with pytest.raises(DataError, match="vocabulary"):
            Vocabulary.from_json(wrong)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(SettingError, match="size must be at least 2"):
        Vocabulary.of(TEXTS, size=1)
    with pytest.raises(SettingError, match="several texts; got a single one"):
        Vocabulary.of("one text")
    with pytest.raises(SettingError, match="length must be at least 1"):
        Vocabulary.of(TEXTS).encode(TEXTS, 0)
    with pytest.raises(SettingError, match="several texts"):
        Vocabulary.of(TEXTS).encode("one text", 3)
