"""What a loop's sleep is confused with: other ranks, cards, a checkpoint, an event loop, a notebook at rest."""

from dataclasses import replace

import pytest

from tests.frames import make_gpu, make_process, make_target
from tests.judging import make_phases, read_phases
from tests.loop_stacks import LIB, RANK, WAIT, frame_of, see_waiting, slice_of, stack
from tpmon.judge.advice.choose import choose
from tpmon.judge.advice.facts import RunFacts
from tpmon.judge.answers.needs import Need
from tpmon.judge.answers.result import Cleared, Suspicion, Unsure
from tpmon.judge.features.starvation import find_named_wait
from tpmon.judge.ranking import find_explained
from tpmon.judge.rules.data import judge_no_workers
from tpmon.judge.rules.python import judge_blocking_call, judge_own_loader
from tpmon.judge.stacks.classify import classify, receives
from tpmon.judge.stacks.phases import DataPart, Phase
from tpmon.judge.stacks.profile import Spot
from tpmon.model.stacks import StackCount
from tpmon.model.verdict import Kind

TORCH = f"{LIB}/site-packages/torch"
SELECT = ("select", f"{LIB}/selectors.py", 469)
TURN = ("_run_once", f"{LIB}/asyncio/base_events.py", 1898)
RUN = ("run", f"{LIB}/asyncio/runners.py", 190)
SLEEPS = make_phases({Phase.OTHER: 0.5, Phase.FORWARD: 0.5}, spots={Phase.OTHER: Spot("average grads.py:7", 0.45)})
STEP = stack(("_call_impl", f"{TORCH}/nn/modules/module.py"), ("forward", f"{TORCH}/nn/modules/linear.py"))
RESTS = (frame_of("<module>", "/home/u/grpo.py", 200), *(frame_of(*one) for one in (RUN, TURN, SELECT)))
BESIDE = {"target": make_target(world_size=4)}


def see_stacks(counts):
    """Read one slice of stacks, by how often each was met."""
    return read_phases([slice_of(*counts.items())], 10_500_000_000)[RANK]


def on_card(sm_pct):
    return {"gpus": (make_gpu(sm_pct=sm_pct, pids=(RANK,)),)}


def test_beside_other_ranks_a_sleep_without_a_frame_of_its_own_may_be_a_wait_for_them():
    assert isinstance(judge_blocking_call(see_waiting(SLEEPS, other=5)), Suspicion)
    assert isinstance(judge_blocking_call(see_waiting(SLEEPS, other=5, frame=BESIDE)), Unsure)
    # A disk, a socket, and a frame of the standard library that waits are no collective.
    assert isinstance(judge_blocking_call(see_waiting(SLEEPS, io=5, frame=BESIDE)), Suspicion)
    named = replace(SLEEPS, calls_ratio=0.45, calls=Spot("average grads.py:7", 0.45))
    assert isinstance(judge_blocking_call(see_waiting(named, other=5, frame=BESIDE)), Suspicion)
    # The disk of the data wait proves no call.
    loads = make_phases({Phase.OTHER: 0.4, Phase.DATA_WAIT: 0.4, Phase.FORWARD: 0.2})
    assert isinstance(judge_blocking_call(see_waiting(loads, io=4, other=4, frame=BESIDE)), Unsure)


@pytest.mark.parametrize(
    ("sm_pct", "looks", "expected"),
    [
        (60.0, {"other": 5}, Unsure),
        (60.0, {"io": 5}, Suspicion),
        (20.0, {"other": 5}, Suspicion),
        (97.0, {"io": 5}, Cleared),
    ],
    ids=["may be for the card", "for a socket", "longer than the card is busy", "hidden"],
)
def test_a_sleep_on_a_card_is_a_call_only_where_it_cannot_be_a_wait_for_the_card(sm_pct, looks, expected):
    answer = judge_blocking_call(see_waiting(SLEEPS, frame=on_card(sm_pct), **looks))
    assert isinstance(answer, expected)
    if sm_pct == 20.0:
        assert answer.share == pytest.approx(0.3), "what may be a wait for the card is taken off"


def test_on_a_card_only_a_lock_may_be_the_wait_for_the_backward_pass():
    phases = make_phases({Phase.OTHER: 0.4, Phase.BACKWARD: 0.4, Phase.FORWARD: 0.2})
    by_lock = see_waiting(phases, lock=5, frame=on_card(40.0))
    by_socket = see_waiting(phases, io=4, lock=1, frame=on_card(40.0))
    assert isinstance(judge_blocking_call(by_lock), Cleared)
    assert judge_blocking_call(by_socket).share == pytest.approx(0.4)


def test_the_function_that_waits_is_named_and_not_the_one_that_computes():
    ratios, spots = {Phase.OTHER: 0.85, Phase.FORWARD: 0.15}, {Phase.OTHER: Spot("parse feed.py:20", 0.43)}
    phases = make_phases(ratios, spots=spots, calls_ratio=0.4, calls=Spot("upload ckpt.py:7", 0.4))
    one = judge_blocking_call(see_waiting(phases, io=4))
    assert one.summary.endswith("waits for a disk or a socket 40 % of its time in a call of its own: upload ckpt.py:7")
    assert [row.text for row in one.shows if row.text] == ["upload ckpt.py:7, 40 % of the time"]
    unknown = judge_blocking_call(see_waiting(replace(phases, calls_ratio=0.0), io=4))
    assert unknown.summary.endswith("in a call of its own")
    assert not [row.text for row in unknown.evidence if row.text]


def test_a_request_within_the_forward_pass_is_a_call_too():
    frames = stack(
        ("_call_impl", f"{TORCH}/nn/modules/module.py"),
        ("forward", "/home/u/reward.py", 12),
        ("readinto", f"{LIB}/socket.py"),
    )
    phases = see_stacks({frames: 60, STEP: 40})
    assert phases.ratio(Phase.FORWARD) == 1.0
    assert (phases.calls_in_step_ratio, phases.calls) == (0.6, Spot("forward reward.py:12", 0.6, Phase.FORWARD))
    assert judge_blocking_call(see_waiting(phases, io=6)).share == pytest.approx(0.6)


def test_a_wait_with_a_time_out_counts_where_its_frame_tells_that_it_waits():
    frames = stack(("log", "/home/u/log.py", 5), ("wait", f"{LIB}/threading.py"))
    phases = see_stacks({frames: 50, STEP: 50})
    assert judge_blocking_call(see_waiting(phases, timed_lock=5)).share == pytest.approx(0.5)
    # A fight for the interpreter is no part of a request.
    phases = make_phases({Phase.OTHER: 0.6, Phase.FORWARD: 0.4}, calls_ratio=0.2, calls=Spot("send log.py:7", 0.2))
    assert not isinstance(judge_blocking_call(see_waiting(phases, io=2, timed_lock=4)), Suspicion)


@pytest.mark.parametrize(
    ("name", "call", "file"),
    [
        ("to_remote", "rpc_sync", "distributed/rpc/api.py"),
        ("pull", "_invoke_rpc", "distributed/rpc/rref_proxy.py"),
        ("pull", "wait_all", "futures/__init__.py"),
    ],
)
def test_calls_of_other_ranks_are_comms(name, call, file):
    assert classify(stack((name, "/home/u/rpc.py"), (call, f"{TORCH}/{file}"))) == (Phase.COMMS, None)


@pytest.mark.parametrize("name", ["wait_for_ckpt", "maybe_wait_checkpoint", "flush_upload", "join_pending_saves"])
def test_a_future_of_a_checkpoint_is_a_checkpoint(name):
    for one, phase in ((name, Phase.CHECKPOINT), ("wait_for_rollouts", Phase.OTHER)):
        future = stack((one, "/home/u/ckpt.py"), ("result", f"{LIB}/concurrent/futures/_base.py"), WAIT)
        assert classify(future) == (phase, None)


def test_an_event_loop_without_a_task_to_run_is_named_as_one_and_has_an_advice_of_its_own():
    runs = (*RESTS[:2], frame_of("step", "/home/u/grpo.py", 90))
    for other in (runs, STEP):
        phases = see_stacks({RESTS: 60, other: 40})
        assert phases.calls == Spot("event loop of <module> grpo.py:200", 0.6, is_loop=True)
    one = judge_blocking_call(see_waiting(phases, other=6))
    assert one.summary == "the event loop has nothing to run 60 % of the time: all of its tasks await something"
    assert one.observed == {Need.EVENT_LOOP_WAIT}
    chosen = choose(one.kind, one.cause, one.observed, RunFacts())
    assert [each.remedy.id for each in chosen if each.certain] == ["feed-event-loop"]


def test_a_notebook_without_a_cell_to_run_is_in_no_call_of_its_own():
    rests = (frame_of("start", f"{LIB}/site-packages/ipykernel/kernelapp.py", 742), *RESTS[1:])
    phases = see_stacks({rests: 60, STEP: 40})
    assert (phases.resting_ratio, phases.calls_ratio) == (0.6, 0.0)
    assert isinstance(judge_blocking_call(see_waiting(phases, other=6)), Cleared)


@pytest.mark.parametrize(
    ("words", "said"),
    [("child process", "waits for a child process"), ("sleep", "pauses (time.sleep or alike)"), ("epoll", "sleeps")],
)
def test_what_the_kernel_says_of_the_sleep_is_said(words, said):
    rank = make_process(RANK, runnable=0.3, waiting=0.0, waits_for=words)
    one = judge_blocking_call(see_waiting(SLEEPS, other=5, frame={"processes": (rank,)}))
    assert one.summary.startswith(f"the loop {said} 50 % of its time in a call of its own")


FUTURE = stack(("wait", "/home/u/save.py"), ("result", f"{LIB}/concurrent/futures/_base.py"), WAIT)
QUEUE_WAIT = stack(("wait", "/home/u/save.py"), ("get", f"{LIB}/queue.py"), WAIT)
WRITES = {
    "torch.save": ("worker", stack(("_write", "/home/u/save.py"), ("save", f"{TORCH}/serialization.py"))),
    "the name of its thread": ("ckpt_0", stack(("_write", "/home/u/save.py"))),
    "the name of its function": ("worker", stack(("write_checkpoint", "/home/u/save.py"))),
}
NO_WRITES = {
    # The queue of an executor is made of C.
    "it rests": ("ckpt_0", stack(("_worker", f"{LIB}/concurrent/futures/thread.py"))),
    "it loads": ("loader_0", stack(("fetch_next", "/home/u/ckpt.py"))),
}


def see_beside(main, thread, frames, written=100):
    taken = slice_of((main, 60), (stack(("_call_impl", f"{TORCH}/nn/modules/module.py")), 40))
    beside = StackCount(RANK + 1, thread, frames, written)
    return read_phases([replace(taken, stacks=(*taken.stacks, beside))], 10_500_000_000)[RANK]


@pytest.mark.parametrize(("thread", "frames"), WRITES.values(), ids=WRITES)
def test_a_future_beside_a_thread_that_saves_for_more_than_a_moment_is_a_wait_for_the_checkpoint(thread, frames):
    phases = see_beside(FUTURE, thread, frames)
    assert (phases.ratio(Phase.CHECKPOINT), phases.handed_ratio) == (0.6, 0.0)
    assert phases.where == "checkpoint: wait save.py:7"
    assert see_beside(QUEUE_WAIT, thread, frames).handed_ratio == 0.6
    moment = see_beside(FUTURE, thread, frames, written=20)
    assert (moment.ratio(Phase.CHECKPOINT), moment.handed_ratio) == (0.0, 0.6)


@pytest.mark.parametrize(("thread", "frames"), NO_WRITES.values(), ids=NO_WRITES)
def test_a_future_beside_other_threads_is_what_they_hand_over(thread, frames):
    phases = see_beside(FUTURE, thread, frames)
    assert (phases.ratio(Phase.CHECKPOINT), phases.handed_ratio) == (0.0, 0.6)


NAMED = stack(("get_batch", "/home/u/feed.py", 53))


def test_a_loading_function_that_sleeps_in_a_lock_only_takes_what_others_load():
    phases = see_stacks({NAMED: 60, STEP: 40})
    assert phases.hinted_ratio == 0.6
    assert DataPart.FETCH in phases.parts
    taking, loading = see_waiting(phases, lock=6), see_waiting(phases, other=6)
    assert find_named_wait(taking.ranks[0]) == pytest.approx(0.6)
    assert judge_own_loader(taking).cause == "own-loader"
    assert isinstance(judge_no_workers(taking), Cleared)
    assert isinstance(judge_own_loader(loading), Cleared)
    assert judge_no_workers(loading).cause == "no-workers"
    # A lock of the backward pass is none of the function that loads.
    back = stack(("backward", f"{TORCH}/_tensor.py"), ("_engine_run_backward", f"{TORCH}/autograd/graph.py"))
    phases = see_stacks({NAMED: 50, back: 50})
    assert find_named_wait(see_waiting(phases, lock=5).ranks[0]) == 0.0
    # A name above the frames of a loader is more than a name.
    fetch = ("fetch", f"{TORCH}/utils/data/_utils/fetch.py")
    loaded = (*NAMED, *stack(("__next__", f"{TORCH}/utils/data/dataloader.py"), fetch)[1:])
    assert see_stacks({loaded: 50}).hinted_ratio == 0.0


def test_a_program_that_is_installed_takes_from_its_queue_in_a_process_that_was_started():
    spawned = (
        frame_of("_bootstrap", f"{LIB}/multiprocessing/process.py"),
        frame_of("_launch", f"{LIB}/multiprocessing/popen_fork.py"),
        frame_of("train", f"{LIB}/site-packages/axolotl/train.py"),
        frame_of("get", f"{LIB}/queue.py"),
        frame_of(*WAIT),
    )
    assert receives(spawned)


def test_a_request_below_a_lot_of_logging_is_no_logging():
    ratios = {Phase.LOGGING: 0.4, Phase.OTHER: 0.35, Phase.FORWARD: 0.25}
    phases = make_phases(ratios, calls_ratio=0.35, calls=Spot("send log.py:7", 0.35))
    assert judge_blocking_call(see_waiting(phases, io=4)).observed == {Need.BLOCKING_CALL}
    to_wandb = replace(phases, calls=Spot("logging: wandb train.py:7", 0.35, Phase.LOGGING))
    assert Need.LOGGING_IN_STACK in judge_blocking_call(see_waiting(to_wandb, io=4)).observed


def test_looks_at_a_rank_alone_without_cards_are_taken_whole():
    phases = make_phases({Phase.OTHER: 0.5, Phase.BACKWARD: 0.4, Phase.FORWARD: 0.1})
    assert judge_blocking_call(see_waiting(phases, lock=5)).share == pytest.approx(0.5)
    # A rank in a call of its own is the one that the others wait for.
    late = (Kind.COMMS_BOUND, "straggler")
    assert find_explained(((Kind.PYTHON_BOUND, "blocking-call"), late)) == {late}
