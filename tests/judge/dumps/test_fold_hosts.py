"""Dumps of several hosts, several times, of parts of a job: what is still there, and over how long it was seen."""

import codecs
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.dumps import DECODE, HOST, make_rank, make_round, make_worker
from tests.frames import NOW
from tpmon.commands.dump import FoldOptions, pick_exit_code, run_fold
from tpmon.errors import ExitCode, UsageError
from tpmon.judge.dumps.groups import DumpOrigin, find_clash, fold_dumps, fold_rounds
from tpmon.model.codec import decode, encode
from tpmon.model.dump import Dump, DumpError, ErrorKind, Motion, ProcessLook
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Role
from tpmon.probe.records.dump_files import read_dumps
from tpmon.report.stacks import write_dump


def dump(*processes: ProcessLook, at_s: float = 0.0, host: str = HOST, pid: int = 1, **fields: Any) -> Dump:
    """Fold one look at a part of a job of four ranks."""
    origin = DumpOrigin(pid, "train.py", 4, fields.pop("not_asked", NOT_APPLICABLE))
    return fold_rounds([make_round(*processes, at_s=at_s, host=host, **fields)], origin)


WHOLE = dump(make_rank(0), make_rank(1), make_rank(2), make_rank(3, frames=DECODE))


def failed(pid: int) -> DumpError:
    return DumpError(HOST, pid, Role.RANK, 0, NOT_APPLICABLE, ErrorKind.LATE, "no answer")


# parts


def test_a_later_dump_of_one_rank_leaves_the_others_as_they_were():
    part = dump(make_rank(3, frames=DECODE), at_s=20, not_asked=3)
    folded = fold_dumps([WHOLE, part])
    assert folded.summary.startswith("3 of 4 ranks wait in all_reduce train.py:40; rank 3 is in decode")
    assert folded.summary.endswith("frozen for at least 20 s")
    assert folded.not_asked is NOT_APPLICABLE


def test_what_was_asked_for_and_is_not_there_any_more_has_ended():
    before = dump(make_rank(0), make_rank(3), make_worker(3, 0))
    thread = make_rank(3).threads[0]
    several = replace(make_rank(3), threads=(thread, replace(thread, tid=99, name="Thread-9")))
    with_thread = dump(make_rank(0), several)
    part = dump(make_rank(3), at_s=20, not_asked=1)
    pids = {(one.pid, one.tid) for group in fold_dumps([with_thread, part]).groups for one in group.threads}
    assert pids == {(4000, 4000), (4030, 4030)}
    folded = fold_dumps([before, dump(make_rank(0), make_rank(3), at_s=20)])
    assert {one.pid for group in folded.groups for one in group.threads} == {4000, 4030}


def test_parts_of_one_job_are_put_together():
    parts = [dump(make_rank(rank), at_s=5.0 * rank, not_asked=3) for rank in (0, 1)]
    assert fold_dumps(parts).not_asked == 2


def test_errors_of_the_rest_stay_with_a_part():
    whole = replace(WHOLE, errors=(failed(4000), failed(4030)))
    part = dump(make_rank(3), at_s=20, not_asked=3)
    assert [one.pid for one in fold_dumps([whole, part]).errors] == [4000]


# machines of one name


def test_two_machines_of_one_name_are_told_by_their_ranks():
    first = dump(make_rank(0, pid=50), make_rank(1, pid=51), host="localhost")
    same = dump(make_rank(2, pid=50), make_rank(3, pid=51), host="localhost", at_s=0.4)
    assert find_clash([first, same]) == "process 50 on localhost is rank 0 and rank 2"
    other = dump(make_rank(2, pid=60), make_rank(3, pid=61), host="localhost")
    assert find_clash([first, other]) == "job 1 on localhost has ranks 0-1 and ranks 2-3"


def test_other_dumps_of_one_host_do_not_clash():
    again = dump(make_rank(0, pid=70), make_rank(1, pid=71), at_s=60)
    assert not find_clash([WHOLE, again])
    assert not find_clash([dump(make_rank(rank), not_asked=3) for rank in range(4)])
    assert not find_clash([dump(make_rank(0), host="a"), dump(make_rank(1), host="b")])


# time


def test_dumps_of_one_moment_are_one_look():
    for dumps in ([WHOLE, WHOLE], [WHOLE, dump(make_rank(0), make_rank(3, frames=DECODE), at_s=0.03)]):
        folded = fold_dumps(dumps)
        assert folded.rounds == 1
        assert {group.motion for group in folded.groups} == {Motion.ONCE}


def test_a_single_look_does_not_take_the_place_of_several():
    looks = [make_round(make_rank(0), at_s=at_s) for at_s in (0.0, 60.0)]
    frozen = fold_rounds(looks, DumpOrigin(1, "train.py", 1))
    folded = fold_dumps([frozen, dump(make_rank(0), at_s=60.2)])
    assert (folded.groups[0].motion, folded.groups[0].since_s, folded.rounds) == (Motion.FROZEN, 60.0, 2)


def test_clocks_of_two_hosts_are_not_compared():
    looks = [
        [make_round(make_rank(rank), at_s=600.0 * rank + at_s, host=f"n{rank}") for at_s in (0.0, 5.0)]
        for rank in (0, 1)
    ]
    folded = fold_dumps([fold_rounds(one, DumpOrigin(1, "train.py", 2)) for one in looks])
    assert (folded.rounds, folded.seconds) == (2, 5.0)


def test_the_last_log_write_of_any_host_is_kept():
    first = replace(WHOLE, host="a", last_write=NOW - timedelta(minutes=26))
    second = replace(WHOLE, host="b", last_write=NOW - timedelta(minutes=28))
    assert fold_dumps([first, second]).last_write == first.last_write
    late = Missing("the log did not answer in 0.5 s")
    assert fold_dumps([replace(first, last_write=late), replace(second, last_write=late)]).last_write == late
    assert fold_dumps([WHOLE]).last_write is NOT_APPLICABLE


# files


def test_lines_that_are_no_dump_are_left_out_and_listed(tmp_path, capfd):
    path = tmp_path / "all.json"
    line = encode(WHOLE)
    path.write_text(f"0: {line}\n1: {line}\n{line[: len(line) // 2]}\n")
    assert run_fold(FoldOptions((str(path),))) == 0
    out, err = capfd.readouterr()
    assert "tpmon: not folded: " in err
    assert f"{path}:3: no dump of tpmon" in err
    assert out.startswith("dump ")
    assert "not read" in out


def test_a_byte_order_mark_is_no_part_of_a_dump(tmp_path):
    path = tmp_path / "bom.json"
    path.write_bytes(codecs.BOM_UTF8 + encode(WHOLE).encode())
    assert [encode(one) for one in read_dumps([str(path)])] == [encode(WHOLE)]


def test_many_lines_that_are_no_dump_are_counted(tmp_path):
    path, empty = tmp_path / "a.json", tmp_path / "empty.json"
    path.write_text(f"{encode(WHOLE)}\n" + "nonsense\n" * 50)
    empty.write_text("")
    told: list[str] = []
    assert len(read_dumps([str(path), str(empty)], told.append)) == 1
    assert told[-2:] == [f"{path}: 46 more lines", f"{empty}: no dump in it"]
    assert len(told) == 6


def test_a_fold_says_what_it_could_not_read():
    folded = replace(WHOLE, left_out=("b.json:1: no dump of tpmon: not JSON",))
    assert decode(Dump, encode(folded)) == folded
    assert any("b.json:1: no dump" in line for line in write_dump(folded, lambda _: ()))


def test_two_machines_of_one_name_are_not_folded(tmp_path):
    path = tmp_path / "a.json"
    other = dump(make_rank(2, pid=60), make_rank(3, pid=61))
    path.write_text(f"{encode(dump(make_rank(0), make_rank(1)))}\n{encode(other)}\n")
    with pytest.raises(UsageError, match="two machines of one name"):
        run_fold(FoldOptions((str(path),)))


@pytest.mark.parametrize(
    "kind", [ErrorKind.TRACED, ErrorKind.BUSY, ErrorKind.LATE, ErrorKind.UNKNOWN_PYTHON, ErrorKind.FAILED]
)
def test_a_dump_without_a_stack_does_not_end_well(kind):
    nothing = dump(make_rank(0, frames=Missing("x")), errors=[replace(failed(4000), kind=kind)])
    assert not any(is_known(group.frames) for group in nothing.groups)
    assert pick_exit_code(nothing) == ExitCode.USAGE
