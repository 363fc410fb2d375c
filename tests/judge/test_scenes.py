"""What must hold of every job: its judge is its Standing, one origin is one source, names decide nothing."""

import ast
import dataclasses
import gc
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests import judging, stacks
from tests.any_windows import make_slice
from tests.dumps import make_native, make_rank, make_thread, make_worker
from tests.frames import make_ages, make_frame, make_gpu, make_process
from tests.goldens.gpu_node import eight_gpus
from tests.goldens.playing import hold, place
from tests.goldens.small_jobs import ended, no_workers, two_ranks, with_facts
from tests.hanging import died, number_threads, stand, wake
from tests.judging import make_looks
from tests.phase_stacks import stack
from tests.stacks import IN_LOCK, LIB, MAIN, NFS, TRAIN, stack_of
from tests.starving import COMPUTES, DISK, IDLES, SMALL_FILES, SOCKET, line_up, make_second
from tpmon.judge import judge
from tpmon.judge.dumps import camps
from tpmon.judge.dumps.describe import describe_stack
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.hysteresis import Standing, key_of
from tpmon.judge.stacks.classify import is_users, last_name, mark_frame
from tpmon.judge.stacks.phases import read_frame_rules
from tpmon.judge.watch.tracker import WatchedTime
from tpmon.model.dump import DeadChild, OtherEnd, ProcessLook, WaitKind
from tpmon.model.figures import Origin
from tpmon.model.frame import Frame, Target
from tpmon.model.gpu import ThrottleShare
from tpmon.model.known import NOT_APPLICABLE, Known, is_known, known_or
from tpmon.model.process import WORKER_NAME, ProcessSample, Role, ThreadKind
from tpmon.model.stacks import StackFrame, StackSlice
from tpmon.model.verdict import Confidence, Finding
from tpmon.model.waits import Wait

Build = Callable[[], list[Frame]]
BARRIER = stack_of("main > train > barrier torch/distributed/distributed_c10d.py:4100")
QUEUE_GET = (MAIN, TRAIN, StackFrame("get", f"{LIB}/queue.py", 171), StackFrame("wait", f"{LIB}/threading.py", 320))
AT_CHILD = (MAIN, TRAIN, StackFrame("wait", f"{LIB}/subprocess.py", 1264))
FLUSHES = (StackFrame("flush", "/run/log.py", 7), *QUEUE_GET[2:])
JOIN = (MAIN, StackFrame("_shutdown", f"{LIB}/threading.py", 1590))
EVENT_LOOP = stack_of(
    "<module> /run/serve.py:9 > _run_once lib/asyncio/base_events.py:1900 > select lib/selectors.py:468"
)
ANSWERS = (EVENT_LOOP[0], StackFrame("answer", "/run/serve.py", 30), *QUEUE_GET[2:])
SERVES = stack_of("run lib/threading.py:980 > serve_forever lib/socketserver.py:233 > select lib/selectors.py:415")
HTTP = make_thread(7, name="http", kind=ThreadKind.OTHER, frames=SERVES)
TIMED = "lock with a time-out (futex)"
POLLS = (MAIN, TRAIN, StackFrame("wait", f"{LIB}/threading.py", 331))
GLOO = make_native(9001, "pt_gloo_runloop")
BACKWARD = stacks.BACKWARD
OTHER_END = replace(stacks.PIPE, kind=WaitKind.SOCKET, others=(OtherEnd(4000, NOT_APPLICABLE, "rank 0"),))
AT_STORE = make_rank(1, frames=(MAIN, replace(TRAIN, line=61)), waits_for="poll", waits_on=OTHER_END)
AT_END = replace(OTHER_END, call="wait4", kind=WaitKind.OTHER, others=(OtherEnd(4601, NOT_APPLICABLE, "python"),))
AT_COPY = make_rank(0, frames=(MAIN, TRAIN), waits_for="child process", waits_on=AT_END)
POOL_GET = stack_of("main > train > get lib/multiprocessing/pool.py:770 > wait lib/threading.py:331")
REPLACES = stack_of(
    "run lib/threading.py:982 > _maintain_pool lib/multiprocessing/pool.py:340 > _launch lib/multiprocessing/popen_fork.py:71"
    " > _bootstrap lib/multiprocessing/process.py:314 > worker lib/multiprocessing/pool.py:114"
    " > get lib/multiprocessing/queues.py:364"
)
AT_BATCH = make_rank(0, frames=stacks.NEXT_BATCH, waits_for="a batch (loader queue)")
RESTS = make_worker(0, 0, waits_for="work from its rank (loader queue)")
STEPS = {stack("main train step call linear"): 18, stack("main train backward engine"): 20}


def make_copy(frames: tuple[StackFrame, ...]) -> ProcessLook:
    """Make a process that rank 0 forked."""
    look = make_rank(0, pid=4601, frames=frames)
    return replace(look, role=Role.HELPER, rank=NOT_APPLICABLE, rank_pid=4000, label="multiprocessing child")


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
        return place(hold(frame, 40, [make_slice(4211, 0, names)]))

    return build


def _throttled() -> list[Frame]:
    plain = replace(eight_gpus(), ages_s=make_ages(gpu=0.4, stacks=1.2))
    cards = tuple(
        replace(card, throttle_shares=(ThrottleShare("SW thermal", 38.0, "counter"),), temperature_margin_c=1.0)
        if card.index == 3
        else card
        for card in known_or(plain.gpus, ())
    )
    return place(hold(replace(plain, gpus=cards), 24, [make_slice(51_200 + n, 8 + n, STEPS) for n in range(8)]))


def _straggler() -> list[Frame]:
    late = {stack("main train step call linear"): 24, stack("main train backward engine"): 14}
    waits = {stack("main train c10d all_reduce"): 24, stack("main train backward engine"): 14}
    slices = [make_slice(4211, 0, waits), make_slice(4212, 1, late)]
    return place(hold(with_facts(replace(two_ranks(), ages_s=make_ages(stacks=0.9))), 24, slices))


SCENES: dict[str, Build] = {
    "all ranks in a collective": _hang(make_rank(0), make_rank(1)),
    "a rank elsewhere": _hang(make_rank(0), make_rank(1), world_size=4),
    "a rank in a lock": _hang(make_rank(0), make_rank(1, frames=IN_LOCK)),
    "a rank at a queue": _hang(make_rank(0), make_rank(1, frames=QUEUE_GET)),
    "a rank reads a file": _hang(make_rank(0), make_rank(1, frames=IN_LOCK, state="D", waits_for="NFS", waits_on=NFS)),
    "a rank at a child": _hang(make_rank(0), make_rank(1, frames=AT_CHILD, waits_for="child process")),
    "a rank sleeps": _hang(make_rank(0), make_rank(1, frames=IN_LOCK, waits_for="sleep")),
    "a rank polls": lambda: wake(stand(make_rank(0, frames=POLLS, waits_for=TIMED), seconds=60)),
    "a rank alone in a collective": _hang(*(make_rank(n, GLOO, frames=s) for n, s in enumerate((BARRIER, BACKWARD)))),
    "a rank at the store of one in backward": _hang(make_rank(0, GLOO, frames=BACKWARD), AT_STORE, seconds=60),
    "a process by os.fork()": lambda: number_threads(stand(AT_COPY, make_copy(IN_LOCK)), 1),
    "a process of a pool was replaced": _hang(make_rank(0, frames=POOL_GET), make_copy(REPLACES)),
    "a rank goes round": _hang(make_rank(0, frames=IN_LOCK, **stacks.RUNNING), seconds=130),
    "a rank is stopped": _hang(make_rank(0), make_rank(1, state="T", waits_for="stopped by a signal")),
    "both ranks are stopped": _hang(*(make_rank(n, state="t", waits_for="stopped by a debugger") for n in (0, 1))),
    "a barrier": _hang(make_rank(0, frames=BARRIER), make_rank(1, frames=IN_LOCK), seconds=60),
    "backward in a lock": _hang(make_rank(0, frames=stacks.BACKWARD), make_rank(1, frames=stacks.BACKWARD)),
    "a lost batch": _hang(AT_BATCH, RESTS),
    "a worker reads": _hang(
        AT_BATCH, make_worker(0, 0, frames=stacks.WORKER_READS, state="D", waits_for="NFS", waits_on=NFS)
    ),
    "a worker is dead": _hang(AT_BATCH, RESTS, **died("pt_data_worker", pid=4099)),
    "a child of its own is dead": _hang(
        make_rank(0, frames=AT_CHILD, waits_for="child process"), **died("convert", "exit 1", pid=4099)
    ),
    "a thread that does not end": _hang(
        make_rank(0, make_thread(4007, name="flusher", kind=ThreadKind.OTHER, frames=FLUSHES), frames=JOIN)
    ),
    "a server": _hang(make_rank(0, frames=EVENT_LOOP, waits_for="epoll")),
    "a server at a queue": _hang(make_rank(0, HTTP, frames=ANSWERS)),
    "a program at a queue": _hang(make_rank(0, frames=ANSWERS)),
    "input": _hang(make_rank(0, frames=IN_LOCK, waits_for="terminal input")),
    "a rank decodes": _hang(make_rank(0, frames=stacks.DECODE, **stacks.RUNNING), seconds=60),
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
    "no workers": lambda: place(hold(no_workers(), 20, [make_slice(4211, 0, STEPS)])),
    "ended": lambda: line_up([*hold(two_ranks(), 20), ended()]),
}
"""By name: what makes a fresh list of Frames, oldest first."""


# the judge of a job is its Standing

NAMES = ("workers compute", "one worker is slow", "late rank", "a rank in a lock", "steps")


def follow(frames: Sequence[Frame]) -> Iterator[Known[Finding]]:
    """Judge Frames one by one, and say each time what the verdict is."""
    return (one.frame.verdict for one in judging.follow(frames, Standing(watch=WatchedTime(may_ask=True))))


def test_jobs_that_are_judged_in_turns_or_in_threads_get_the_verdicts_of_each_alone():
    alone = {name: list(follow(SCENES[name]())) for name in NAMES}
    together = {name: follow(SCENES[name]()) for name in NAMES}
    told: dict[str, list[Known[Finding]]] = {name: [] for name in NAMES}
    while together:
        for name in list(together):
            verdict = next(together[name], None)
            if verdict is None:
                del together[name]
            else:
                told[name].append(verdict)
    assert told == alone
    with ThreadPoolExecutor(len(NAMES)) as pool:
        in_threads = dict(zip(NAMES, pool.map(lambda name: list(follow(SCENES[name]())), NAMES), strict=True))
    assert in_threads == alone


def test_nothing_of_a_job_is_kept_when_its_standing_is_gone():
    frames = SCENES["late rank"]()
    mine = {id(one) for frame in frames for one in (frame.stacks if isinstance(frame.stacks, tuple) else ())}
    assert mine
    before = {id(one) for one in gc.get_objects() if type(one) is Scene}  # isinstance would run code of other tests
    list(follow(frames))
    del frames
    gc.collect()
    left = [one for one in gc.get_objects() if type(one) in (Scene, StackSlice)]
    assert not [one for one in left if id(one) in mine or (type(one) is Scene and id(one) not in before)]


# two readings of one physical origin are one source


@pytest.mark.parametrize("name", SCENES)
def test_no_verdict_is_sure_by_one_origin(name, monkeypatch):
    told: dict[object, frozenset[Origin]] = {}
    judge_scene = judge.judge_scene

    def note(scene, standing):
        found = judge_scene(scene, standing)
        told.update({key_of(one.suspicion): one.suspicion.origins for one in found[1].tracks})
        return found

    monkeypatch.setattr(judge, "judge_scene", note)
    for verdict in follow(SCENES[name]()):
        if verdict.confidence is Confidence.HIGH:
            assert len(told[verdict.kind, verdict.cause]) > 1
    assert all(isinstance(one, Origin) for origins in told.values() for one in origins)


# names, numbers, clocks and words

HOSTILE = (
    *("barrier", "train_epoch", "queue.get", "threads to end", "lock or queue (futex)", "poll", "recv", "sleep"),
    *("tracker", "subprocess_env", "all_reduce", "DataLoader", "process pool", "socket", "NFS", "load", "backward"),
)
"""Words of tpmon, of the kernel and of libraries, as a user may call a file, a function or a process."""
SECOND = 10**9

Step = Callable[[Any], Any]


def walk(frames: Sequence[Frame], step: Step) -> list[Frame]:
    """Rebuild Frames from the inside out, each part passed through ``step``, once where Frames share it."""
    done: dict[int, Any] = {}

    def rebuild(value: Any) -> Any:
        if id(value) not in done:
            done[id(value)] = rebuild_anew(value)
        return done[id(value)]

    def rebuild_anew(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
            new = {name: rebuild(part) for name, part in parts.items()}
            changed = {name: part for name, part in new.items() if part is not parts[name]}
            return step(dataclasses.replace(value, **changed) if changed else value)
        if isinstance(value, tuple):
            rebuilt = tuple(map(rebuild, value))
            return value if all(a is b for a, b in zip(rebuilt, value, strict=True)) else rebuilt
        return step(value)

    return [rebuild(one) for one in frames]


def change_fields(frames: Sequence[Frame], names: Collection[str], step: Step) -> list[Frame]:
    """Pass the fields of these names, of all dataclasses, through ``step``."""

    def change(value: Any) -> Any:
        if not dataclasses.is_dataclass(value) or isinstance(value, type):
            return value
        found = [one.name for one in dataclasses.fields(value) if one.name in names]
        return dataclasses.replace(value, **{name: step(getattr(value, name)) for name in found})

    return walk(frames, change)


def _is_hint(name: str) -> bool:
    """Tell whether a name is one of the few that are taken as a hint where no library's frame tells more."""
    return any(pattern.fullmatch(name) for _, pattern in read_frame_rules().names)


def rename(frames: Sequence[Frame], word: str) -> list[Frame]:
    """Call the user's files, functions, threads and processes by ``word`` and a number each."""

    def call(name: str) -> str:
        return f"{word}_{crc32(name.encode()) % 997}"

    def rename_frame(frame: StackFrame) -> StackFrame:
        if not is_users(frame) or frame.file.startswith("<"):
            return frame
        name, (folder, _, file) = last_name(frame.function), frame.file.rpartition("/")
        function = frame.function if _is_hint(name) or "<" in name else call(frame.function)
        renamed = StackFrame(function, f"{folder}/{call(file)}.py", frame.line)
        same = mark_frame(renamed.function, renamed.file) == mark_frame(frame.function, frame.file)
        return renamed if same else frame

    def step(value: Any) -> Any:
        if isinstance(value, StackFrame):
            return rename_frame(value)
        if isinstance(value, ProcessSample):
            own = value.name.startswith(("python", WORKER_NAME)) or value.role is Role.WORKER
            name = value.name if own else call(value.name)
            return dataclasses.replace(value, name=name, label=call(value.label))
        if isinstance(value, DeadChild) and not value.name.startswith(WORKER_NAME):
            return dataclasses.replace(value, name=call(value.name))
        if isinstance(value, Target):
            return dataclasses.replace(value, script=f"{call(value.script)}.py")
        return value

    return walk(frames, step)


def pick_number(number: Any) -> Any:
    """Return another number for a process or thread; 0 and 1 are the kernel's own."""
    if isinstance(number, tuple):
        return tuple(map(pick_number, number))
    return 3 * number + 100_000 if isinstance(number, int) and number > 1 else number


def renumber(frames: Sequence[Frame]) -> list[Frame]:
    """Give all processes and threads other numbers."""
    names = ("pid", "parent", "rank_pid", "asked_pid", "tid", "loop_tid", "pids")
    return change_fields(frames, names, pick_number)


def swap_rank(rank: Any) -> Any:
    """Return the other of the first two ranks."""
    return {0: 1, 1: 0}.get(rank, rank) if is_known(rank) else rank


def permute(frames: Sequence[Frame]) -> list[Frame]:
    """Swap the numbers of the first two ranks."""
    return change_fields(frames, ("rank", "local_rank"), swap_rank)


def shift(frames: Sequence[Frame], seconds: int) -> list[Frame]:
    """Move all clocks by a constant."""
    dated = walk(frames, lambda value: value + timedelta(seconds=seconds) if isinstance(value, datetime) else value)
    return change_fields(
        dated, ("taken_ns", "ended_ns"), lambda at: at + seconds * SECOND if is_known(at) and at else at
    )


def reverse(frames: Sequence[Frame]) -> list[Frame]:
    """Turn the order of processes and threads around: it is that of a table of the kernel."""
    names = ("processes", "ranks", "loader", "threads")
    return change_fields(frames, names, lambda part: part[::-1] if isinstance(part, tuple) else part)


def babble(frames: Sequence[Frame]) -> list[Frame]:
    """Put other words in the place of those of waits."""
    return walk(frames, lambda value: Wait(value.reason, "blah, but sleep") if isinstance(value, Wait) else value)


decided = attrgetter("kind", "cause", "pid", "rank", "card", "confidence", "share_pct", "since_is")
"""All of a verdict that it decides: not its words, nor the time."""
JUDGE = Path(__file__).parents[2] / "tpmon" / "judge"
TEXTS = {"text", "waits_for", "detail", "where", "doing", "summary", "facts", "notes", "ended", "how", "unheard"}
TEXTS |= {"budget_reason", "library", "limit_source", "rank_source"}
"""Attributes that hold words for eyes alone: of a stack, a wait, evidence, a reading."""
NO_SENTENCES = {
    *("fetch.startswith('_Map')", "'torch' not in frame.file", "'collate' in name.lower()"),
    *("'MainThread' in stack.thread", "'barrier' in last_name(frame.function)"),
}
"""Searches in names of the program, and in tables."""


ALIKE = {"backward in a lock", "both ranks are stopped"}
"""Scenes whose ranks all stand alike, so that the first of them is named."""


def decide(frames: Sequence[Frame]) -> tuple[object, ...]:
    """Return what the last verdict of a Window decides."""
    (*_, verdict) = follow(frames)
    assert is_known(verdict)
    return decided(verdict)


@cache
def plain(name: str) -> tuple[list[Frame], tuple[object, ...]]:
    """Return the Frames of a scene, and what the verdict on them decides."""
    frames = SCENES[name]()
    return frames, decide(frames)


def assert_names_decide_nothing(name: str, words: Sequence[str]) -> None:
    frames, decision = plain(name)
    for word in words:
        renamed = rename(frames, word)
        assert renamed != frames
        assert decide(renamed) == decision, word


@pytest.mark.parametrize("name", SCENES)
def test_the_names_of_files_functions_threads_and_processes_change_no_verdict(name, request):
    assert_names_decide_nothing(name, HOSTILE[: 1 if request.config.getoption("fast") else 3])


@pytest.mark.long
@pytest.mark.parametrize("name", SCENES)
def test_no_other_name_does(name):
    assert_names_decide_nothing(name, HOSTILE[3:])


@pytest.mark.parametrize(
    "change", [lambda frames: shift(frames, 86_400 * 365), reverse, babble], ids=["clocks", "order", "words"]
)
@pytest.mark.parametrize("name", SCENES)
def test_clocks_order_and_words_change_no_verdict(name, change):
    frames, decision = plain(name)
    assert decide(change(frames)) == decision


@pytest.mark.parametrize("name", sorted(SCENES.keys() - ALIKE))
def test_numbers_of_processes_and_ranks_move_with_the_culprit(name):
    frames, (kind, cause, pid, rank, *rest) = plain(name)
    assert decide(renumber(frames)) == (kind, cause, pick_number(pid), rank, *rest)
    assert decide(permute(frames)) == (kind, cause, pid, swap_rank(rank), *rest)


def test_the_words_of_a_stack_change_no_verdict(monkeypatch):
    decisions = {name: plain(name)[1] for name in SCENES}
    words = random.Random(27)

    def garble(role, kind, frames):
        said = words.choice(("queue.get", "barrier", "threads to end", "waits for it", "data wait: x"))
        return replace(describe_stack(role, kind, frames), text=f"{said} {words.random()}")

    monkeypatch.setattr(camps, "describe_stack", garble)
    assert {name: decide(build()) for name, build in SCENES.items()} == decisions


def _find_decisions(source: str) -> set[str]:
    """Return the comparisons and searches in words for eyes alone, and the searches for words."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        parts, sought, texts = list[ast.expr](), list[ast.expr](), TEXTS
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            parts = [node.left, *node.comparators]
            sought = [node.left] if isinstance(node.ops[0], (ast.In, ast.NotIn)) else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("startswith", "endswith", "find", "count", "index"):
                parts, sought, texts = [node.func.value], node.args, TEXTS | {"reason"}
            elif node.func.attr in ("search", "match", "fullmatch"):
                parts = node.args
        words = [one.value for one in sought if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        is_text = any(isinstance(one, ast.Attribute) and one.attr in texts for one in parts)
        if is_text or any(" " in one or ("." not in one and one[1:].isalpha()) for one in words):
            found.add(ast.unparse(node))
    return found


def test_judge_compares_no_words_of_waits_stacks_or_evidence():
    # describe makes the words.
    told = [_find_decisions(path.read_text()) for path in JUDGE.rglob("*.py") if path.name != "describe.py"]
    assert set[str]().union(*told) == NO_SENTENCES
    decisions = ("'x' in seen.doing.text", "' or ' in seen", "one.reason.startswith(NO)", "one.startswith('no hook')")
    assert all(map(_find_decisions, (*decisions, "'SIG' in how", "process.waits_for.startswith('y')")))
