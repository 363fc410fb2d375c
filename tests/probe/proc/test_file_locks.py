"""Who holds a lock on a file: rows of /proc/locks, and a real flock between two processes."""

import fcntl

from tests.probe.proc.test_wait_object import blocked, target_of
from tpmon.model.known import Missing
from tpmon.model.text.dump_words import say_target
from tpmon.probe.proc.wait_object import FileLock, find_lock_holders, parse_locks, pick_holders

ROWS = b"""1: POSIX  ADVISORY  WRITE 11 fe:00:500 0 EOF
1: -> POSIX  ADVISORY  WRITE 12 fe:00:500 0 EOF
2: FLOCK  ADVISORY  WRITE 21 00:1f:600 0 EOF
2: -> FLOCK  ADVISORY  WRITE 12 00:1f:600 0 EOF
2: -> FLOCK  ADVISORY  WRITE 22 00:1f:600 0 EOF
3: OFDLCK ADVISORY  WRITE -1 fe:00:700 0 EOF
3: -> OFDLCK ADVISORY  WRITE 31 fe:00:700 0 EOF
4: LEASE  ACTIVE
x: FLOCK  ADVISORY  WRITE 1 fe:00:1 0 EOF
"""


def test_rows_are_parsed_and_those_that_are_cut_left_out():
    locks = parse_locks(ROWS)
    assert len(locks) == 7
    assert locks[1] == FileLock(1, True, 12, 500)
    assert locks[2] == FileLock(2, False, 21, 600)


def test_the_holder_is_in_the_row_above_of_the_same_number():
    locks = parse_locks(ROWS)
    assert pick_holders(locks, 22, None) == (21,)
    assert pick_holders(locks, 12, 500) == (11,)
    assert pick_holders(locks, 12, 600) == (21,)
    assert pick_holders(locks, 12, None) == (11, 21)
    assert pick_holders(locks, 31, None) == ()
    assert pick_holders(locks, 99, None) == ()


def test_without_proc_locks_the_reason_is_told(tmp_path):
    answer = find_lock_holders(1, 3, str(tmp_path))
    assert isinstance(answer, Missing)
    assert answer.reason.startswith("locks: ")


def test_the_process_that_holds_a_flock_is_named(tmp_path):
    path = tmp_path / "cache.lock"
    code = """
import fcntl
file = open(sys.argv[1], "w")
def block(): fcntl.flock(file, fcntl.LOCK_EX)
"""
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with blocked(code, str(path)) as one:
            target = target_of(one.pid)
    assert f"blocked in flock of {path}" in say_target(target)
    assert say_target(target).endswith(" holds")
