"""Build Windows of a job that may hang: Frames a second apart, and the looks at its stacks in the last of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from tests import any_windows
from tests.dumps import add_run, make_round, make_thread
from tests.frames import NOW, later, make_frame, make_output, make_process, make_target
from tests.judging import follow
from tpmon.judge.folds.groups import DumpOrigin, fold_rounds
from tpmon.judge.hysteresis import Standing
from tpmon.judge.judge import Judgement
from tpmon.judge.watch.tracker import WatchedTime, observe
from tpmon.model.dump import DeadChild, DumpRound, ProcessLook, ThreadLook
from tpmon.model.frame import Frame
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known, known_or
from tpmon.model.process import ProcessSample, Role, ThreadGroup, ThreadKind
from tpmon.model.stacks import StackFrame, StackSlice
from tpmon.model.verdict import Finding, Kind
from tpmon.model.waits import RUNNING

LOOKS_AT_S = (0.0, 3.0, 6.0)
"""When the looks end, seconds after the first."""

JUDGED = 30
"""How many of the newest Frames are judged: more than any hysteresis takes."""


def sample_of(look: ProcessLook, unchanged_s: float) -> ProcessSample:
    """Make the reading of a process that is at rest, or runs, as its main thread in a look does."""
    main = look.threads[0]
    runs = main.state == "R"
    demand = 1.0 if runs else 0.0
    return make_process(
        look.pid,
        start_ticks=look.start_ticks,
        started=NOW - timedelta(hours=1),
        role=look.role,
        rank=look.rank,
        local_rank=look.rank if look.role is Role.RANK else NOT_APPLICABLE,
        worker=look.worker,
        rank_pid=look.rank_pid,
        parent=look.rank_pid if is_known(look.rank_pid) else 1,
        state=main.state,
        cpu_pct=100 * demand,
        runnable=demand,
        waiting=0.0,
        busy_threads=int(runs),
        switches_s=100.0 if runs else 0.0,
        thread_groups=(ThreadGroup(ThreadKind.MAIN, 1, demand),),
        waits_for=RUNNING if runs else main.waits_for,
        waits_unchanged_s=0.0 if runs else unchanged_s,
        asked_read_bytes_s=0.0,
        minor_faults_s=0.0,
    )


def stand(
    *looks: ProcessLook,
    seconds: int = 40,
    log_age_s: float | None = 45.0,
    world_size: Applicable[int] = NOT_APPLICABLE,
    moved: Sequence[ProcessLook] = (),
    dead: tuple[DeadChild, ...] = (),
    **fields: Any,
) -> list[Frame]:
    """Build ``seconds`` in which ``looks`` stood, with three looks at them in the last ten.

    ``moved``: what the last look sees instead.
    """
    target = make_target(world_size=world_size, local_ranks=len(looks))
    plain = make_frame(target=target, ranks=(), output=(), **({"loader": ()} | fields))
    log = make_output() if log_age_s is None else make_output(last_write=NOW - timedelta(seconds=log_age_s))
    frames = []
    for second in range(seconds + 1):
        left = seconds - second
        processes = tuple(sample_of(one, float(second)) for one in looks)
        output = () if log_age_s is None else (replace(log, last_write_age_s=max(0.0, log_age_s - left)),)
        frames.append(later(plain, -left, processes=processes, output=output))
    for number, at_s in enumerate(LOOKS_AT_S):
        here = moved if moved and number == len(LOOKS_AT_S) - 1 else [add_run(one, at_s) for one in looks]
        taken_s = at_s - LOOKS_AT_S[-1] - 1.0
        look = replace(make_round(*here, at_s=taken_s), dead=dead)
        at = round(seconds + taken_s)
        frames[at] = replace(frames[at], rounds=(look,))
    return frames


def run(frames: Sequence[Frame], older: int = 0, **watch: Any) -> list[Judgement]:
    """Judge Frames as they come, as the session does; of the ``older`` ones the watch alone is kept."""
    return list(follow(frames, Standing(watch=remember(frames[:older], **{"may_ask": True, **watch})), older))


def remember(frames: Sequence[Frame], **watch: Any) -> WatchedTime:
    watched = WatchedTime(**watch)
    for frame in frames:
        watched = observe(watched, frame)
    return watched


def conclude(frames: Sequence[Frame], **watch: Any) -> Finding:
    finding = run(frames, max(0, len(frames) - JUDGED), **watch)[-1].frame.verdict
    assert is_known(finding)
    return finding


def said(frames: Sequence[Frame], **watch: Any) -> tuple[Kind, Applicable[str]]:
    finding = conclude(frames, **watch)
    return finding.kind, finding.cause


def died(name: str, how: str = "SIGKILL", pid: int = 4444, parent: int = 4000) -> dict[str, Any]:
    return {"dead": (DeadChild(pid, parent, name, how, name not in ("git", "tensorboard")),)}


def expect(cause: str, frames: Sequence[Frame], *words: str, **watch: Any) -> Finding:
    finding = conclude(frames, **watch)
    assert (finding.kind, finding.cause) == (Kind.HUNG, cause)
    for text in words:
        assert text in finding.summary
    return finding


def sample(frames: Sequence[Frame], pid: int, *stacks: tuple[StackFrame, ...], every: int = 10) -> list[Frame]:
    return [
        replace(frame, stacks=(make_slice(frame, pid, stacks, float(every)),) if number % every == 3 else ())
        for number, frame in enumerate(frames)
    ]


def make_slice(frame: Frame, pid: int, stacks: Sequence[tuple[StackFrame, ...]], seconds: float) -> StackSlice:
    """Build a slice of a main thread's samples that ended with a Frame."""
    one = any_windows.make_slice(pid, 0, dict.fromkeys(stacks, 20))
    return replace(one, ended=frame.taken, ended_ns=frame.taken_ns, seconds=seconds)


def accuse(rounds: Sequence[DumpRound], world_size: Applicable[int]) -> set[int]:
    """Return the ranks that a dump of these looks names, as the odd one or in its verdict."""
    dump = fold_rounds(rounds, DumpOrigin(1, "train.py", world_size))
    found = (one.rank for one in (dump.odd_one_out, dump.verdict) if is_known(one))
    return {rank for rank in found if is_known(rank)}


Change = Callable[[list[Frame]], list[Frame]]


@dataclass(frozen=True)
class Job:
    """Hold processes that stand, and what is said of them after so many seconds.

    ``says`` has the cause of the hang by the seconds, "" for no hang, "idle" for a wait for input, "polls". ``words`` are in
    the last summary, ``rank`` is whom it accuses. Main threads that run are sampled, or as ``stacks`` says by PID.
    """

    looks: tuple[ProcessLook, ...]
    says: Mapping[int, str]
    words: tuple[str, ...] = ()
    rank: object = ...
    stacks: Mapping[int, Sequence[tuple[StackFrame, ...]]] | None = None
    change: Change = list
    watch: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)

    def frames(self, seconds: int) -> list[Frame]:
        frames = stand(*self.looks, **{"seconds": seconds, "log_age_s": None, **self.fields})
        stacks = self.stacks
        if stacks is None:
            mains = [(one.pid, one.threads[0]) for one in self.looks if one.role is Role.RANK]
            stacks = {pid: [main.frames] for pid, main in mains if main.state == "R" and is_known(main.frames)}
        return self.change(sample_all(frames, stacks) if stacks else frames)

    def check(self) -> Finding:
        for seconds, cause in self.says.items():
            frames = self.frames(seconds)
            finding = conclude(frames, **self.watch)
            told = finding.cause if finding.kind is Kind.HUNG else ""
            if finding.kind is Kind.IDLE:
                told = {"waiting-for-input": "idle"}.get(finding.cause, finding.cause)
            assert told == cause, f"{told!r} after {seconds} s: {finding.summary}"
            looks = [look for frame in frames for look in known_or(frame.rounds, ())]
            if looks and finding.kind is Kind.HUNG and is_known(finding.rank):
                assert accuse(looks, frames[-1].target.world_size) <= {finding.rank}, "a dump accuses another one"
        assert all(word in finding.summary for word in self.words), finding.summary
        assert self.rank is ... or finding.rank == self.rank
        return finding


def job(name: str, *looks: ProcessLook, says: Mapping[int, str], **more: Any) -> Any:
    """Make a row of a table of jobs; what is no field of a ``Job`` is one of ``stand``."""
    own = {key: more.pop(key) for key in ("rank", "stacks", "change", "watch", "words") if key in more}
    words = own.pop("words", ())
    words = (words,) if isinstance(words, str) else words
    return pytest.param(Job(looks, says, words, fields=more, **own), id=name)


def sample_all(frames: Sequence[Frame], stacks: Mapping[int, Sequence[tuple[StackFrame, ...]]]) -> list[Frame]:
    each = [sample(frames, pid, *those) for pid, those in stacks.items()]
    return [
        replace(row[0], stacks=tuple(one for frame in row for one in frame.stacks)) for row in zip(*each, strict=True)
    ]


def read(pid: int = 4000, last: int = 0, **fields: Any) -> Change:
    """Change the readings of one process; but for the ``last`` Frames."""

    def change(frames: list[Frame]) -> list[Frame]:
        kept = len(frames) - last
        changed = (
            replace(one, processes=tuple(replace(p, **fields) if p.pid == pid else p for p in one.processes))
            for one in frames[:kept]
        )
        return [*changed, *frames[kept:]]

    return change


def number_here(frames: list[Frame]) -> list[Frame]:
    """Count the ranks of this machine from 0 on."""
    return [
        replace(one, processes=tuple(replace(p, local_rank=n) for n, p in enumerate(one.processes))) for one in frames
    ]


def number_threads(frames: list[Frame], count: int) -> list[Frame]:
    """Let all processes have so many threads."""
    return [replace(one, processes=tuple(replace(p, threads=count) for p in one.processes)) for one in frames]


def beside(*processes: ProcessSample) -> Change:
    return lambda frames: [replace(one, processes=(*one.processes, *processes)) for one in frames]


def see(*rounds: Sequence[ProcessLook]) -> Change:
    def change(frames: list[Frame]) -> list[Frame]:
        given = list(rounds)
        return [
            replace(frame, rounds=(replace(frame.rounds[0], processes=tuple(given.pop(0))),))
            if is_known(frame.rounds) and frame.rounds
            else frame
            for frame in frames
        ]

    return change


def change_looks(change: Callable[[ProcessLook, DumpRound], ProcessLook]) -> Change:
    """Change each process in all looks."""

    def take(one: DumpRound) -> DumpRound:
        return replace(one, processes=tuple(change(process, one) for process in one.processes))

    return lambda frames: [
        replace(one, rounds=tuple(map(take, one.rounds))) if is_known(one.rounds) else one for one in frames
    ]


def _wake(process: ProcessLook, look: DumpRound) -> ProcessLook:
    main = replace(process.threads[0], run_ns=look.taken_ns % 10**11 // 10**6)
    return replace(process, threads=(main, *process.threads[1:])) if process.pid == 4000 else process


wake = change_looks(_wake)
"""Let the main thread of rank 0 have woken up between the looks, for a moment."""


def see_moves(used_s: float, one: ProcessLook, two: ProcessLook, *others: ProcessLook) -> Change:
    """Let a process be seen at two places in turn, with ``used_s`` of CPU between two looks."""
    return see(*((*others, add_run(look, n * used_s)) for n, look in enumerate((two, one, two))))


def thread(tid: int, frames: tuple[StackFrame, ...], **fields: Any) -> ThreadLook:
    return make_thread(tid, **({"name": f"thread-{tid}", "kind": ThreadKind.OTHER, "frames": frames} | fields))
