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
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from tests import judging
from tests.judge.scenes import SCENES
from tpmon.judge import judge
from tpmon.judge.dumps import outlier
from tpmon.judge.dumps.describe import describe_stack
from tpmon.judge.features.snapshot import Scene
from tpmon.judge.hysteresis import Standing, key_of
from tpmon.judge.stacks.classify import is_users, last_name, mark_frame
from tpmon.judge.stacks.phases import read_frame_rules
from tpmon.judge.watch.tracker import WatchedTime
from tpmon.model.dump import DeadChild
from tpmon.model.frame import Frame, Target
from tpmon.model.known import Known, is_known
from tpmon.model.process import WORKER_NAME, ProcessSample, Role
from tpmon.model.stacks import StackFrame, StackSlice
from tpmon.model.verdict import Confidence, Finding, Origin
from tpmon.model.waits import Wait

NAMES = ("workers compute", "one worker is slow", "late rank", "a rank in a lock", "steps")


def follow(frames: Sequence[Frame]) -> Iterator[Known[Finding]]:
    """Judge Frames one by one, and say each time what the verdict is."""
    return (one.frame.verdict for one in judging.follow(frames, Standing(watch=WatchedTime(may_ask=True))))


def test_jobs_that_are_judged_in_turns_get_the_verdicts_of_each_alone():
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


def test_jobs_that_are_judged_in_threads_get_the_verdicts_of_each_alone():
    alone = {name: list(follow(SCENES[name]())) for name in NAMES}
    with ThreadPoolExecutor(len(NAMES)) as pool:
        told = dict(zip(NAMES, pool.map(lambda name: list(follow(SCENES[name]())), NAMES), strict=True))
    assert told == alone


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
        if isinstance(value, DeadChild) and not value.name.startswith(("python", WORKER_NAME)):
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


def decided(finding: Finding) -> tuple[Any, ...]:
    """Return what a verdict decides: all of it but its words, and the time."""
    return (
        finding.kind,
        finding.cause,
        finding.pid,
        finding.rank,
        finding.card,
        finding.confidence,
        finding.share_pct,
        finding.since_is,
    )


JUDGE = Path(__file__).parents[2] / "tpmon" / "judge"
TEXTS = frozenset(("text", "waits_for", "detail", "where", "doing", "summary"))
"""Attributes that hold words for eyes alone: of a stack, a wait, evidence."""


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

    monkeypatch.setattr(outlier, "describe_stack", garble)
    assert {name: decide(build()) for name, build in SCENES.items()} == decisions


def _find_decisions(source: str) -> list[str]:
    """Return the comparisons and searches in words for eyes alone."""
    found = []
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("startswith", "endswith", "find", "count", "index"):
                parts = [node.func.value]
            elif node.func.attr in ("search", "match", "fullmatch"):
                parts = list(node.args)
        if any(isinstance(one, ast.Attribute) and one.attr in TEXTS for one in parts):
            found.append(ast.unparse(node))
    return found


def test_judge_compares_no_words_of_waits_stacks_or_evidence():
    # What a place is called decides how its lines are added up, and describe makes the words.
    told = {path: _find_decisions(path.read_text()) for path in JUDGE.rglob("*.py") if path.name != "describe.py"}
    found = {
        (str(path.relative_to(JUDGE)), one)
        for path, those in told.items()
        for one in those
        if "is None" not in one and "is not None" not in one and ".reason" not in one
    }
    assert not found
    assert _find_decisions("a = 'x' in seen.doing.text or process.waits_for.startswith('y')")
