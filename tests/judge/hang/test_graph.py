"""Who waits for whom: circles, forked processes, pools that are asked in vain, and ends of sockets."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.dumps import make_rank, make_thread, make_worker
from tests.frames import NOW, make_process
from tests.hanging import Change, beside, job, thread
from tests.judge.watch.test_servers import SELECT
from tests.stacks import ALL_REDUCE, IN_LOCK, LIB, MAIN, NEXT_BATCH, PIPE, TRAIN, stack_of
from tpmon.judge.answers.needs import Need
from tpmon.judge.dumps.merge import ThreadKey
from tpmon.judge.hang.graph import Blame, Goes, Leads, Sink, blame, build
from tpmon.model.dump import OtherEnd, ProcessLook, WaitKind, WaitTarget
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.process import Role
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import TABLE, Kind

FORK = "start lib/multiprocessing/process.py:121 > _launch lib/multiprocessing/popen_fork.py:71"
BOOT = "_bootstrap lib/multiprocessing/process.py:314 > run lib/multiprocessing/process.py:108"
POOL = "worker lib/multiprocessing/pool.py:125"
FUTURE = "result lib/concurrent/futures/_base.py:451 > wait lib/threading.py:327"
ASKED = f"crunch /run/prep.py:7 > {FUTURE}"
FORKED = stack_of(f"main > train > {FORK} > {BOOT} > {POOL} > {ASKED}")
COPIED = stack_of(
    "main > train > start multiprocess/process.py:121 > _launch multiprocess/popen_fork.py:71"
    " > _bootstrap multiprocess/process.py:314 > worker multiprocess/pool.py:125 > crunch /run/prep.py:7"
    " > encode_batch tokenizers/core.py:12"
)
SPAWNED = stack_of(f"spawn_main lib/multiprocessing/spawn.py:122 > {BOOT} > {POOL} > {ASKED}")
FORKED_WORKER = stack_of(
    f"main > train > {FORK} > {BOOT} > _worker_loop torch/utils/data/_utils/worker.py:374"
    f" > fetch torch/utils/data/_utils/fetch.py:54 > __getitem__ /run/data.py:28 > {FUTURE}"
)
GET = stack_of("main > train > get lib/multiprocessing/pool.py:770 > wait lib/threading.py:331")
IDLE = stack_of(f"main > train > {FORK} > {BOOT} > {POOL} > get lib/multiprocessing/queues.py:365")
REPLACES = stack_of(
    f"run lib/threading.py:982 > _maintain_pool lib/multiprocessing/pool.py:340 > {FORK} > {BOOT} > {POOL}"
    " > get lib/multiprocessing/queues.py:364"
)
SHARES = thread(
    8,
    stack_of("run lib/threading.py:982 > _serve lib/multiprocessing/resource_sharer.py:138 > accept lib/socket.py:294"),
    waits_for="unix socket",
)
SERVES = stack_of(f"main > train > {FORK} > {BOOT} > serve_forever lib/multiprocessing/managers.py:176")
ASKS = stack_of(
    "main > train > _callmethod lib/multiprocessing/managers.py:822 > recv lib/multiprocessing/connection.py:250"
)
JOIN = stack_of("main > train > join lib/multiprocessing/process.py:149 > wait lib/multiprocessing/popen_fork.py:43")
ENDS = stack_of(f"{BOOT} > _finalize_join lib/multiprocessing/queues.py:199 > join lib/threading.py:1119")
FEEDS = stack_of("_feed lib/multiprocessing/queues.py:250 > send_bytes lib/multiprocessing/connection.py:200")
PUTS = stack_of(f"{BOOT} > fill /run/prep.py:9 > put lib/multiprocessing/queues.py:375")
RESTS = stack_of("_feed lib/multiprocessing/queues.py:231 > wait lib/threading.py:327")
STORE = (MAIN, replace(TRAIN, line=33))
TIMED = "lock with a time-out (futex)"
NOT_IN_IT = "it was forked from a process with threads, and the threads"


def child(frames, pid: int = 4601, *others, **fields) -> ProcessLook:
    """Make a process that rank 0 started."""
    look = make_rank(0, *others, pid=pid, frames=frames, **fields)
    return replace(look, role=Role.HELPER, rank=NOT_APPLICABLE, rank_pid=4000, label="multiprocessing child")


def end_of(look: ProcessLook, kind: WaitKind = WaitKind.SOCKET, name: str = "") -> WaitTarget:
    """Return what is waited on whose other end a process has."""
    return replace(PIPE, kind=kind, others=(OtherEnd(look.pid, NOT_APPLICABLE, name or look.label),))


def count(**threads: int) -> Change:
    """Let processes, as "p4601", have so many threads."""

    def change(frames):
        return [
            replace(one, processes=tuple(replace(p, threads=threads.get(f"p{p.pid}", 1)) for p in one.processes))
            for one in frames
        ]

    return change


RANK = make_rank(0, frames=GET)
POLLS = make_rank(0, frames=GET, waits_for=TIMED)
ASKING = make_rank(0, frames=ASKS, waits_for="unix socket", waits_on=end_of(child(SERVES, 4602), WaitKind.UNIX))
WAITS_FOR = replace(end_of(child(ENDS), WaitKind.OTHER), call="wait4")
JOINS = make_rank(0, frames=JOIN, waits_for="child process", waits_on=WAITS_FOR)
TO_RANK = end_of(make_rank(0), WaitKind.PIPE, "rank 0")
WRITES = thread(9, FEEDS, name="QueueFeederThread", waits_for="pipe write (full)", waits_on=TO_RANK)
ASKS_STORE = make_rank(1, frames=STORE, waits_for="poll", waits_on=end_of(make_rank(0), name="rank 0"))
WAIT = stack_of("main > train > wait lib/subprocess.py:1264")
SHELL, HEAD = (
    make_process(
        pid,
        parent=parent,
        role=Role.HELPER,
        rank_pid=4000,
        label=label,
        waits_for=waits.threads[0].waits_for,
        started=NOW - timedelta(hours=1),
        runnable=0.0,
        asked_read_bytes_s=0.0,
        asked_write_bytes_s=0.0,
        waiting=0.0,
    )
    for pid, parent, label, waits in (
        (4601, 4000, "sh", JOINS),
        (4602, 4601, "head", child(FEEDS, waits_for="pipe write (full)")),
    )
)
LOOP = make_rank(0, frames=(MAIN, *SELECT), waits_for="epoll", waits_on=end_of(make_rank(0), WaitKind.UNIX))


@pytest.mark.parametrize(
    "job",
    [
        job("a forked process of a pool", RANK, child(FORKED), says={40: "lock"}, words=NOT_IN_IT, change=count()),
        job("one that is polled", POLLS, child(FORKED), says={40: "lock"}, words=NOT_IN_IT, change=count()),
        job(
            "one that is asked for between sleeps",
            make_rank(0, frames=(MAIN, TRAIN), waits_for="sleep"),
            child(FORKED),
            says={40: "lock"},
            words=NOT_IN_IT,
            change=count(),
        ),
        job(
            "a sleep beside a pool that has nothing to do",
            make_rank(0, frames=(MAIN, TRAIN), waits_for="sleep"),
            child(IDLE),
            says={60: "polls"},
            change=count(),
        ),
        job(
            "one of a copy of the library, asked through a manager that rests",
            ASKING,
            child(COPIED),
            child(SERVES, 4602, waits_for=TIMED),
            says={40: "lock"},
            words="the threads of tokenizers that it waits for are not in it",
            change=count(),
        ),
        job(
            "a forked worker of a loader",
            make_rank(0, frames=NEXT_BATCH, waits_for="a batch (loader queue)"),
            make_worker(0, 0, frames=FORKED_WORKER),
            says={40: "lock"},
            words=("rank 0 waits for a batch; worker 0 of rank 0 (4001)", NOT_IN_IT),
            change=count(),
        ),
        job(
            "a forked worker at a queue of its data set",
            make_rank(0, frames=NEXT_BATCH, waits_for="a batch (loader queue)"),
            make_worker(0, 0, frames=(*FORKED_WORKER[:-2], StackFrame("get", f"{LIB}/queue.py", 171))),
            says={40: "lock"},
            words="is in queue.get in __getitem__ data.py:28",
            change=count(),
        ),
        job(
            "a forked process whose own threads may answer",
            RANK,
            child(FORKED),
            says={40: "lock"},
            words="no other thread of it runs the program",
            change=count(p4601=3),
        ),
        job("a spawned process", RANK, child(SPAWNED), says={40: "lock"}, words="no other thread", change=count()),
        job(
            "a forked worker whose own threads only pass on what it hands over",
            make_rank(0, frames=NEXT_BATCH, waits_for="a batch (loader queue)"),
            replace(
                make_worker(0, 0, frames=FORKED_WORKER),
                threads=(*make_worker(0, 0, frames=FORKED_WORKER).threads, SHARES),
            ),
            says={40: "lock"},
            words=NOT_IN_IT,
            change=count(p4001=2),
        ),
        job(
            "a process by os.fork()",
            make_rank(0, frames=(MAIN, TRAIN), waits_for="child process", waits_on=WAITS_FOR),
            child(IN_LOCK),
            says={40: "lock"},
            words=("rank 0 waits for the end of a process", NOT_IN_IT),
            change=count(),
        ),
        job(
            "one that waits at a queue which a thread of its parent fills",
            make_rank(0, frames=(MAIN, TRAIN), waits_for="child process", waits_on=WAITS_FOR),
            child(stack_of("main > train > get lib/queue.py:171 > wait lib/threading.py:327")),
            says={40: "lock"},
            words=NOT_IN_IT,
            change=count(),
        ),
        job(
            "a pool that has started a process in place of one that ended",
            RANK,
            child(IDLE),
            child(REPLACES, 4602),
            says={40: "dead-worker"},
            words="of a process of its pool that has ended: 4602 was started in its place",
            change=count(),
        ),
        job("a pool that has nothing to do", RANK, child(IDLE), says={40: "lost-batch"}, change=count()),
        job(
            "a process that is joined before its queue is read",
            JOINS,
            child(ENDS, 4601, WRITES),
            says={40: "lock"},
            words=("rank 0 is in process join", "other end: rank 0 (4000), which is full: rank 0 reads nothing"),
            rank=0,
            change=count(),
        ),
        job(
            "the same of a feeder that has written everything",
            JOINS,
            child(
                ENDS, 4601, replace(WRITES, frames=RESTS, waits_for=make_thread(9).waits_for, waits_on=NOT_APPLICABLE)
            ),
            says={40: "lock"},
            words="it does not end, and no other thread of it runs the program",
            change=count(),
        ),
        job(
            "one at the lock of a queue, which another has that writes into a full pipe",
            JOINS,
            child(PUTS),
            child(PUTS, 4602, waits_for="pipe write (full)", waits_on=TO_RANK),
            says={40: "lock"},
            words=("rank 0 is in process join", "which is full: rank 0 reads nothing from it while it waits"),
            rank=0,
            change=count(),
        ),
        job(
            "one that writes into a pipe itself",
            JOINS,
            child(FEEDS, waits_for="pipe write (full)", waits_on=TO_RANK),
            says={40: "lock"},
            words="which is full: rank 0 reads nothing from it while it waits",
            change=count(),
        ),
        *(
            job(
                f"a rank at the store of one that waits in a collective: {name}",
                *looks,
                says={40: "missing-rank"},
                words="1 of 2 ranks waits in all_reduce train.py:40; rank 1 is in train train.py:33",
                rank=1,
                world_size=2,
            )
            for name, looks in (
                ("in order", (make_rank(0), ASKS_STORE)),
                ("the other way round", (ASKS_STORE, make_rank(0))),
            )
        ),
        job(
            "a rank at the store of one that is at a lock",
            make_rank(0, frames=IN_LOCK),
            ASKS_STORE,
            make_rank(2, frames=ALL_REDUCE),
            says={40: "missing-rank"},
            words="rank 0 is in hold train.py:12, waiting for a lock",
            rank=0,
            world_size=3,
        ),
        job(
            "a program that fills a pipe which nobody reads, though no stack shows it",
            make_rank(0, frames=WAIT, waits_for="child process", waits_on=WAITS_FOR),
            says={40: "lock"},
            words="head (4602) writes into a full pipe that nobody reads",
            change=beside(SHELL, HEAD),
        ),
        job(
            "an event loop that only its own process can wake",
            LOOP,
            says={40: "", 60: "lock"},
            words=("which of them, no stack shows", "no other process can wake it"),
        ),
        job(
            "an event loop whose own clock wakes it",
            LOOP,
            says={60: "polls"},
            change=lambda frames: [
                replace(one, processes=tuple(replace(p, switches_s=0.2) for p in one.processes)) for one in frames
            ],
        ),
    ],
)
def test_a_wait_is_followed_to_who_can_end_it(job):
    job.check()


def _node(number: int) -> ThreadKey:
    return ThreadKey("", number, number, "")


def test_a_circle_is_one_sink_and_what_leads_to_it_is_not_of_it():
    steps = {1: (2,), 2: (3,), 3: (2,), 4: ()}

    def expand(node):
        to = tuple(map(_node, steps[node.pid]))
        return Leads(to, lambda ends: ends[0]) if to else Goes("it moves")

    graph = build([_node(1), _node(4)], expand, lambda node, circle: Goes(f"{sorted(one.pid for one in circle)}"))
    assert [graph.follow(_node(number)).text for number in steps] == ["[2, 3]", "[2, 3]", "[2, 3]", "it moves"]


def test_every_kind_of_sink_is_one_of_its_own_with_a_known_cause():
    assert len({one.value for one in Sink}) == len(Sink.__members__)
    assert {one.cause for one in Sink} <= {cause for row in TABLE if row.kind is Kind.HUNG for cause in row.causes}
    seen = object()
    assert isinstance(blame(Sink.FORK, seen, "words"), Blame)
    assert Need.FORKED_WITHOUT_THREADS in blame(Sink.FORK, seen, "words", needs=(Need.LOCK_WAIT,)).needs
