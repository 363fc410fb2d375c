"""A row of a table that does not fit is named with its file, its row and its key."""

import pytest

from tpmon.judge.advice.choose import Explanation, Remedy, Risk
from tpmon.judge.answers.needs import Need
from tpmon.judge.knowledge import LazyTable, TableError, make_row

EXPLAINED = {"means": "It waits.", "sees": "A stack.", "confused_with": "a pause."}
REMEDY = {
    "id": "wait",
    "title": "wait",
    "applies": "It waits.",
    "not_when": "It runs.",
    "needs": ["LOCK_WAIT", "STOPPED"],
    "paste": "first\n  second",
    "ceiling": "none",
    "proof": "It runs.",
}


def test_lines_of_prose_are_joined_and_lines_to_paste_are_not():
    remedy = make_row(Remedy, "x.toml: wait", {**REMEDY, "proof": "It\n  runs.", "risk": "NUMERICS"})
    assert (remedy.proof, remedy.paste) == ("It runs.", "first\n  second")
    assert (remedy.needs, remedy.risk) == ((Need.LOCK_WAIT, Need.STOPPED), Risk.NUMERICS)
    assert make_row(Explanation, "x.toml: idle", {**EXPLAINED, "remedies": []}).remedies == ()


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"word": "x"}, "word: no such key; the keys are id, title"),
        ({"needs": ["LOCK"]}, "needs: LOCK: no Need of that name"),
        ({"needs": "LOCK_WAIT"}, "needs: 'LOCK_WAIT' is no tuple"),
        ({"needs": [3]}, "needs: 3 is no Need"),
        ({"risk": "LOW"}, "risk: LOW: no Risk of that name"),
        ({"adds_workers": 1}, "adds_workers: 1 is no bool"),
        ({"title": ["wait"]}, "title: ['wait'] is no str"),
        ({"paste": 4}, "paste: 4 is no Verbatim"),
    ],
)
def test_a_row_that_does_not_fit_says_where_and_why(row, told):
    with pytest.raises(TableError) as raised:
        make_row(Remedy, "x.toml: wait", {**REMEDY, **row})
    assert str(raised.value).startswith(f"x.toml: wait: {told}")


def test_a_row_says_which_keys_it_lacks():
    with pytest.raises(TableError, match=r"x\.toml: idle: means, confused_with: missing"):
        make_row(Explanation, "x.toml: idle", {"sees": "A stack."})


def test_a_file_is_read_when_a_row_is_looked_for_in_it_and_a_row_is_made_once():
    done: list[str] = []
    table = LazyTable(
        [lambda: done.append("one") or {"a": EXPLAINED}, lambda: done.append("two") or {"b": {}}],
        lambda key, row: done.append(key) or make_row(Explanation, key, row),
    )
    assert done == []
    assert table["a"] is table["a"]
    assert done == ["one", "a"]
    assert (len(table), list(table), "c" in table) == (2, ["a", "b"], False)
    assert done == ["one", "a", "two"]
    with pytest.raises(TableError, match=r"^b: means, sees, confused_with: missing"):
        table["b"]
