"""A server and a notebook wait for what to do next; a training that waits the same way hangs."""

from dataclasses import replace
from typing import Any

import pytest

from tests.dumps import IN_LOCK, LIB, MAIN, SITE, TRAIN, make_native, make_rank, make_thread
from tests.hanging import conclude, run, sample, stand
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.process import ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Kind

SERVE = StackFrame("<module>", "/run/serve.py", 90)
SELECT = (
    StackFrame("run_forever", f"{LIB}/asyncio/base_events.py", 640),
    StackFrame("_run_once", f"{LIB}/asyncio/base_events.py", 1990),
    StackFrame("select", f"{LIB}/selectors.py", 468),
)
KERNEL = (
    StackFrame("<module>", f"{SITE}/ipykernel_launcher.py", 18),
    StackFrame("start", f"{SITE}/ipykernel/kernelapp.py", 739),
    *SELECT,
)
UVICORN = (SERVE, StackFrame("run", f"{SITE}/uvicorn/main.py", 580), *SELECT)
HTTP = (
    SERVE,
    StackFrame("serve_forever", f"{LIB}/socketserver.py", 233),
    StackFrame("select", f"{LIB}/selectors.py", 415),
)
GRADIO = (SERVE, StackFrame("block_thread", f"{SITE}/gradio/blocks.py", 2900))
QUEUE = (SERVE, StackFrame("answer", "/run/serve.py", 30), StackFrame("get", f"{LIB}/queue.py", 171))
BACKWARD = (SERVE, StackFrame("backward", f"{SITE}/torch/_tensor.py", 623))


def job(frames: tuple[StackFrame, ...], *others: Any, seconds: int = 100, **fields: Any) -> list[Any]:
    waits = "lock or queue (futex)" if frames[-1].function == "get" else "epoll"
    return stand(make_rank(0, *others, frames=frames, waits_for=waits), seconds=seconds, log_age_s=None, **fields)


def said(frames: list[Any]) -> tuple[Kind, Any]:
    finding = conclude(frames)
    return finding.kind, finding.cause


IDLE = (Kind.IDLE, "waiting-for-input")


@pytest.mark.parametrize("frames", [KERNEL, UVICORN, HTTP, GRADIO, QUEUE])
def test_who_waits_for_requests_is_idle(frames):
    judged = run(job(frames, seconds=32))
    assert not any(one.frame.verdict.kind is Kind.HUNG for one in judged)
    finding = judged[-1].frame.verdict
    assert (finding.kind, finding.cause) == IDLE
    assert "waits for requests in" in finding.summary


def test_the_processes_of_one_server_wait_for_requests_each():
    serves = {"frames": UVICORN, "waits_for": "epoll"}
    alone = [replace(make_rank(rank, **serves), rank=0) for rank in (0, 1, 2)]
    finding = conclude(stand(*alone, seconds=100, log_age_s=None))
    assert (finding.kind, finding.cause) == IDLE


def test_of_a_server_that_answered_meanwhile_the_readings_do_not_say_that_it_hangs():
    frames = job(QUEUE, seconds=32)
    later = job(QUEUE, seconds=70)
    shift = later[-1].taken - later[0].taken
    shift_ns = later[-1].taken_ns - later[0].taken_ns + 10**9
    more = [
        replace(one, taken=one.taken + shift, taken_ns=one.taken_ns + shift_ns, rounds=NOT_APPLICABLE) for one in later
    ]
    assert not any(one.frame.verdict.kind is Kind.HUNG for one in run([*frames, *more]))


def test_where_no_stack_may_be_read_an_event_loop_is_not_called_hung():
    blind = [replace(one, rounds=NOT_APPLICABLE) for one in job(UVICORN)]
    assert run(blind, may_ask=False)[-1].frame.verdict.kind is not Kind.HUNG
    several = [replace(one, rounds=NOT_APPLICABLE) for one in job(UVICORN, world_size=2, seconds=310)]
    assert run(several, may_ask=False)[-1].frame.verdict.kind is Kind.HUNG


@pytest.mark.parametrize(
    "frames",
    [
        (MAIN, TRAIN, StackFrame("get", f"{LIB}/queue.py", 171)),
        (SERVE, StackFrame("run_epoch", "/run/serve.py", 30), StackFrame("get", f"{LIB}/queue.py", 171)),
        (StackFrame("<module>", "/run/train.py", 9), StackFrame("get", f"{LIB}/queue.py", 171)),
    ],
)
def test_a_training_at_a_queue_hangs(frames):
    assert said(job(frames)) == (Kind.HUNG, "lock")


def test_what_was_seen_to_train_is_no_server_unless_it_is_a_notebook():
    def trained(frames, seconds=100):
        seen = sample(job(frames, seconds=seconds), 4000, BACKWARD)
        return [one if number < 10 else replace(one, stacks=()) for number, one in enumerate(seen)]

    assert said(trained(QUEUE)) == (Kind.HUNG, "lock")
    assert said(trained(UVICORN))[0] is not Kind.HUNG  # what it asked a server for has minutes
    assert said(trained(UVICORN, seconds=320)) == (Kind.HUNG, "no-progress")
    assert said(trained(KERNEL)) == IDLE


def test_a_page_whose_training_ran_in_a_thread_is_a_server_again_when_that_has_ended():
    """Stacks of the loop are then of that thread, and of the main one since it ended."""
    frames = job(UVICORN, seconds=320)
    trains, serves = sample(frames, 4000, BACKWARD), sample(frames, 4000, UVICORN)
    threaded = [
        replace(one, stacks=tuple(replace(piece, loop_tid=4000) for piece in one.stacks)) for one in trains[:10]
    ]
    threaded += serves[10:]
    assert said(threaded) == IDLE
    # The thread of the loop is still there, at a queue that nobody fills.
    stuck = sample(job(QUEUE), 4000, BACKWARD)
    threaded = [
        replace(one, stacks=tuple(replace(piece, loop_tid=4000) for piece in one.stacks) if number < 10 else ())
        for number, one in enumerate(stuck)
    ]
    assert said(threaded) == (Kind.HUNG, "lock")


def test_a_training_in_another_thread_or_with_other_ranks_is_no_server():
    stuck = make_thread(7, name="trainer", kind=ThreadKind.OTHER, frames=(TRAIN,))
    assert said(job(UVICORN, stuck, seconds=320)) == (Kind.HUNG, "no-progress")
    assert said(job(UVICORN, make_native(8, "pt_gloo_runloop"), seconds=320)) == (Kind.HUNG, "no-progress")
    assert said(job(UVICORN, world_size=2, seconds=320)) == (Kind.HUNG, "no-progress")


RAY = (
    StackFrame("<module>", f"{SITE}/ray/_private/workers/default_worker.py", 330),
    StackFrame("Worker.main_loop", f"{SITE}/ray/_private/worker.py", 960),
)


def test_actors_of_ray_without_a_task_wait_for_one_whatever_the_size_of_their_job():
    actors = [make_rank(rank, make_native(9000 + rank, "pt_nccl_watchdg"), frames=RAY) for rank in (0, 1)]
    for job, size in ((actors, 2), (actors[:1], 8)):
        assert conclude(stand(*job, world_size=size, seconds=310, log_age_s=None)).kind is not Kind.HUNG


def test_an_actor_whose_thread_is_in_the_program_has_a_task():
    task = make_thread(7, name="task", kind=ThreadKind.OTHER, frames=IN_LOCK)
    frames = stand(make_rank(0, task, frames=RAY), world_size=8, seconds=60, log_age_s=None)
    assert conclude(frames).kind is Kind.HUNG


def test_others_that_wait_for_an_actor_without_a_task_hang_after_minutes():
    job = (make_rank(0, frames=RAY), make_rank(1), make_rank(2))
    assert conclude(stand(*job, world_size=3, seconds=60, log_age_s=None)).kind is not Kind.HUNG
    finding = conclude(stand(*job, world_size=3, seconds=310, log_age_s=None))
    assert finding.kind is Kind.HUNG
    assert finding.summary.endswith("; rank 0 without a task")


@pytest.mark.parametrize(
    "below",
    [
        StackFrame("finish", f"{SITE}/wandb/sdk/wandb_run.py", 2100),
        StackFrame("stop", f"{SITE}/neptune/metadata_containers/run.py", 500),
    ],
)
def test_a_run_that_sends_its_last_records_has_minutes(below):
    waits = (*IN_LOCK[:2], below, StackFrame("wait", f"{LIB}/threading.py", 331))
    for seen in ("lock with a time-out", "lock or queue (futex)"):
        job = (make_rank(0, frames=waits, waits_for=seen), make_rank(1))
        assert conclude(stand(*job, world_size=2, seconds=120, log_age_s=125.0)).kind is not Kind.HUNG
        assert conclude(stand(*job, world_size=2, seconds=310, log_age_s=None)).kind is Kind.HUNG


def test_the_actor_that_left_is_who_the_others_wait_for():
    job = (make_rank(0), make_rank(1), make_rank(2), make_rank(3, frames=RAY))
    frames = stand(*job, world_size=4, seconds=310, log_age_s=None)
    finding = conclude(frames)
    assert (finding.kind, finding.cause, finding.rank) == (Kind.HUNG, "missing-rank", 3)
    assert finding.summary.startswith("3 of 4 ranks wait in ")
    assert "none is outside" not in finding.summary


STORE = make_native(8, "pt_nccl_watchdg")
ENGINE = (
    StackFrame("run_engine_core", f"{SITE}/vllm/v1/engine/core.py", 900),
    StackFrame("run_busy_loop", f"{SITE}/vllm/v1/engine/core.py", 1260),
    StackFrame("_process_input_queue", f"{SITE}/vllm/v1/engine/core.py", 1280),
    StackFrame("get", f"{LIB}/queue.py", 171),
    StackFrame("wait", f"{LIB}/threading.py", 331),
)


@pytest.mark.parametrize("frames", [KERNEL, ENGINE[:-1], ENGINE], ids=["a notebook", "an engine", "3.11"])
def test_a_notebook_or_an_engine_with_a_process_group_of_its_own_waits_for_requests(frames):
    waits = "epoll" if frames is KERNEL else "lock or queue (futex)"
    rank = make_rank(0, STORE, frames=frames, waits_for=waits)
    assert said(stand(rank, seconds=310, log_age_s=None)) == IDLE


def test_a_step_of_an_engine_that_does_not_end_hangs():
    step = (*ENGINE[:2], StackFrame("_process_engine_step", f"{SITE}/vllm/v1/engine/core.py", 1300))
    rank = make_rank(0, STORE, frames=(*step, *ENGINE[-2:]), waits_for="lock or queue (futex)")
    assert said(stand(rank, seconds=60, log_age_s=None)) == (Kind.HUNG, "lock")
