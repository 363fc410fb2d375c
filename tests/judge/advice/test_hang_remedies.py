"""What is advised fits what the thread waits for: a peer, a lock on a file, a queue, a process, a thread."""

from dataclasses import replace
from typing import Any

import pytest

from tests.dumps import IN_LOCK, LIB, MAIN, TRAIN, make_rank
from tests.hanging import conclude, stand, thread
from tests.waits import wait_of
from tpmon.judge.answers.needs import Need
from tpmon.judge.hang.causes import need_of_wait
from tpmon.model.dump import DeadChild, OtherEnd, WaitKind, WaitTarget
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Finding

GET = (MAIN, TRAIN, StackFrame("get", f"{LIB}/queue.py", 171))
JOIN = (MAIN, TRAIN, StackFrame("join", f"{LIB}/multiprocessing/process.py", 149))
EXIT = (StackFrame("_shutdown", f"{LIB}/threading.py", 1590),)
FEED = (MAIN, StackFrame("fetch_from_store", "/run/prefetch.py", 30))
PEER = WaitTarget("recvfrom", 5, WaitKind.SOCKET, "socket:[7]", NOT_APPLICABLE, NOT_APPLICABLE, "10.0.0.7:443")
HELD = WaitTarget("flock", 3, WaitKind.FILE, "/data/cache.lock", "/", "ext4", NOT_APPLICABLE)
PIPE = WaitTarget("read", 4, WaitKind.PIPE, "pipe:[9]", NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE)
CHILD = WaitTarget(
    "wait4", NOT_APPLICABLE, WaitKind.OTHER, "process 777", NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE
)


def by(target: WaitTarget, *ends: tuple[int, str]) -> WaitTarget:
    """Add who has the other end."""
    return replace(target, others=tuple(OtherEnd(pid, NOT_APPLICABLE, name) for pid, name in ends))


def hang(*others: Any, dead: tuple[DeadChild, ...] = (), **fields: Any) -> Finding:
    return conclude(stand(make_rank(0, *others, **fields), log_age_s=None, dead=dead), asked_s=30.0)


def test_a_socket_is_no_mount_its_peer_is_named_and_a_time_limit_advised():
    finding = hang(frames=IN_LOCK, waits_for="socket receive", waits_on=PEER, call="recvfrom")
    assert finding.cause == "blocked-io"
    assert "check whether 10.0.0.7:443 still answers" in finding.try_
    assert "ss -tnpo | grep pid=4000," in finding.try_
    assert "mount" not in finding.try_
    known = hang(frames=IN_LOCK, waits_for="socket receive", waits_on=by(PEER, (88, "store")), call="recvfrom")
    assert "10.0.0.7:443 (store 88)" in known.try_


def test_a_lock_on_a_file_is_held_by_a_process_that_is_named_also_outside_of_the_job():
    finding = hang(frames=IN_LOCK, waits_for="locks_lock_inode_wait", waits_on=by(HELD, (30656, "flock")))
    assert finding.cause == "lock"
    assert "flock of /data/cache.lock on ext4 (/), which flock (30656) holds" in finding.summary
    assert "cannot be seen: no other thread" not in finding.summary
    assert "look at process 30656, which holds the lock on the file" in finding.try_
    nobody = hang(frames=IN_LOCK, waits_for="locks_lock_inode_wait", waits_on=replace(HELD, others=()))
    assert "which no process that can be seen from here holds" in nobody.summary
    assert "ps -o pid,ppid,stat,etime,args -p OTHER" in nobody.try_


def test_of_a_rank_that_holds_the_lock_of_a_file_it_is_said_where_it_is():
    waits = make_rank(0, frames=IN_LOCK, waits_for="locks", waits_on=by(HELD, (4010, "rank 1")))
    holder = make_rank(1, frames=FEED, waits_for="sleep", wchan="hrtimer_nanosleep")
    finding = conclude(stand(waits, holder, log_age_s=None), asked_s=30.0)
    assert finding.cause == "lock"
    assert "which rank 1 (4010) holds; rank 1 is in fetch_from_store prefetch.py:30" in finding.summary


def test_a_queue_that_nobody_feeds_is_no_matter_of_the_order_of_locks():
    finding = hang(frames=GET)
    assert finding.cause == "lock"
    assert "nothing comes, and no other thread of it runs the program" in finding.summary
    assert "find what should feed the queue" in finding.try_
    fed = hang(thread(7, FEED, name="feeder", waits_for="sleep"), frames=GET)
    assert "nothing comes: thread feeder (7) is in fetch_from_store prefetch.py:30" in fed.summary


@pytest.mark.parametrize(
    ("function", "file"),
    [("join", "threading.py"), ("wait", "threading.py"), ("result", "concurrent/futures/_base.py")],
)
def test_who_waits_for_a_thread_or_an_event_is_not_sent_to_a_queue(function, file):
    finding = hang(frames=(MAIN, TRAIN, StackFrame(function, f"{LIB}/{file}", 300)))
    assert finding.cause == "lock"
    assert "it does not end, and no other thread of it runs the program" in finding.summary
    assert "queue" not in finding.try_
    assert "lock.acquire" not in finding.try_


def test_a_semaphore_is_a_lock():
    finding = hang(frames=(MAIN, TRAIN, StackFrame("acquire", f"{LIB}/threading.py", 507)))
    assert "lock.acquire" in finding.try_


def test_nobody_is_sent_to_look_at_the_process_that_waits():
    run = (MAIN, TRAIN, StackFrame("run", f"{LIB}/subprocess.py", 550))
    finding = conclude(stand(make_rank(0, frames=run, waits_for="child process"), seconds=80, log_age_s=None))
    assert finding.cause == "no-progress"
    assert "which it waits for" not in finding.try_


def test_a_thread_that_is_left_is_to_be_a_daemon_or_joined():
    finding = hang(thread(7, FEED), frames=EXIT)
    assert finding.cause == "lock"
    assert "daemon=True" in finding.try_
    assert "lock.acquire" not in finding.try_


def test_who_waits_for_the_end_of_a_process_is_sent_to_look_at_that_one():
    finding = hang(frames=JOIN, waits_for="child process", waits_on=by(CHILD, (777, "sleep")))
    assert finding.cause == "no-progress"
    assert "waits for process 777 (sleep) to end" in finding.summary
    assert "look at process 777, which it waits for" in finding.try_


def test_of_a_dead_process_beside_the_one_that_is_joined_the_right_one_is_called_dead():
    dead = (DeadChild(778, 4000, "python", "SIGSEGV"),)
    joins = {"frames": JOIN, "waits_for": "child process", "waits_on": by(CHILD, (777, "python"))}
    finding = hang(dead=dead, **joins)
    assert finding.cause == "dead-worker"
    assert "waits for process 777 (python) to end" in finding.summary
    assert "another process that it started is dead (778: SIGSEGV)" in finding.summary
    row = next(one for one in finding.evidence if one.name == "dead process 778")
    assert row.text == "python, SIGSEGV"
    same = hang(dead=(replace(dead[0], pid=777),), **joins)
    assert "a process that is dead (777: SIGSEGV)" in same.summary


@pytest.mark.parametrize(
    ("ends", "advised"),
    [(((4711, "python"),), "look at process 4711, which it waits for"), ((), "no process has it open")],
)
def test_a_pipe_leads_to_who_has_its_other_end_or_to_what_is_not_there(ends, advised):
    finding = hang(frames=IN_LOCK, waits_for="pipe read", waits_on=by(PIPE, *ends), call="read")
    assert advised in finding.try_


def test_the_rank_that_the_others_wait_for_is_the_one_to_look_at():
    ranks = [make_rank(rank) for rank in (0, 1)]
    naps = make_rank(2, frames=FEED, waits_for="sleep", wchan="hrtimer_nanosleep")
    finding = conclude(stand(*ranks, naps, log_age_s=None), asked_s=30.0)
    assert finding.cause == "missing-rank"
    assert "look at rank 2, which the others wait for" in finding.try_
    assert "tpmon dump 4020 --rank 2" in finding.try_
    asks = make_rank(2, frames=IN_LOCK, waits_for="socket receive", waits_on=PEER, call="recvfrom")
    finding = conclude(stand(*ranks, asks, log_age_s=None))
    assert "check whether 10.0.0.7:443 still answers" in finding.try_


@pytest.mark.parametrize(
    ("words", "need"),
    [
        ("socket receive", Need.SOCKET_WAIT),
        ("TCP socket", Need.SOCKET_WAIT),
        ("FIFO without a partner", Need.NOBODY_AT_PIPE),
        ("pipe read", Need.PROCESS_WAIT),
        ("NFS", Need.BLOCKED_READ),
    ],
)
def test_without_a_target_the_word_of_the_kernel_decides(words, need):
    assert need_of_wait(wait_of(words)) is need
