"""What keeps one rank from going on, on made-up looks at it: each cause, and each job that is only slow."""

from dataclasses import replace

import pytest

from tests.dumps import fold, make_native, make_rank, make_thread, make_worker
from tests.frames import make_gpu, make_loader
from tests.hanging import Job, change_looks, conclude, died, job, read, run, said, stand, thread, wake
from tests.stacks import DECODE, IN_LOCK, LIB, MAIN, NEXT_BATCH, PIPE, READS, RUNNING, TRAIN, WORKER_READS, stack_of
from tpmon.judge.hang.detection import need_s
from tpmon.judge.hang.graph import Grace
from tpmon.judge.watch.tracker import RankMemory, WatchedTime
from tpmon.model.dump import OtherEnd, ProcessToll, WaitKind, WaitTarget
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Kind

LOCKED = make_rank(0, frames=IN_LOCK)
BATCH = make_rank(0, frames=NEXT_BATCH, waits_for="a batch (loader queue)")
FLUSH = (MAIN, StackFrame("flush", "/run/logs.py", 19))
WRITE = (*FLUSH, StackFrame("write", "/run/logs.py", 30))
EXIT = (StackFrame("_shutdown", f"{LIB}/threading.py", 1590),)
LOOP = (MAIN, StackFrame("wait_for_flag", "/run/train.py", 50))
LINES = (LOOP, (MAIN, StackFrame("wait_for_flag", "/run/train.py", 51)))
RESULT = (MAIN, TRAIN, StackFrame("get", f"{LIB}/multiprocessing/queues.py", 103))
LSTM = (*LOOP, *stack_of("forward torch/nn/modules/rnn.py:917"))
SAVE = stack_of("main > train > save torch/serialization.py:700")
ITEM = (MAIN, StackFrame("train", "/run/train.py", 77))
NAP = (MAIN, StackFrame("train", "/run/train.py", 78))
MONITOR = thread(
    5, stack_of("run tqdm/_monitor.py:60 > wait lib/threading.py:655"), waits_for="lock with a time-out (futex)"
)
"""Looks after the bars of tqdm: a daemon, and older than most other threads."""
FLUSHER = thread(7, FLUSH)
DENIED = Missing("permission denied")
SAVES = make_rank(0, frames=SAVE, waits_for="pipe write (full)")
NAPS = make_rank(0, frames=NAP, waits_for="sleep")
WAITS_LONG = make_rank(
    0, frames=(MAIN, TRAIN, StackFrame("wait", f"{LIB}/threading.py", 327)), waits_for="lock with a time-out (futex)"
)
SELECTS = make_rank(0, frames=NAP, call="select", waits_for="select")
FUTURE_LONG = make_rank(
    0,
    frames=stack_of("main > train > result lib/concurrent/futures/_base.py:451 > wait lib/threading.py:331"),
    waits_for="lock with a time-out (futex)",
)
GETS_LONG = make_rank(
    0,
    frames=stack_of("main > train > get lib/queue.py:180 > wait lib/threading.py:331"),
    waits_for="lock with a time-out (futex)",
)
BATON = stack_of("main > train > load torch/utils/cpp_extension.py:1900 > FileBaton.wait torch/utils/file_baton.py:50")
SOFT_LOCK = stack_of("main > train > acquire filelock/_api.py:300")
GETS = (*FLUSH, StackFrame("get", f"{LIB}/queue.py", 171))
NAPS_AT_FILE = make_rank(0, frames=SOFT_LOCK, waits_for="sleep")
AT_FILE = "is in lock file in train train.py:"


def held_by(number: int) -> WaitTarget:
    """Return a lock that a thread of rank 0 holds."""
    return WaitTarget(
        "futex", NOT_APPLICABLE, WaitKind.LOCK, f"thread-{number} ({number})", NOT_APPLICABLE, NOT_APPLICABLE,
        NOT_APPLICABLE, others=(OtherEnd(4000, number, f"thread-{number}"),),
    )  # fmt: skip


TO_WORKER = replace(PIPE, kind=WaitKind.UNIX, others=(OtherEnd(4001, NOT_APPLICABLE, "worker 0 of rank 0"),))


def waits_for_gil(holder, frames):
    """Make a rank whose main thread waits in ``frames`` for the interpreter's lock, which another thread has."""
    return make_rank(0, holder, frames=frames, waits_for="lock with a time-out (futex)", holds_gil=False)


KEEPS = thread(7, FLUSH, waits_for="sleep", holds_gil=True)


@pytest.mark.parametrize(
    "job",
    [
        job(
            "a lock whose holder is known",
            make_rank(0, thread(8, FLUSH), thread(7, FLUSH, waits_for="sleep"), frames=IN_LOCK, waits_on=held_by(7)),
            says={40: "lock"},
            words="waits for a lock that thread-7 (7) holds; that thread is in flush logs.py:19",
        ),
        job(
            "a lock that another thread may hold",
            make_rank(0, FLUSHER, frames=IN_LOCK),
            says={40: "lock"},
            words="waiting for a lock; perhaps held by thread thread-7 (7), which is in flush logs.py:19",
        ),
        job("a lock that nobody seen holds", LOCKED, says={40: "lock"}, words="who holds it cannot be seen"),
        job("a lock beside an idle thread of a logger", make_rank(0, MONITOR, frames=IN_LOCK), says={60: "lock"}),
        job(
            "a library that keeps the interpreter in a thread",
            waits_for_gil(KEEPS, IN_LOCK),
            says={40: "lock"},
            words="rank 0 waits for the interpreter's lock (GIL): thread thread-7 (7) holds it in flush",
        ),
        job(
            "the same while the main thread asks a process that died",
            waits_for_gil(KEEPS, RESULT),
            says={40: "lock"},
            words="thread thread-7 (7) holds it in flush",
            **died("python"),
        ),
        job(
            "a library that keeps it in the main thread",
            make_rank(0, frames=IN_LOCK, waits_for="sleep", holds_gil=True),
            says={40: "lock"},
            words="rank 0 holds the interpreter's lock (GIL)",
        ),
        job(
            "a program that has finished, and a thread of it has not",
            make_rank(0, FLUSHER, frames=EXIT),
            says={40: "lock"},
            words="rank 0 has finished, but thread thread-7 (7) of it has not: it is in flush logs.py:19",
        ),
        job("a thread that works after the end", make_rank(0, thread(7, FLUSH, **RUNNING), frames=EXIT), says={40: ""}),
        job(
            "only daemons are left after the end",
            make_rank(0, MONITOR, frames=EXIT),
            says={40: "", 60: "lock"},
            words="waits for threads that were not seen",
        ),
        job("a file of a dead server", make_rank(0, frames=DECODE, **READS), says={40: "blocked-io"}),
        job(
            "a read from a process that is stuck itself",
            make_rank(0, frames=IN_LOCK, waits_for="unix socket", waits_on=TO_WORKER),
            make_worker(0, 0, frames=WORKER_READS, **READS),
            says={40: "blocked-io"},
            words="worker 0 of rank 0 (4001) is in decode data.py:88",
        ),
        # Who looks because a run pauses finds its log old.
        *(
            job(f"a save of a run, its log {age} s old", *ranks, SAVES, says=says, log_age_s=age)
            for ranks in ((), (make_rank(1),))
            for age, says in ((45.0, {40: ""}), (200.0, {40: ""}))
        ),
        job("a save, its log minutes old", make_rank(1), SAVES, says={40: "", 310: "missing-rank"}, log_age_s=400.0),
        job("a save, its log half an hour old", make_rank(1), SAVES, says={40: "missing-rank"}, log_age_s=1900.0),
        # Nobody waits for it: a poll, or a pace.
        job("a sleep", NAPS, says={60: "polls", 310: "polls"}),
        job(
            "a sleep in the store of ranks that have not come",
            make_rank(0, make_native(9, "pt_tcpstore_uv"), frames=NAP, waits_for="sleep"),
            says={60: "", 310: "no-progress"},
        ),
        job(
            "a poll for a thread that stands at a lock",
            make_rank(0, thread(7, IN_LOCK), frames=NAP, waits_for="sleep"),
            says={40: "", 60: "no-progress"},
            words="thread thread-7 (7) of it is in hold train.py:12, waiting for a lock",
        ),
        job(
            "a poll for a thread whose file does not answer",
            make_rank(0, thread(7, DECODE, **READS), frames=NAP, waits_for="sleep"),
            says={60: "no-progress"},
            words="thread thread-7 (7) of it is in decode data.py:88, blocked in a read of /data/7.bin",
        ),
        job(
            "a sleep beside a thread without work",
            make_rank(0, thread(7, GETS), frames=NAP, waits_for="sleep"),
            says={60: "polls"},
        ),
        job("sleeps of all ranks", make_rank(1, frames=NAP, waits_for="sleep"), NAPS, says={60: "polls"}),
        job("a sleep that another rank waits for", make_rank(1), NAPS, says={60: "", 80: "missing-rank"}),
        job("a sleep, as its user says", NAPS, says={200: "polls"}, watch={"asked_s": 60.0}),
        job("a person is asked", make_rank(0, frames=ITEM, waits_for="terminal input"), says={40: "idle"}),
        job(
            "a person is asked while others wait",
            make_rank(1),
            make_rank(0, frames=ITEM, waits_for="terminal input"),
            says={40: "", 60: "missing-rank"},
            words="1 of 2 ranks waits in all_reduce train.py:40; rank 0 is in train train.py:77",
            rank=0,
        ),
        job("an event of the program, with a time-out", WAITS_LONG, says={40: "", 60: "no-progress"}),
        job(
            "a wait that ends by its time-out again and again",
            WAITS_LONG,
            says={60: "polls"},
            words="rank 0 waits in condition or event in train train.py:40, again and again",
            change=wake,
        ),
        job(
            "one that ends less often than it was looked at",
            WAITS_LONG,
            says={60: "polls"},
            change=read(switches_s=0.1),
        ),
        job(
            "the same of a thread beside it",
            make_rank(0, MONITOR, frames=WAITS_LONG.threads[0].frames, waits_for="lock with a time-out (futex)"),
            says={60: "no-progress"},
            change=read(switches_s=0.1),
        ),
        job(
            "the same of threads of a card's driver",
            WAITS_LONG,
            says={60: "no-progress"},
            change=read(switches_s=0.1),
            gpus=(make_gpu(pids=(4000,), sm_pct=0.0),),
        ),
        job("a future that is asked again and again", FUTURE_LONG, says={60: "no-progress"}, change=wake),
        job("a select with a time-out", SELECTS, says={100: "polls"}, change=wake),
        job("a queue that is asked again and again", GETS_LONG, says={60: "polls"}, change=wake),
        job(
            "a queue that nothing else could fill",
            GETS_LONG,
            says={60: "no-progress"},
            words="nothing comes, and no other thread of it runs the program",
        ),
        job(
            "a wait with a time-out that another rank waits for",
            make_rank(1),
            WAITS_LONG,
            says={80: "missing-rank"},
            rank=0,
            change=wake,
        ),
        job("a lock file", make_rank(0, frames=BATON, waits_for="sleep"), says={200: "", 310: "lock"}, words=AT_FILE),
        job(
            "a lock file of another library",
            make_rank(0, frames=SOFT_LOCK, waits_for="sleep"),
            says={40: "lock"},
            words=AT_FILE,
            watch={"asked_s": 30.0},
        ),
        job("a lock file while others wait", make_rank(1), NAPS_AT_FILE, says={310: "missing-rank"}, rank=0),
        job(
            "a stop, which says more than the stacks",
            make_rank(0),
            make_rank(1, frames=IN_LOCK, state="T", waits_for="stopped by a signal"),
            says={40: "stopped"},
        ),
        job("no stack can be read", make_rank(0, frames=DENIED), says={40: "", 90: "no-progress"}),
    ],
)
def test_what_keeps_a_rank(job):
    job.check()


def test_of_threads_that_are_left_the_programs_own_is_named_and_no_daemon():
    finding = conclude(stand(make_rank(0, MONITOR, FLUSHER, frames=EXIT)))
    assert "rank 0 has finished, but thread thread-7 (7) of it has not: it is in flush logs.py:19" in finding.summary
    assert "perhaps Python waits for it" in finding.summary, "nothing tells for which of them"
    assert "daemon" not in finding.summary
    assert not any("thread-5" in row.name for row in finding.evidence)
    told = make_rank(0, MONITOR, FLUSHER, thread(8, FLUSH), frames=EXIT, waits_on=held_by(8))
    finding = conclude(stand(told))
    assert "but thread thread-8 (8) of it has not" in finding.summary
    assert finding.summary.endswith("Python waits for it because it is no daemon thread")
    one, two = (make_rank(0, thread(7, frames, **RUNNING), frames=EXIT) for frames in (FLUSH, WRITE))
    assert said(stand(one, moved=(two,)))[0] is not Kind.HUNG, "one that moves after the end"


# --- batches and results ---

PIN_LOOP = stack_of(
    "run lib/threading.py:982 > _pin_memory_loop torch/utils/data/_utils/pin_memory.py:60"
    " > do_one_step torch/utils/data/_utils/pin_memory.py:35"
)
PIN = stack_of("pin_memory torch/utils/data/_utils/pin_memory.py:75 > Batch.pin_memory /run/data.py:140")
PINS = (*PIN_LOOP, *PIN)
PIN_GETS = (*PIN_LOOP, StackFrame("get", f"{LIB}/multiprocessing/queues.py", 113))
PIN_PUTS = (*PIN_LOOP, StackFrame("put", f"{LIB}/queue.py", 140))
FOREIGN_LOADERS = {
    "dali": stack_of("share_outputs nvidia/dali/pipeline.py:1"),
    "ffcv": stack_of("__next__ ffcv/loader/epoch_iterator.py:1 > get lib/queue.py:1"),
    "ray": stack_of("__next__ ray/data/iterator.py:1"),
}
IDLE = (make_worker(0, 0), make_worker(0, 1))
ASKS = make_rank(0, frames=RESULT, waits_for="pipe read")


def pinned(frames):
    """Build a rank that waits for its pin thread, which is in ``frames``, with two workers that have no work."""
    waits = stack_of(
        "main > train > __next__ torch/utils/data/dataloader.py:700 > _get_data torch/utils/data/dataloader.py:1360"
        " > _try_get_data torch/utils/data/dataloader.py:1251 > get lib/queue.py:180 > wait lib/threading.py:331"
    )
    pin = make_thread(9200, name="pin", kind=ThreadKind.PIN, frames=frames)
    return make_rank(0, pin, frames=waits, waits_for="lock with a time-out"), *IDLE


@pytest.mark.parametrize(
    "job",
    [
        job(
            "a worker that reads for ever",
            BATCH,
            make_worker(0, 0),
            make_worker(0, 1, frames=WORKER_READS, **READS),
            says={40: "blocked-io"},
            words="rank 0 waits for a batch; worker 1 of rank 0 (4002) is in decode data.py:88",
        ),
        job(
            "a lock that a worker inherited",
            BATCH,
            make_worker(0, 0, frames=(*WORKER_READS[:-1], StackFrame("log", "/run/data.py", 12))),
            says={40: "lock"},
        ),
        job("everybody waits for work", BATCH, *IDLE, says={40: "lost-batch"}, words="all its 2 workers wait for work"),
        job("a batch is ready", BATCH, IDLE[0], says={40: ""}, loader=(make_loader(4000, 1, ready_batches=2.0),)),
        job("a worker that could not be read", BATCH, make_worker(0, 0, frames=DENIED), IDLE[1], says={40: ""}),
        job("another program failed", BATCH, IDLE[0], says={40: "lost-batch"}, **died("tensorboard", "exit 1")),
        job("a process of its own failed", BATCH, IDLE[0], says={40: "dead-worker"}, **died("python", "exit 1")),
        job("no worker is left", BATCH, says={90: "dead-worker"}),
        job(
            "who was to answer was killed",
            ASKS,
            says={40: "dead-worker"},
            words="a process that is dead (4444: SIGKILL)",
            **died("python"),
        ),
        job("a child of another was killed", ASKS, says={90: "blocked-io"}, **died("python", parent=1)),
        *(
            job(
                f"the threads of {name}",
                make_rank(0, frames=(MAIN, TRAIN, *frames)),
                says={35: "", 90: "no-progress"},
                words="the loader is not torch's, what fills its queue is not known",
            )
            for name, frames in FOREIGN_LOADERS.items()
        ),
        job(
            "a pin thread that is stuck",
            *pinned(PINS),
            says={45: "lock"},
            words="thread pin (9200) of it is in pin_memory data.py:140",
        ),
        job("a pin thread without a batch", *pinned(PIN_GETS), says={45: "lost-batch"}),
        job("a pin thread that hands over", *pinned(PIN_PUTS), says={45: "lost-batch"}),
        job(
            "a pin thread that works",
            *pinned(PINS),
            says={45: ""},
            moved=pinned((*PINS[:-1], StackFrame("other", "/run/data.py", 150))),
        ),
    ],
)
def test_why_a_batch_or_a_result_does_not_come(job):
    job.check()


@pytest.mark.parametrize(
    ("frames", "words"), [(PINS, "of it is in pin_memory data.py:140"), (PIN_GETS, "was lost"), (PIN_PUTS, "was lost")]
)
def test_a_dump_tells_of_the_pin_thread_too(frames, words):
    summary = fold(*pinned(frames)).summary
    assert words in summary
    assert ("lost" in summary) is ("lost" in words)


# --- threads that run ---

SECOND_NS = 10**9
CALL = (MAIN, StackFrame("build_index", "/run/index.py", 48))
OTHER = (MAIN, StackFrame("build_index", "/run/index.py", 49))
LOADS = ProcessToll(SECOND_NS, 50_000, 800_000_000)
MAKES = ProcessToll(SECOND_NS, 50_000, 0)
NOTHING = ProcessToll(SECOND_NS, 0, 0)
AT_4000 = {4000: LINES}
TRAINED = {"ranks": (RankMemory(4000, 100, trained=True),)}


def runs(frames, *others, **fields):
    """Make a rank that runs in one place, with the interpreter's lock."""
    return make_rank(0, *others, **({"frames": frames, "holds_gil": True, **RUNNING} | fields))


def polls(cpu_ns=SECOND_NS, faults=0, moved_bytes=0, **fields):
    """Make a rank that asks the kernel all the time, without the lock; the toll of its process is of each second."""
    one = runs(LOOP, **({"holds_gil": False, "kernel_ns": SECOND_NS} | fields))
    return replace(one, toll=ProcessToll(cpu_ns, faults, moved_bytes))


def calls(toll):
    """Make a rank in one call that keeps the interpreter."""
    return replace(runs(CALL), toll=toll)


def loads_in_thread(toll):
    """Make a rank whose thread keeps the interpreter in a call."""
    return replace(waits_for_gil(thread(7, CALL, name="loader", holds_gil=True, **RUNNING), (MAIN,)), toll=toll)


def starve(process, _look):
    """Let the threads of a process have got no CPU."""
    return replace(process, threads=tuple(replace(one, run_ns=SECOND_NS) for one in process.threads))


@pytest.mark.parametrize(
    "job",
    [
        job("a loop, its log minutes old", runs(LOOP), says={30: "spin"}, stacks=AT_4000, log_age_s=400.0),
        job("a loop, its log a minute old", runs(LOOP), says={30: ""}, stacks=AT_4000, log_age_s=60.0),
        job("a loop, its log three minutes old", runs(LOOP), says={30: ""}, stacks=AT_4000, log_age_s=200.0),
        # Before the first step programs build their tables in a loop.
        job("a loop before the first step", runs(LOOP), says={130: "", 310: "spin"}, stacks=AT_4000),
        job("a loop after a step", runs(LOOP), says={100: "", 130: "spin"}, stacks=AT_4000, watch=TRAINED),
        job("a loop that gets no CPU", runs(LOOP), says={310: "spin"}, stacks=AT_4000, change=change_looks(starve)),
        job("a loop of C", runs(LOOP, holds_gil=False), says={130: ""}, stacks=AT_4000, log_age_s=4000.0),
        job("a call of torch", runs(LSTM, holds_gil=False), says={130: ""}, log_age_s=4000.0),
        job("a call of torch for minutes", runs(LSTM, holds_gil=False), says={310: "spin"}),
        # What it got while it was looked at counts as long as it is there, not what it gets now.
        job("one that reads", polls(moved_bytes=50_000_000), says={30: "", 120: ""}, log_age_s=400.0),
        job("one that makes memory", polls(faults=1000), says={30: "", 120: ""}, log_age_s=400.0),
        job("one beside other threads", polls(cpu_ns=2 * SECOND_NS), says={30: "", 120: ""}, log_age_s=400.0),
        job("of which the kernel tells nothing", polls(kernel_ns=DENIED), says={30: "", 120: ""}, log_age_s=400.0),
        job("a wait for a card", polls(), says={30: ""}, log_age_s=400.0, gpus=(make_gpu(pids=(4000,), sm_pct=99.0),)),
        job("a call that makes memory", calls(MAKES), *map(make_rank, (1, 2, 3)), says={125: "", 310: "missing-rank"}),
        job("a call that reads, its log old", calls(LOADS), says={20: ""}, log_age_s=400.0),
        job("a call that reads now", calls(LOADS), says={310: ""}, change=read(asked_read_bytes_s=5e8)),
        job("a call at one line", calls(NOTHING), says={125: "", 310: "spin"}, words="runs without end in "),
        job("a call at one line, its log old", calls(NOTHING), says={20: "spin"}, log_age_s=400.0),
        *(
            job(
                f"a call of {len(others) + 1} ranks at several lines",
                calls(toll),
                *others,
                says={125: "", 310: "missing-rank" if others else "spin"},
                stacks={4000: (CALL, OTHER)},
            )
            for toll in (NOTHING, MAKES)
            for others in ((), (make_rank(1),))
        ),
        job("a thread that loads with the lock", loads_in_thread(LOADS), says={20: ""}, stacks={}, log_age_s=400.0),
        job("a thread that keeps the lock", loads_in_thread(NOTHING), says={125: "", 310: "lock"}, stacks={}),
        job("the same, its log old", loads_in_thread(NOTHING), says={20: "lock"}, stacks={}, log_age_s=1900.0),
    ],
)
def test_a_thread_that_runs_may_be_at_work_or_in_a_loop_without_end(job):
    job.check()


def test_a_loop_that_asks_the_kernel_is_shown_with_its_share_of_that():
    words = ("runs without end in wait_for_flag train.py:50",)
    finding = Job((polls(),), {30: "spin"}, words, fields={"log_age_s": 400.0}).check()
    assert "50 % of it in the kernel" in finding.evidence[0].text


@pytest.mark.parametrize(
    ("watch", "grace", "seconds"),
    [
        ({}, Grace.ENDLESS, 30.0),
        ({}, Grace.LOOP, 300.0),
        ({"stepped": True}, Grace.LOOP, 120.0),
        ({}, Grace.SLOW, 300.0),
        ({}, Grace.TRANSFER, 1800.0),
        ({"longest_s": 900.0}, Grace.ENDLESS, 600.0),
        ({"longest_s": 900.0}, Grace.SLOW, 1800.0),
        ({"longest_s": 900.0}, Grace.COMPUTE, 1800.0),
        ({"longest_s": 900.0, "asked_s": 60.0}, Grace.SLOW, 300.0),
    ],
)
def test_how_long_a_wait_may_last_and_more_grace_is_never_less_time(watch, grace, seconds):
    assert need_s(WatchedTime(**watch), grace) == seconds
    needs = [need_s(WatchedTime(**(watch | {"stepped": True})), one) for one in Grace]
    assert needs == sorted(needs)


def test_before_the_time_is_up_nothing_is_said():
    last = run(stand(make_rank(0), make_rank(1, frames=IN_LOCK), seconds=26, log_age_s=27.0))[-1]
    assert last.frame.verdict.kind is not Kind.HUNG
    assert any("of the 30 s that it takes" in text for text in last.frame.verdict.unknown)
