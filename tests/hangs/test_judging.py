"""What the harness takes for right, of verdicts written down by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.hangs.judging import (
    LOCAL_ACCUSED,
    WRONG_KIND,
    WRONG_LINE,
    WRONG_PROCESS,
    WRONG_THREAD,
    find_misses,
    list_false_alarms,
    names_odd_one,
)
from tests.hangs.programs import HANGS, PROGRAMS, Culprit
from tests.programs.causes.running import Verdict
from tests.programs.hangs.table import ALIVE_ROWS, ROWS, Row

RANK = Culprit(
    pid=412,
    parent=400,
    tid=412,
    thread="MainThread",
    rank=1,
    worker=-1,
    function="read_settings",
    file="missing_rank.py",
    lines=(27, 28),
)
WORKER = Culprit(
    pid=512,
    parent=412,
    tid=512,
    thread="MainThread",
    rank=1,
    worker=3,
    function="stick",
    file="blocked_fifo.py",
    lines=(20,),
)


def row(name: str) -> Row:
    return next(one for one in ROWS if one.name == name)


def hung(cause: str, summary: str, **more: object) -> Verdict:
    return Verdict("hung", cause, 20.0, {"kind": "hung", "cause": cause, "summary": summary, **more})


def test_a_rank_is_named_by_its_number_or_its_pid_and_its_line_by_either_line():
    for summary in ("rank 1 is in missing_rank.py:27", "process 412 is in read (missing_rank.py:28)"):
        assert find_misses(row("missing_rank"), [RANK], hung("missing-rank", summary)) == ()


@pytest.mark.parametrize(
    ("cause", "summary", "misses"),
    [
        ("no-progress", "rank 1 is in missing_rank.py:27", (WRONG_KIND,)),
        ("missing-rank", "rank 11 is in missing_rank.py:27", (WRONG_PROCESS,)),
        ("missing-rank", "process 4120 is in missing_rank.py:27", (WRONG_PROCESS,)),
        ("missing-rank", "rank 1 is in missing_rank.py:270", (WRONG_LINE,)),
        ("missing-rank", "rank 1 is in other_missing_rank.py:27", (WRONG_LINE,)),
        ("missing-rank", "rank 0 is in loop.py:8", (WRONG_PROCESS, WRONG_LINE)),
    ],
)
def test_what_is_not_right_is_told(cause: str, summary: str, misses: tuple[str, ...]):
    assert find_misses(row("missing_rank"), [RANK], hung(cause, summary)) == misses


def test_the_evidence_names_as_well_as_the_summary():
    evidence = [{"name": "rank 1", "text": "read_settings missing_rank.py:27"}]
    assert find_misses(row("missing_rank"), [RANK], hung("missing-rank", "", evidence=evidence)) == ()
    other = [{"name": "rank 0 (411)", "text": "all_reduce missing_rank.py:27"}, *evidence]
    said = hung("missing-rank", "rank 1 waits for rank 0", evidence=other)
    assert find_misses(row("missing_rank"), [RANK], said) == (WRONG_PROCESS,)


def test_a_worker_is_not_named_by_its_rank_but_the_one_who_waits_for_it_is():
    place = "rank 1 waits for a worker at blocked_fifo.py:20"
    assert find_misses(row("blocked_fifo"), [WORKER], hung("blocked-io", place)) == (WRONG_PROCESS,)
    assert find_misses(row("blocked_fifo"), [WORKER], hung("blocked-io", f"{place} (512)")) == ()
    assert find_misses(row("lost_batch"), [WORKER], hung("lost-batch", "rank 1 waits")) == ()


def test_of_a_lock_the_thread_that_is_not_the_main_one_is_named_by_its_number_or_its_name():
    loop = replace(RANK, file="lock_order.py", lines=(33,))
    flusher = replace(loop, tid=419, thread="log-flusher", lines=(20,))
    said = "rank 1 (412) is in add_up lock_order.py:33, waiting for a lock; perhaps held by "
    for words in ("thread log-flusher (419)", "thread log-flusher", "thread Thread-1 (419)"):
        assert find_misses(row("lock_order"), [loop, flusher], hung("lock", said + words)) == ()
    for words in ("thread log-flusher-2", "thread metrics (4190)", "another thread", "thread Thread-1 (412)"):
        misses = find_misses(row("lock_order"), [loop, flusher], hung("lock", said + words))
        assert misses == (WRONG_THREAD,), words
    row_of_other = [{"name": "rank 1 (412)", "text": "add_up lock_order.py:33"}, {"name": "thread log-flusher"}]
    told = hung("lock", "rank 1 is in lock_order.py:33", evidence=row_of_other)
    assert find_misses(row("lock_order"), [flusher], told) == (WRONG_LINE, WRONG_THREAD)
    assert find_misses(row("spin"), [replace(RANK, file="spin.py")], hung("spin", "rank 1, spin.py:27")) == ()


def test_a_rank_that_is_here_is_not_accused_of_a_hang_elsewhere():
    said = hung("remote-rank", "all 2 ranks here wait; 2 ranks are elsewhere")
    assert find_misses(row("remote_rank"), [RANK], said) == ()
    accusing = hung("remote-rank", "rank 1 is in loop.py:8; 2 ranks are elsewhere")
    assert find_misses(row("remote_rank"), [RANK], accusing) == (LOCAL_ACCUSED,)


def test_a_fold_must_name_the_rank_elsewhere_with_its_line():
    """The verdict of the hosts that wait names no line, as none is there to be seen."""

    def folded(**more: object) -> dict[str, object]:
        return {"odd_one_out": {"rank": 1, "pid": 412, "doing": "hold missing_rank.py:27", **more}}

    assert names_odd_one(folded(), RANK)
    assert not names_odd_one(folded(rank=2), RANK)
    assert not names_odd_one(folded(pid=4120), RANK)
    assert not names_odd_one(folded(doing="hold missing_rank.py:270"), RANK)
    assert not names_odd_one({}, RANK)


def test_a_slow_program_that_is_called_hung_once_is_a_false_alarm():
    said = [Verdict("compute-bound", "cpu", 1.0), hung("spin", "rank 0 spins"), Verdict("balanced", "", 3.0)]
    assert list_false_alarms(said) == ("hung spin at 20 s: rank 0 spins",)


def test_every_row_has_its_program_and_every_program_a_row():
    scripts = {one.script for one in (*ROWS, *ALIVE_ROWS)}
    assert [name for name in scripts if not (PROGRAMS / name).is_file()] == []
    shared = {f"{HANGS}/{name}.py" for name in ("__init__", "hang", "table")}
    assert {f"{HANGS}/{path.name}" for path in (PROGRAMS / HANGS).glob("*.py")} - shared <= scripts
