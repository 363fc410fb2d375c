"""The thread that pins batches: where it is stuck, no batch was lost."""

from tests.dumps import LIB, MAIN, SITE, TRAIN, fold, make_rank, make_thread, make_worker
from tests.hanging import conclude, expect, stand
from tpmon.model.process import ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Kind

LOADER, PINNING = f"{SITE}/torch/utils/data/dataloader.py", f"{SITE}/torch/utils/data/_utils/pin_memory.py"
WAITS = (
    MAIN,
    TRAIN,
    StackFrame("__next__", LOADER, 700),
    StackFrame("_get_data", LOADER, 1360),
    StackFrame("_try_get_data", LOADER, 1251),
    StackFrame("get", f"{LIB}/queue.py", 180),
    StackFrame("wait", f"{LIB}/threading.py", 331),
)
LOOP = (
    StackFrame("run", f"{LIB}/threading.py", 982),
    StackFrame("_pin_memory_loop", PINNING, 60),
    StackFrame("do_one_step", PINNING, 35),
)
PINS = (*LOOP, StackFrame("pin_memory", PINNING, 75), StackFrame("Batch.pin_memory", "/run/data.py", 140))
GETS = (*LOOP, StackFrame("get", f"{LIB}/multiprocessing/queues.py", 113))
PUTS = (*LOOP, StackFrame("put", f"{LIB}/queue.py", 140))


def job(frames, **fields):
    """Build a rank that waits for its thread, which is in ``frames``, with two workers that have no work."""
    pin = make_thread(9200, name="pin", kind=ThreadKind.PIN, frames=frames, **fields)
    rank = make_rank(0, pin, frames=WAITS, waits_for="lock with a time-out")
    return rank, make_worker(0, 0), make_worker(0, 1)


def test_a_stuck_pin_thread_has_the_batch():
    expect(
        "lock", stand(*job(PINS), seconds=45, log_age_s=50.0), "thread pin (9200) of it is in pin_memory data.py:140"
    )
    summary = fold(*job(PINS)).summary
    assert "its thread pin is in pin_memory data.py:140" in summary
    assert "lost" not in summary


def test_a_pin_thread_that_works_is_no_hang():
    moved = job((*PINS[:-1], StackFrame("other", "/run/data.py", 150)))
    assert conclude(stand(*job(PINS), moved=moved, seconds=45, log_age_s=50.0)).kind is not Kind.HUNG


def test_a_pin_thread_at_its_queues_has_no_batch():
    for frames in (GETS, PUTS):
        expect("lost-batch", stand(*job(frames), seconds=45, log_age_s=50.0))
        assert "a batch was lost" in fold(*job(frames)).summary
