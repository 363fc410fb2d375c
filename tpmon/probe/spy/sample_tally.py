"""Add up the slices of one process: its stacks, what was lost, and the CPU time of its main thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tpmon.model.dump import ErrorKind
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Known, Missing, is_known
from tpmon.model.process import Role
from tpmon.model.sample import Counted, SampledProcess
from tpmon.model.stacks import StackCount, StackFrame
from tpmon.probe.base.procread import PROC, read_file
from tpmon.probe.job.job import Member
from tpmon.probe.job.loop_thread import find_loop, read_loop
from tpmon.probe.proc.files import SchedStat, parse_schedstat
from tpmon.probe.spy.failure import Failure
from tpmon.probe.spy.sample_text import Remarks
from tpmon.probe.spy.text import Sampled

MOST_STACKS = 2000
"""Different stacks that are kept of one process; later ones count without their frames."""
_NOT_WATCHED = Missing("the main thread's CPU time could not be read")


@dataclass(frozen=True, slots=True)
class Slice:
    """Hold one slice of one process. ``looks`` is how often py-spy looked, with and without success."""

    sampled: Sampled
    remarks: Remarks
    looks: int
    wall_s: float
    tid: int
    """The thread of which ``before`` and ``after`` are: the one of the loop, as far as it was known."""
    before: Known[SchedStat]
    after: Known[SchedStat]


def read_thread(pid: int, tid: int, proc: str = PROC) -> Known[SchedStat]:
    """Read for how long a thread ran and waited for a CPU since it began."""
    try:
        return parse_schedstat(read_file(f"{proc}/{pid}/task/{tid}/schedstat", 128))
    except (OSError, ValueError):
        return _NOT_WATCHED


def count_looks(sampled: Sampled, remarks: Remarks, counted: Counted, planned: int) -> int:
    """Tell how often py-spy looked at the process.

    With idle threads every look finds the main thread, or is an error; without them only the plan
    tells, which py-spy keeps also when it is late.
    """
    seen = sampled.samples + remarks.errors
    return seen if counted is Counted.ALL else max(seen, planned)


class Tally:
    """Remember what was sampled of one process, and why there is no more."""

    def __init__(self, member: Member) -> None:
        """Start with nothing."""
        self.member = member
        self.loop = member.loop
        self.turns = 0
        self.tries = 0
        """Failures since the last slice."""
        self.looks = 0
        self.failure: Failure | None = None
        self.refusal: Failure | None = None
        """What its last try ended with, while there may be another."""
        self._lost = 0
        self._behind_s = 0.0
        self._watched_s = 0.0
        self._run_ns = 0
        self._delay_ns = 0
        self._stacks: Counter[tuple[int, str, tuple[StackFrame, ...]]] = Counter()

    @property
    def has_ended(self) -> bool:
        """Tell whether the process is gone."""
        return self.failure is not None and self.failure.kind is ErrorKind.GONE

    def close(self) -> None:
        """Say at the end why there is nothing of a process that had its turn."""
        if not self.looks and self.failure is None:
            self.failure = self.refusal

    def add(self, one: Slice) -> None:
        """Add a slice."""
        self.tries, self.refusal = 0, None
        self.looks += one.looks
        self._lost += one.remarks.errors
        self._behind_s = max(self._behind_s, one.remarks.behind_s)
        self._learn(one.sampled.stacks)
        if one.tid == self.loop_tid and is_known(one.before) and is_known(one.after):
            self._watched_s += one.wall_s
            self._run_ns += one.after.run_ns - one.before.run_ns
            self._delay_ns += one.after.wait_ns - one.before.wait_ns
        for stack in one.sampled.stacks:
            key = (stack.tid, stack.thread, stack.frames)
            if key not in self._stacks and len(self._stacks) >= MOST_STACKS:
                key = (stack.tid, stack.thread, ())
            self._stacks[key] += stack.samples

    @property
    def loop_tid(self) -> int:
        """Return the number of the thread that runs the loop."""
        return self.loop.thread.tid if is_known(self.loop) else self.member.identity.pid

    def _learn(self, stacks: Sequence[StackCount]) -> None:
        """Learn from a slice which thread runs the loop, where nobody knows it yet."""
        member = self.member
        if member.role is not Role.RANK or member.is_loop_told or is_known(self.loop):
            return
        found = find_loop(stacks, member.identity.pid)
        if found is not None:
            self.loop = read_loop(member.identity.pid, found)
        if is_known(self.loop):
            self._watched_s, self._run_ns, self._delay_ns = 0.0, 0, 0  # those of the main thread

    def total(self, rate_hz: int) -> SampledProcess:
        """Return all that was sampled so far."""
        member = self.member
        watched = self._watched_s > 0
        return SampledProcess(
            pid=member.identity.pid,
            start_ticks=member.identity.start_ticks,
            role=member.role,
            rank=member.rank,
            worker=member.worker,
            rank_pid=member.rank_pid,
            label=member.label,
            seconds=self.looks / rate_hz,
            looks=self.looks,
            lost=self._lost,
            behind_s=self._behind_s,
            watched_s=self._watched_s,
            cpu_s=self._run_ns / 1e9 if watched else _NOT_WATCHED,
            delay_s=self._delay_ns / 1e9 if watched else _NOT_WATCHED,
            stacks=tuple(
                StackCount(tid, thread, frames, samples)
                for (tid, thread, frames), samples in self._stacks.items()
            ),
            loop_tid=self.loop.said if is_known(self.loop) else NOT_APPLICABLE,
        )
