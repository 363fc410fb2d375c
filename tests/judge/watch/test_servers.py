"""A server and a notebook wait for what to do next; a training that waits the same way hangs."""

from dataclasses import replace

import pytest

from tests.dumps import make_native, make_rank
from tests.frames import later, set_all
from tests.hanging import Change, job, run, sample, stand, thread
from tests.stacks import IN_LOCK, LIB, MAIN, SITE, TRAIN, stack_of
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Kind

SERVE = StackFrame("<module>", "/run/serve.py", 90)
SELECT = stack_of(
    "run_forever lib/asyncio/base_events.py:640 > _run_once lib/asyncio/base_events.py:1990"
    " > select lib/selectors.py:468"
)
KERNEL = (
    StackFrame("<module>", f"{SITE}/ipykernel_launcher.py", 18),
    StackFrame("start", f"{SITE}/ipykernel/kernelapp.py", 739),
    *SELECT,
)
UVICORN = (SERVE, StackFrame("run", f"{SITE}/uvicorn/main.py", 580), *SELECT)
HTTP = stack_of("<module> /run/serve.py:90 > serve_forever lib/socketserver.py:233 > select lib/selectors.py:415")
GRADIO = (SERVE, StackFrame("block_thread", f"{SITE}/gradio/blocks.py", 2900))
GET = StackFrame("get", f"{LIB}/queue.py", 171)
QUEUE = (SERVE, StackFrame("answer", "/run/serve.py", 30), GET)
RUN = StackFrame("run", f"{LIB}/threading.py", 980)
TAKES, SERVES, LOGS = (
    thread(7, (RUN, *frames))
    for frames in (HTTP[1:], UVICORN[1:], (StackFrame("run", f"{SITE}/wandb/sdk/lib/asyncio_manager.py", 40), *SELECT))
)
BACKWARD = (SERVE, StackFrame("backward", f"{SITE}/torch/_tensor.py", 623))
RAY = stack_of("<module> ray/_private/workers/default_worker.py:330 > Worker.main_loop ray/_private/worker.py:960")
STORE = make_native(8, "pt_nccl_watchdg")
CORE = f"{SITE}/vllm/v1/engine/core.py"
ENGINE = stack_of(
    "run_engine_core vllm/v1/engine/core.py:900 > run_busy_loop vllm/v1/engine/core.py:1260"
    " > _process_input_queue vllm/v1/engine/core.py:1280 > get lib/queue.py:171"
    " > wait lib/threading.py:331"
)
STEP = (*ENGINE[:2], StackFrame("_process_engine_step", CORE, 1300), *ENGINE[-2:])


def rests(frames, *others, **fields):
    """Make a rank that waits at the end of ``frames``."""
    at_lock = frames[-1].file.endswith(("/queue.py", "/threading.py"))
    waits_for = "lock or queue (futex)" if at_lock else "epoll"
    return make_rank(0, *others, **({"frames": frames, "waits_for": waits_for} | fields))


def trained(*stacks, first: int = 10, loop: bool = False) -> Change:
    """Let samples of the first seconds be of a step, later ones of ``stacks``; ``loop``: in a thread of the loop."""

    def change(frames: list[Frame]) -> list[Frame]:
        steps = sample(frames, 4000, BACKWARD)[:first]
        if loop:
            steps = [replace(one, stacks=tuple(replace(a, loop_tid=4000) for a in one.stacks)) for one in steps]
        rest = sample(frames, 4000, *stacks) if stacks else [replace(one, stacks=()) for one in frames]
        return [*steps, *rest[first:]]

    return change


@pytest.mark.parametrize(
    "job",
    [
        job("a notebook", rests(KERNEL), says={100: "idle"}),
        job("uvicorn", rests(UVICORN), says={100: "idle"}),
        job("a server of the standard library", rests(HTTP), says={100: "idle"}),
        job("gradio", rests(GRADIO), says={100: "idle"}),
        job("a queue that a thread fills", rests(QUEUE, TAKES), says={100: "idle"}),
        job("a queue that a loop fills", rests(QUEUE, SERVES), says={100: "idle"}),
        job("a file called so", rests((replace(SERVE, file="/run/train.py"), GET), TAKES), says={100: "idle"}),
        job("a queue that nobody fills", rests(QUEUE), says={100: "lock"}),
        job("a queue beside a logger", rests(QUEUE, LOGS), says={100: "lock"}),
        job("a training at a queue", rests((MAIN, TRAIN, GET)), says={100: "lock"}),
        job(
            "each process of a server",
            *(make_rank(n, frames=UVICORN, waits_for="epoll") for n in range(3)),
            says={100: "idle"},
            change=lambda frames: [set_all(one, rank=0, local_rank=0) for one in frames],
        ),
        job("a queue after a step", rests(QUEUE, TAKES), says={100: "lock"}, change=trained()),
        # What it asked a server for has minutes.
        job("an event loop after a step", rests(UVICORN), says={100: "", 320: "no-progress"}, change=trained()),
        job("a notebook after a step", rests(KERNEL), says={100: "idle"}, change=trained()),
        job(
            "a page whose training in a thread has ended",
            rests(UVICORN),
            says={320: "idle"},
            change=trained(UVICORN, loop=True),
        ),
        job("a thread of the loop at a queue", rests(QUEUE), says={100: "lock"}, change=trained(loop=True)),
        job("a step in a thread", rests(UVICORN, thread(7, (RUN, *BACKWARD[1:]))), says={320: "no-progress"}),
        job("a thread of gloo", rests(UVICORN, make_native(8, "pt_gloo_runloop")), says={320: "no-progress"}),
        job("one of two ranks", rests(UVICORN), says={320: "no-progress"}, world_size=2),
        job("a notebook with a process group", rests(KERNEL, STORE), says={310: "idle"}),
        job("an engine without a request", rests(ENGINE[:-1], STORE), says={310: "idle"}),
        job("the same of 3.11", rests(ENGINE, STORE), says={310: "idle"}),
        job("a step of an engine that does not end", rests(STEP, STORE), says={60: "lock"}),
        job("an actor of ray without a task", rests(RAY, STORE), says={310: ""}, world_size=8),
        job("all actors without one", *(make_rank(n, STORE, frames=RAY) for n in (0, 1)), says={310: ""}, world_size=2),
        job(
            "an actor whose thread is in the program",
            make_rank(0, thread(7, IN_LOCK), frames=RAY),
            says={60: "lock"},
            world_size=8,
        ),
        job(
            "the actor that left",
            *(make_rank(n) for n in range(3)),
            make_rank(3, frames=RAY),
            says={60: "", 310: "missing-rank"},
            words=("3 of 4 ranks wait in ", "; rank 3 without a task"),
            rank=3,
            world_size=4,
        ),
    ],
)
def test_who_waits_for_requests_is_idle_and_who_trains_is_not(job):
    finding = job.check()
    assert finding.kind is not Kind.IDLE or "waits for requests in" in finding.summary
    assert "none is outside" not in finding.summary


def test_a_server_that_answers_meanwhile_is_never_called_hung():
    frames, longer = (stand(rests(QUEUE, TAKES), seconds=seconds, log_age_s=None) for seconds in (32, 70))
    more = [later(one, 71, rounds=NOT_APPLICABLE) for one in longer]
    assert not any(one.frame.verdict.kind is Kind.HUNG for one in run([*frames, *more]))
    # An event loop alone neither, where no stack may be read.
    for fields, hung in (({}, False), ({"world_size": 2, "seconds": 310}, True)):
        frames = stand(rests(UVICORN), **({"seconds": 100, "log_age_s": None} | fields))
        blind = [replace(one, rounds=NOT_APPLICABLE) for one in frames]
        assert (run(blind, may_ask=False)[-1].frame.verdict.kind is Kind.HUNG) is hung


@pytest.mark.parametrize("below", ["wandb/sdk/wandb_run.py", "neptune/metadata_containers/run.py"])
@pytest.mark.parametrize("waits_for", ["lock with a time-out", "lock or queue (futex)"])
def test_a_run_that_sends_its_last_records_has_minutes(below, waits_for):
    frames = (*IN_LOCK[:2], StackFrame("finish", f"{SITE}/{below}", 2100), ENGINE[-1])
    sends = job("", rests(frames, waits_for=waits_for), make_rank(1), says={120: "", 310: "missing-rank"}, world_size=2)
    sends.values[0].check()
