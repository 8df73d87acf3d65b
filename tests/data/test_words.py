"""Tables whose labels and clients are words."""

import pytest
import torch

from fedstrata.data import load_own
from fedstrata.errors import DataError

WORDS = "a,ward,label\n" + "".join(f"{i},{'xy'[i % 2]},{('dog', 'cat', 'dog')[i % 3]}\n" for i in range(30))


def test_labels_may_be_words_which_are_numbered_by_the_alphabet(tmp_path):
    (tmp_path / "words.csv").write_text(WORDS)
    data = load_own(tmp_path / "words.csv", client="ward")
    (tmp_path / "numbers.csv").write_text(WORDS.replace("cat", "0").replace("dog", "1"))
    same = load_own(tmp_path / "numbers.csv", client="ward")
    assert (data.names, same.names) == (("cat", "dog"), None)
    assert data.classes == same.classes == 2
    assert all(map(torch.equal, (*data.train, *data.test), (*same.train, *same.test)))


def test_on_a_node_words_need_an_order_since_another_node_may_have_others(tmp_path):
    (tmp_path / "words.csv").write_text(WORDS)
    with pytest.raises(
        DataError, match=r'the labels are words \(cat, dog\); say .*: classes = "cat, dog" in node.toml'
    ):
        load_own(tmp_path / "words.csv", client="ward", alone=True)
    data = load_own(tmp_path / "words.csv", client="ward", alone=True, classes=("dog", "bird", "cat"))
    assert data.classes == 3
    assert data.names == ("dog", "bird", "cat")
    assert set(torch.cat([data.train[1], data.test[1]]).tolist()) == {0, 2}
    with pytest.raises(DataError, match=r"there is no class 'dog' \(\d+ rows\); did you mean 'dogs'"):
        load_own(tmp_path / "words.csv", client="ward", alone=True, classes=("cat", "dogs"))


def test_a_column_of_clients_that_is_not_there_is_a_sentence(tmp_path):
    (tmp_path / "a.csv").write_text(WORDS.replace("ward", "1").replace("x", "0").replace("y", "1"))
    with pytest.raises(DataError, match=r"no column 'wards' for the clients; say which by --client: choose from"):
        load_own(tmp_path / "a.csv", client="wards")
    (tmp_path / "b.csv").write_text(WORDS.replace("ward,", "wards,"))
    with pytest.raises(DataError, match=r"by --client: did you mean 'wards'\?"):
        load_own(tmp_path / "b.csv", client="wrads")
    assert load_own(tmp_path / "a.csv").owner is None  # nobody asked for clients


def test_a_file_with_nearly_that_name_is_suggested(tmp_path):
    (tmp_path / "cases.csv").write_text(WORDS)
    with pytest.raises(DataError, match=r"case\.csv; did you mean 'cases\.csv'\?"):
        load_own(tmp_path / "case.csv")
