"""A main thread that waits is no hang while what it may wait for works: a thread, a pool of C, a child, a card."""

import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.dumps import make_rank, make_worker
from tests.frames import make_process
from tests.hanging import (
    Change,
    beside,
    change_looks,
    conclude,
    died,
    job,
    read,
    run,
    said,
    see,
    see_moves,
    stand,
    thread,
)
from tests.judge.hang.test_devices import AT_REST, SPINS, WORKS, cards, spins
from tests.stacks import IN_LOCK, LIB, MAIN, NEXT_BATCH, READS, RUNNING, SITE, WORKER_READS, stack_of
from tpmon.judge.judge import judge
from tpmon.model.dump import OtherEnd, ProcessLook, ProcessToll, WaitKind, WaitTarget
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE
from tpmon.model.process import Outcome, ProcessEnd, Role, ThreadGroup, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.verdict import Kind

FUTEX = "lock or queue (futex)"
TRAIN = (MAIN, StackFrame("train", "/run/train.py", 40))
ITEM = (MAIN, StackFrame("train", "/run/train.py", 77))
NAP = (MAIN, StackFrame("train", "/run/train.py", 78))
JOIN = (MAIN, StackFrame("main", "/run/train.py", 120), StackFrame("join", f"{LIB}/threading.py", 1119))
SESSION = stack_of(
    "main_loop ray/_private/worker.py:900 > get_next ray/train/_internal/session.py:250 > get lib/queue.py:180"
)
IN_FORWARD = stack_of("run lib/threading.py:980 > fit /run/fit.py:50 > forward torch/nn/modules/linear.py:117")
IN_BACKWARD = (*IN_FORWARD[:1], StackFrame("fit", "/run/fit.py", 52))
TOKENIZE = stack_of("main > tokenize /run/data.py:30 > encode_batch transformers/tokenization_utils_fast.py:500")
SUBPROCESS = (MAIN, StackFrame("upload", "/run/train.py", 70), StackFrame("run", f"{LIB}/subprocess.py", 550))
CPU_ADAM = (*TRAIN, StackFrame("step", f"{SITE}/deepspeed/ops/adam/cpu_adam.py", 150))
SYNC = (*TRAIN, StackFrame("synchronize", f"{SITE}/torch/cuda/__init__.py", 900))
FUTURE = (*WORKER_READS[:4], StackFrame("result", f"{LIB}/concurrent/futures/_base.py", 450))
FETCHED = (*WORKER_READS[:4], StackFrame("get", f"{LIB}/queue.py", 180))
EXECUTOR = StackFrame("_worker", f"{LIB}/concurrent/futures/thread.py", 83)
WAIT = StackFrame("wait", f"{LIB}/threading.py", 331)
BUILD = (MAIN, StackFrame("build_index", "/run/train.py", 50))
PARSE = (MAIN, StackFrame("build_index", "/run/train.py", 51))
IN_GET = (*ITEM, StackFrame("get", f"{LIB}/multiprocessing/queues.py", 103))
LOCKED = make_rank(0, frames=IN_LOCK)
TOKENIZES = make_rank(0, frames=TOKENIZE)
BATCH = make_rank(0, frames=NEXT_BATCH, waits_for="a batch (loader queue)")
CHILD = make_rank(0, frames=SUBPROCESS, waits_for="child process", call="wait4")
FETCHES = make_rank(0, frames=(MAIN, StackFrame("fetch", "/run/data.py", 12), replace(WAIT, line=359)), waits_for=FUTEX)
CPU = {"runnable": 1.0, "waiting": 0.0}


def trains(frames: tuple[StackFrame, ...], used_s: float) -> dict[str, Any]:
    """Let the main thread wait and another get on, for ``used_s`` of CPU between two looks."""
    state = RUNNING if used_s else {"waits_for": "sleep"}
    one, two = (make_rank(0, thread(7, stack, **state), frames=frames) for stack in (IN_FORWARD, IN_BACKWARD))
    return {"looks": (one,), "change": see_moves(used_s, one, two)}


def wakes() -> dict[str, Any]:
    heart = StackFrame("beat", "/run/heart.py", 9)
    one, two = (make_rank(0, thread(7, (heart, *below), waits_for="sleep"), frames=IN_LOCK) for below in ((), (WAIT,)))
    return {"looks": (one,), "change": see((one,), (two,), (one,))}


def decodes(frames: tuple[StackFrame, ...]) -> dict[str, Any]:
    """Let a worker wait for a thread of its own, which works."""
    worker = make_worker(0, 0, frames=frames)
    stacks = [(EXECUTOR, StackFrame("decode", "/run/data.py", line)) for line in (88, 91)]
    one, two = (replace(worker, threads=(*worker.threads, thread(4055, stack, **RUNNING))) for stack in stacks)
    return {"looks": (BATCH, one), "change": see_moves(3.0, one, two, BATCH)}


def tries(*others: ProcessLook, name: str = "fetch") -> dict[str, Any]:
    """Let a worker be at several lines, beside others."""
    one, two = (
        make_worker(0, 0, frames=(*WORKER_READS[:4], StackFrame(name, "/run/data.py", line)), **RUNNING)
        for line in (60, 90)
    )
    return {"looks": (BATCH, one, *others), "change": see_moves(3.0, one, two, BATCH, *others)}


def started(pid: int, *frames: StackFrame, **fields: Any) -> ProcessLook:
    """Make a look at a process that the rank started."""
    plain = make_rank(0, pid=pid, **({"frames": frames, **RUNNING} | fields))
    return replace(plain, role=Role.HELPER, rank=NOT_APPLICABLE, rank_pid=4000)


def moves(main: ProcessLook, function: str) -> dict[str, Any]:
    """Let a process that the rank started be at several lines."""
    one, two = (started(4500, StackFrame(function, "/run/data.py", line)) for line in (10, 20))
    return {"looks": (main, one), "change": see_moves(3.0, one, two, main)}


def child(**fields: Any) -> Any:
    """Make the reading of a process that the rank started, and that was not looked at."""
    plain = {
        "role": Role.HELPER,
        "rank": NOT_APPLICABLE,
        "local_rank": NOT_APPLICABLE,
        "parent": 4000,
        "label": "aws",
        "thread_groups": (),
        "waiting": 0.0,
        "asked_read_bytes_s": 0.0,
        "asked_write_bytes_s": 0.0,
    }
    return make_process(4999, **(plain | fields))


def row(name: str, given: dict[str, Any], **more: Any) -> Any:
    """Make a row of what one of the builders above made."""
    return job(name, *given["looks"], change=given["change"], **more)


def moved_while_looked_at(bytes_s: float) -> Change:
    """Let every process have moved so much a second since the machine was started."""
    return change_looks(
        lambda process, look: replace(process, toll=ProcessToll(0, 0, round(bytes_s * look.taken_ns / 1e9)))
    )


COMM = {"thread_groups": (ThreadGroup(ThreadKind.MAIN, 1, 0.0), ThreadGroup(ThreadKind.COMM, 1, 1.0)), **CPU}
ONE_MAIN = (ThreadGroup(ThreadKind.MAIN, 1, 1.0),)
CALLS = spins(0, frames=TOKENIZE)
LOOPS = make_rank(0, frames=BUILD, holds_gil=True, **RUNNING)
READS_A_SHARD = read(last=18, asked_read_bytes_s=5e7)
AT_BOTH = {4000: (BUILD, PARSE)}


@pytest.mark.parametrize(
    "job",
    [
        row("a training in a thread", trains(JOIN, 3.0), says={90: "", 400: ""}),
        row("a training in a session", trains(SESSION, 3.0), says={90: "", 400: ""}),
        row(
            "a thread that moves and uses little",
            trains(JOIN, 0.0),
            says={90: "", 310: "lock"},
            words="meanwhile thread thread-7 (7) of it moves: fit fit.py:52",
        ),
        row("a thread that only wakes up and sleeps", wakes(), says={40: "lock"}),
        job("a thread of C that computes", TOKENIZES, says={100: "", 310: "lock"}, change=read(**CPU)),
        job("a pool of C", TOKENIZES, says={310: ""}, change=read(runnable=16.0, waiting=0.0), log_age_s=400.0),
        job("a call beside no pool", CALLS, says={400: "spin"}, change=read(runnable=1.0, thread_groups=ONE_MAIN)),
        job("a call with a pool", CALLS, says={400: ""}, change=read(runnable=9.0, thread_groups=ONE_MAIN)),
        job("CPU while it was looked at", replace(TOKENIZES, toll=ProcessToll(10**9, 0, 0)), says={100: ""}),
        job("threads that talk to other ranks are no work", LOCKED, says={40: "lock"}, change=read(**COMM)),
        job("threads that make batches", BATCH, says={100: ""}, change=read(runnable=6.0, waiting=0.0)),
        row("a worker at a future of its own", decodes(FUTURE), says={60: ""}),
        row("a worker at a queue of its own", decodes(FETCHED), says={60: ""}),
        row(
            "a worker that tries again and again",
            tries(),
            says={400: "", 1830: "no-progress"},
            words="waits for a batch; worker 0 of rank 0 (4001) moves: fetch data.py:",
        ),
        # While one worker gets on, no other hangs its rank.
        *(
            row(
                f"a worker that gets on beside {name}",
                tries(make_worker(0, 1, **other), name="decode"),
                says={40: "", 1830: "no-progress"},
                words="worker 0 of rank 0 (4001) moves",
            )
            for name, other in (
                ("a lock", {"frames": (*WORKER_READS[:4], StackFrame("acquire", f"{LIB}/threading.py", 95))}),
                ("a slow file", {"frames": WORKER_READS, **READS}),
            )
        ),
        job("a card that works", LOCKED, says={90: ""}, gpus=cards({"sm_pct": 60.0})),
        job("a card that is idle", LOCKED, says={90: "lock"}, gpus=cards(AT_REST)),
        job("who computes beside one", spins(0, frames=CPU_ADAM), says={45: "", 320: "spin"}, gpus=cards(AT_REST)),
        job("who synchronizes with one", spins(0, frames=SYNC), says={40: "gpu-wait"}, gpus=cards(AT_REST)),
        job("a download that flows", FETCHES, says={400: ""}, change=read(asked_read_bytes_s=50e6)),
        job("one that does not", FETCHES, says={400: "lock"}, change=read(asked_read_bytes_s=1e4)),
        # What flowed while it was looked at, and no more, gives minutes.
        job("one that flowed", FETCHES, says={100: "", 330: "lock"}, change=moved_while_looked_at(50e6)),
        job("one that did not", FETCHES, says={100: "lock"}, change=moved_while_looked_at(1e4)),
        job(
            "a store that stalls in a large file", LOCKED, says={400: ""}, change=read(last=15, asked_write_bytes_s=2e8)
        ),
        job("no store", LOCKED, says={400: "lock"}),
        job("a loop that reads a shard now and then", LOOPS, says={330: ""}, stacks=AT_BOTH, change=READS_A_SHARD),
        job("a loop that reads nothing", LOOPS, says={330: "spin"}, stacks=AT_BOTH),
    ],
)
def test_what_works_beside_a_wait_gives_it_time(job):
    job.check()


def test_what_a_run_read_and_wrote_before_it_stood_gives_a_hang_no_time():
    trained = replace(LOCKED, threads=make_rank(0, frames=ITEM, **RUNNING).threads)
    before = read(asked_read_bytes_s=5e7)(stand(trained, seconds=59, log_age_s=None))
    after = stand(LOCKED, seconds=40, log_age_s=None)
    shift_ns = after[0].taken_ns - before[-1].taken_ns - 10**9
    earlier = [replace(one, taken_ns=one.taken_ns + shift_ns, rounds=NOT_APPLICABLE) for one in before]
    assert said([*earlier, *after]) == (Kind.HUNG, "lock")


IDLE_TOOL = child(runnable=0.0)
GRANDCHILD = replace(child(runnable=1.0), pid=5001, parent=4999)
LOADER_WORKER = {"role": Role.WORKER, "runnable": 1.0, "worker": NOT_APPLICABLE}
SHELL_TOOL = child(runnable=1.0, parent=4998, rank_pid=4000)
POOL = stack_of(
    "main > prepare /run/train.py:30 > map lib/multiprocessing/pool.py:367 > wait lib/multiprocessing/pool.py:765"
)
AT_POOL = make_rank(0, frames=POOL, waits_for=FUTEX)
AT_RESULT = make_rank(0, frames=(*ITEM, replace(FUTURE[-1], line=451)), waits_for=FUTEX)
AT_QUEUE = make_rank(0, frames=IN_GET, waits_for="pipe read")
EXECUTOR_LOOP = StackFrame("_process_worker", f"{LIB}/concurrent/futures/process.py", 240)
POOL_LOOP = StackFrame("worker", f"{LIB}/multiprocessing/pool.py", 125)
MAPSTAR = replace(POOL_LOOP, function="mapstar", line=48)
TASKS = {
    "a library in an executor": (EXECUTOR_LOOP, StackFrame("copyfile", f"{LIB}/shutil.py", 269)),
    "C in an executor": (EXECUTOR_LOOP,),
    "what is called get": (EXECUTOR_LOOP, StackFrame("get", f"{SITE}/diskcache/core.py", 1135)),
    "a library in a pool": (POOL_LOOP, MAPSTAR, StackFrame("cp", "/b/shutil.py", 2)),
    "C in a map of a pool": (POOL_LOOP, MAPSTAR),
    "C by apply_async": (POOL_LOOP,),
}
AT_PIPE = {"waits_for": "pipe read", "state": "S", "call": "read", "wchan": "pipe_read"}
IDLE_TASKS = StackFrame("get", f"{LIB}/multiprocessing/queues.py", 103)
END = ProcessEnd(
    pid=4500,
    role=Role.HELPER,
    rank=NOT_APPLICABLE,
    worker=NOT_APPLICABLE,
    outcome=Outcome.FAILED,
    signal="SIGKILL",
    how="SIGKILL; OOM killer (kernel log)",
)


def ends(end: ProcessEnd, second: int = 5) -> Change:
    """Let a process that the rank started live until then, and be seen to end."""
    name = {"name": "python", "parent": 4000} if end.role is Role.HELPER else {}
    local = end.rank if end.role is Role.RANK else NOT_APPLICABLE
    one = make_process(end.pid, role=end.role, rank=end.rank, local_rank=local, **name)

    def change(frames: list[Frame]) -> list[Frame]:
        return [*beside(one)(frames[:second]), replace(frames[second], ends=(end,)), *frames[second + 1 :]]

    return change


@pytest.mark.parametrize(
    "job",
    [
        job("a program that works", CHILD, says={100: ""}, change=beside(child(runnable=1.2))),
        job("one that works a little", CHILD, says={100: ""}, change=beside(child(runnable=0.05))),
        job("one that reads", CHILD, says={100: ""}, change=beside(child(runnable=0.0, asked_read_bytes_s=5e6))),
        job("one that does nothing", CHILD, says={100: "no-progress"}, change=beside(IDLE_TOOL)),
        job("one of another", CHILD, says={100: "no-progress"}, change=beside(child(runnable=1.2, parent=1))),
        job("the child of a child", CHILD, says={400: ""}, change=beside(IDLE_TOOL, GRANDCHILD)),
        # A shell is no process of the job.
        job("what a shell started", CHILD, says={400: ""}, change=beside(SHELL_TOOL)),
        job("a pool of an older torch", LOCKED, says={100: ""}, change=beside(child(name="python", **LOADER_WORKER))),
        job(
            "a loader worker", LOCKED, says={100: "lock"}, change=beside(child(name="pt_data_worker", **LOADER_WORKER))
        ),
        job("a logger that ticks", LOCKED, says={40: "lock"}, change=beside(child(runnable=0.1))),
        job("a child that works a little", LOCKED, says={400: "lock"}, change=beside(child(runnable=0.5))),
        job("compilers", LOCKED, says={400: ""}, change=beside(child(runnable=4.0))),
        job("an upload", LOCKED, says={400: ""}, change=beside(child(runnable=0.0, asked_write_bytes_s=5e7))),
        row("a pool that works for an hour", moves(AT_POOL, "tokenize"), says={3600: ""}),
        row("a process that moves beside a queue", moves(AT_QUEUE, "watch"), says={400: "", 1830: "no-progress"}),
        *(
            job(f"a task of {name}", AT_RESULT, started(4500, *stack, **READS), says={45: "blocked-io"})
            for name, stack in TASKS.items()
        ),
        *(
            job(
                f"a process of {name} without a task",
                AT_RESULT,
                started(4500, loop, IDLE_TASKS, **AT_PIPE),
                says={45: "lost-batch"},
            )
            for name, loop in (("an executor", EXECUTOR_LOOP), ("a pool", POOL_LOOP))
        ),
        job(
            "a pool of which one was seen to be killed",
            AT_POOL,
            started(4501, POOL_LOOP, IDLE_TASKS, **AT_PIPE),
            says={45: "dead-worker"},
            words="(4500: SIGKILL; OOM killer (kernel log))",
            change=ends(END),
        ),
        job("a dead child", AT_QUEUE, says={45: "dead-worker"}, words="4500: SIGKILL)", **died("python", pid=4500)),
        job(
            "a dead child that was seen to end",
            AT_QUEUE,
            says={45: "dead-worker"},
            words="4500: SIGKILL; OOM killer",
            **died("python", pid=4500),
            change=ends(END),
        ),
        # Into a queue only Python puts.
        *(
            job(f"{name} died", AT_QUEUE, says={100: cause}, **died(name, "exit 0"))
            for name, cause in (("git", "blocked-io"), ("train.py", "dead-worker"))
        ),
    ],
)
def test_a_process_that_was_started_and_works_is_waited_for(job):
    job.check()


@pytest.mark.parametrize("package", ["multiprocess", "joblib/externals/loky/backend"])
def test_a_copy_of_the_resource_tracker_is_left_out_as_the_original(package):
    waits = make_rank(0, frames=(replace(MAIN, line=9), FUTURE[-1]))

    def judged(file: str) -> object:
        tracker = started(4500, StackFrame("main", file, 213), **AT_PIPE)
        return said(stand(waits, tracker, seconds=2000, log_age_s=None))

    original = judged(f"{LIB}/multiprocessing/resource_tracker.py")
    assert judged(f"{LIB}/site-packages/{package}/resource_tracker.py") == original
    assert judged("/run/pool.py") != original, "a child that the program started itself is blamed"


# --- requests ---

ASKED = WaitTarget("recvfrom", 7, WaitKind.SOCKET, "tcp", NOT_APPLICABLE, NOT_APPLICABLE, NOT_APPLICABLE)
HERE = replace(ASKED, others=(OtherEnd(7777, NOT_APPLICABLE, "vllm"),))
REQUESTS, HTTP = StackFrame("send", f"{SITE}/requests/adapters.py", 667), StackFrame("f", f"{LIB}/http/client.py", 14)


def asks(*below: StackFrame, target: WaitTarget = ASKED, above: str = "") -> dict[str, Any]:
    """Return the fields of a thread that waits for the answer to a request."""
    outer = (StackFrame("wrapped", f"{SITE}/{above}", 10),) if above else ()
    return {"frames": (*outer, *IN_LOCK, *below), "waits_for": "socket receive", "waits_on": target, "call": "recvfrom"}


def asking(name: str, says: dict[int, str], *below: StackFrame, **more: Any) -> Any:
    """Make a row of a rank that waits for the answer to a request."""
    return job(name, make_rank(0, **asks(*below, **more)), says=says)


EVENT_LOOP = stack_of(
    "run lib/asyncio/runners.py:190 > run_forever lib/asyncio/base_events.py:608"
    " > _run_once lib/asyncio/base_events.py:1898 > select lib/selectors.py:468"
)
VLLM = started(4500, *EVENT_LOOP, state="S", waits_for="epoll", wchan="ep_poll", call="epoll_wait")
MINUTES, HALF_AN_HOUR = {120: "", 310: "blocked-io"}, {400: "", 1810: "blocked-io"}


@pytest.mark.parametrize(
    "job",
    [
        asking("a socket that nothing tells of", {40: "blocked-io"}),
        asking("a client of HTTP", MINUTES, REQUESTS),
        asking("the standard library", MINUTES, HTTP),
        job("a worker that asks", BATCH, make_worker(0, 0, **asks(REQUESTS)), says=MINUTES),
        asking("redis here", MINUTES, replace(HTTP, file=f"{SITE}/redis/x.py"), target=HERE),
        asking("wandb here", MINUTES, replace(HTTP, file=f"{SITE}/wandb/x.py"), target=HERE),
        asking("actors", HALF_AN_HOUR, StackFrame("get", f"{SITE}/ray/_private/worker.py", 2600)),
        asking("a model on this machine", HALF_AN_HOUR, REQUESTS, target=HERE),
        job(
            "a model that the trainer started",
            make_rank(0, **asks(REQUESTS, target=replace(ASKED, others=(OtherEnd(4500, NOT_APPLICABLE, "vllm"),)))),
            VLLM,
            says={400: "", 1810: "no-progress"},
        ),
        asking("a model through a logger", {400: ""}, REQUESTS, target=HERE, above="mlflow/x.py"),
        asking(
            "a model through a client of files",
            {400: ""},
            replace(HTTP, file=f"{SITE}/huggingface_hub/inference/_client.py"),
            target=HERE,
            above="requests/x.py",
        ),
    ],
)
def test_who_asked_a_server_waits_for_its_answer(job):
    job.check()


# --- several ranks ---

ASIDE = f"{SITE}/megatron/core/dist_checkpointing/strategies"
ASYNC_SAVE = stack_of(
    "main > pretrain /run/train.py:40 > maybe_finalize_async_save megatron/training/async_utils.py:60"
    " > close megatron/core/dist_checkpointing/strategies/async_utils.py:270"
    " > join lib/multiprocessing/process.py:149"
)


@pytest.mark.parametrize(
    "job",
    [
        job(
            "the end of a save aside of megatron",
            make_rank(0, frames=ASYNC_SAVE, waits_for="child process", call="wait4"),
            started(4500, StackFrame("write_preloaded_data", f"{ASIDE}/filesystem_async.py", 9), **READS),
            make_rank(1),
            says={100: "", 310: "missing-rank"},
            world_size=2,
        ),
        # A card that works may do what the others wait for.
        *(
            job(
                f"a card that {'works' if works else 'spins'} beside {name}",
                spins(0),
                other,
                says={seconds: "" if works else "missing-rank"},
                world_size=2,
                gpus=cards(WORKS if works else SPINS, AT_REST),
            )
            for name, other, seconds in (
                ("a lock", make_rank(1, frames=IN_LOCK), 40),
                ("a sleep", make_rank(1, frames=NAP, waits_for="sleep"), 90),
            )
            for works in (True, False)
        ),
    ],
)
def test_what_one_rank_does_the_others_wait_for(job):
    job.check()


@pytest.mark.parametrize(
    ("seconds", "watch", "advised"), [*((n, {}, "310s") for n in (15, 40, 90)), (15, {"asked_s": 60.0}, "70s")]
)
def test_the_command_that_is_advised_looks_as_long_as_it_takes(seconds, watch, advised):
    finding = conclude(stand(make_rank(0), world_size=2, seconds=seconds, log_age_s=None), **watch)
    assert finding.kind is not Kind.HUNG
    assert f"--for {advised}" in finding.try_


def count_calls(threads: int) -> int:
    """Count the calls of one judgement of a rank that waits for a lock beside so many threads at rest."""
    frames = stand(make_rank(0, *(thread(number, IN_FORWARD) for number in range(7, 7 + threads)), frames=IN_LOCK))
    standing = replace(run(frames)[-1].standing, judged_ns=0)
    calls: list[str] = []
    sys.setprofile(lambda _frame, event, _told: calls.append(event))
    try:
        judged = judge(frames, standing)
    finally:
        sys.setprofile(None)
    assert judged.standing.watch.picture is not None
    return calls.count("call")


def test_each_thread_of_a_hung_job_costs_a_judgement_the_same():
    none, some, many = map(count_calls, (0, 100, 300))
    assert many - some < 2.2 * (some - none)
