"""List jobs as Frames, a second apart: one of each kind that the judge knows, for what must hold of all of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.any_windows import make_slice
from tests.dumps import (
    BACKWARD,
    DECODE,
    IN_LOCK,
    LIB,
    MAIN,
    NEXT_BATCH,
    NFS,
    RUNNING,
    SITE,
    TRAIN,
    WORKER_READS,
    make_rank,
    make_thread,
    make_worker,
    stack_of,
)
from tests.frames import make_ages, make_frame, make_gpu, make_process
from tests.goldens.gpu_node import eight_gpus
from tests.goldens.playing import hold
from tests.goldens.small_jobs import ended, no_workers, two_ranks, with_facts
from tests.hanging import died, stand
from tests.judging import make_looks
from tests.phase_stacks import stack
from tests.starving import COMPUTES, DISK, IDLES, SMALL_FILES, SOCKET, line_up, make_second
from tpmon.model.frame import Frame
from tpmon.model.gpu import ThrottleShare
from tpmon.model.known import known_or
from tpmon.model.process import ThreadKind
from tpmon.model.stacks import StackFrame

Build = Callable[[], list[Frame]]
BARRIER = (MAIN, TRAIN, StackFrame("barrier", f"{SITE}/torch/distributed/distributed_c10d.py", 4100))
QUEUE_GET = (MAIN, TRAIN, StackFrame("get", f"{LIB}/queue.py", 171), StackFrame("wait", f"{LIB}/threading.py", 320))
AT_CHILD = (MAIN, TRAIN, StackFrame("wait", f"{LIB}/subprocess.py", 1264))
JOIN = (MAIN, StackFrame("_shutdown", f"{LIB}/threading.py", 1590))
EVENT_LOOP = stack_of(
    "<module> /run/serve.py:9 > _run_once lib/asyncio/base_events.py:1900 > select lib/selectors.py:468"
)
ANSWERS = (EVENT_LOOP[0], StackFrame("answer", "/run/serve.py", 30), *QUEUE_GET[2:])
SERVES = stack_of("run lib/threading.py:980 > serve_forever lib/socketserver.py:233 > select lib/selectors.py:415")
STEPS = {stack("main train step call linear"): 18, stack("main train backward engine"): 20}


def _hang(*looks: Any, **fields: Any) -> Build:
    return lambda: stand(*looks, **fields)


def _starve(wait: float, *kinds: dict[str, Any], **more: Any) -> Build:
    return lambda: line_up([make_second(wait, kinds, **more)] * 25)


def _steps(names: dict[tuple[StackFrame, ...], int], **fields: Any) -> Build:
    """Build a job of one rank whose main thread was met in these stacks."""

    def build() -> list[Frame]:
        process = {one: fields.pop(one) for one in ("waits_for", "state", "name") if one in fields}
        frame = make_frame(
            processes=(make_process(4211, **process),), ages_s=make_ages(stacks=1.0), loader=(), **fields
        )
        return _place(hold(frame, 40, [make_slice(4211, 0, names)]))

    return build


def _place(frames: list[Frame]) -> list[Frame]:
    placed = line_up(frames)
    return [
        replace(
            frame,
            stacks=tuple(
                replace(one, ended=frame.taken, ended_ns=frame.taken_ns) for one in known_or(frame.stacks, ())
            ),
        )
        for frame in placed
    ]


def _throttled() -> list[Frame]:
    plain = replace(eight_gpus(), ages_s=make_ages(gpu=0.4, stacks=1.2))
    cards = tuple(
        replace(card, throttle_shares=(ThrottleShare("SW thermal", 38.0, "counter"),), temperature_margin_c=1.0)
        if card.index == 3
        else card
        for card in known_or(plain.gpus, ())
    )
    return _place(hold(replace(plain, gpus=cards), 24, [make_slice(51_200 + n, 8 + n, STEPS) for n in range(8)]))


def _straggler() -> list[Frame]:
    late = {stack("main train step call linear"): 24, stack("main train backward engine"): 14}
    waits = {stack("main train c10d all_reduce"): 24, stack("main train backward engine"): 14}
    slices = [make_slice(4211, 0, waits), make_slice(4212, 1, late)]
    return _place(hold(with_facts(replace(two_ranks(), ages_s=make_ages(stacks=0.9))), 24, slices))


SCENES: dict[str, Build] = {
    "all ranks in a collective": _hang(make_rank(0), make_rank(1)),
    "a rank elsewhere": _hang(make_rank(0), make_rank(1), world_size=4),
    "a rank in a lock": _hang(make_rank(0), make_rank(1, frames=IN_LOCK)),
    "a rank at a queue": _hang(make_rank(0), make_rank(1, frames=QUEUE_GET)),
    "a rank reads a file": _hang(make_rank(0), make_rank(1, frames=IN_LOCK, state="D", waits_for="NFS", waits_on=NFS)),
    "a rank at a child": _hang(make_rank(0), make_rank(1, frames=AT_CHILD, waits_for="child process")),
    "a rank sleeps": _hang(make_rank(0), make_rank(1, frames=IN_LOCK, waits_for="sleep")),
    "a rank goes round": _hang(make_rank(0, frames=IN_LOCK, **RUNNING), seconds=130),
    "a rank is stopped": _hang(make_rank(0), make_rank(1, state="T", waits_for="stopped by a signal")),
    "both ranks are stopped": _hang(
        make_rank(0, state="t", waits_for="stopped by a debugger"),
        make_rank(1, state="t", waits_for="stopped by a debugger"),
    ),
    "a barrier": _hang(make_rank(0, frames=BARRIER), make_rank(1, frames=IN_LOCK), seconds=60),
    "backward in a lock": _hang(make_rank(0, frames=BACKWARD), make_rank(1, frames=BACKWARD)),
    "a lost batch": _hang(
        make_rank(0, frames=NEXT_BATCH, waits_for="a batch (loader queue)"),
        make_worker(0, 0, waits_for="work from its rank (loader queue)"),
    ),
    "a worker reads": _hang(
        make_rank(0, frames=NEXT_BATCH, waits_for="a batch (loader queue)"),
        make_worker(0, 0, frames=WORKER_READS, state="D", waits_for="NFS", waits_on=NFS),
    ),
    "a worker is dead": _hang(
        make_rank(0, frames=NEXT_BATCH, waits_for="a batch (loader queue)"),
        make_worker(0, 0, waits_for="work from its rank (loader queue)"),
        **died("pt_data_worker", pid=4099),
    ),
    "a child of its own is dead": _hang(
        make_rank(0, frames=AT_CHILD, waits_for="child process"), **died("convert", "exit 1", pid=4099)
    ),
    "a thread that does not end": _hang(
        make_rank(
            0,
            make_thread(
                4007,
                name="flusher",
                kind=ThreadKind.OTHER,
                frames=(StackFrame("flush", "/run/log.py", 7), *QUEUE_GET[2:]),
            ),
            frames=JOIN,
        )
    ),
    "a server": _hang(make_rank(0, frames=EVENT_LOOP, waits_for="epoll")),
    "a server at a queue": _hang(
        make_rank(0, make_thread(7, name="http", kind=ThreadKind.OTHER, frames=SERVES), frames=ANSWERS)
    ),
    "a program at a queue": _hang(make_rank(0, frames=ANSWERS)),
    "input": _hang(make_rank(0, frames=IN_LOCK, waits_for="terminal input")),
    "a rank decodes": _hang(make_rank(0, frames=DECODE, **RUNNING), seconds=60),
    "no step in 14 s": _hang(make_rank(0), make_rank(1, frames=IN_LOCK), seconds=14),
    "workers compute": _starve(0.7, COMPUTES, COMPUTES),
    "workers read a disk": _starve(0.7, DISK, DISK),
    "workers read small files": _starve(0.7, SMALL_FILES, SMALL_FILES),
    "workers wait for a store": _starve(0.7, SOCKET, SOCKET),
    "one worker is slow": _starve(0.7, COMPUTES, IDLES, IDLES, IDLES),
    "workers rest": _starve(0.05, IDLES, IDLES),
    "steps": _steps(STEPS),
    "the loop fetches": _steps({stack("main train next next_data fetch item decode"): 30, **STEPS}),
    "the loop takes from a queue": _steps({stack("main train thread_queue"): 30, **STEPS}),
    "a synchronize": _steps({stack("main train synchronize"): 30, **STEPS}, gpus=(make_gpu(),)),
    "logging": _steps({stack("main train logging"): 30, **STEPS}, main_threads=(make_looks(4211, other=8),)),
    "a checkpoint": _steps({stack("main train save"): 38}),
    "an import": _steps({stack("main import torch_module"): 38}),
    "hot card": _throttled,
    "late rank": _straggler,
    "no workers": lambda: _place(hold(no_workers(), 20, [make_slice(4211, 0, STEPS)])),
    "ended": lambda: line_up([*hold(two_ranks(), 20), ended()]),
}
"""By name: what makes a fresh list of Frames, oldest first."""
