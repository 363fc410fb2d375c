"""The agent: watch the job of one node, tell it on stdout, take requests on stdin, end when nobody asks."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from tpmon import __version__
from tpmon.errors import NoTargetError, SeveralJobsError, TpmonError
from tpmon.fleet.line import NODE_CHARS, split_message
from tpmon.fleet.messages import MOST_ROUNDS, Message, Verb, VerbName, encode_message, parse_verb
from tpmon.judge.features.comms import find_waits
from tpmon.judge.features.snapshot import see
from tpmon.judge.nodes import WINDOW_S
from tpmon.judge.stacks.profile import add_up_phases
from tpmon.judge.watch.tracker import NO_WATCH, WatchedTime
from tpmon.model.dump import Asker, Dump, DumpRequest
from tpmon.model.frame import Frame, TargetState, fresh_hz
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import list_used
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, map_known
from tpmon.model.process import RankRow
from tpmon.model.results.doctor import DumpUpdate, SampleUpdate, Update
from tpmon.model.results.fleet import (
    AgentStatus,
    Hello,
    NodeDump,
    NodeSample,
    NodeState,
    NodeSummary,
    RankSummary,
)
from tpmon.model.results.sample import SampleRequest
from tpmon.model.verdict import Finding
from tpmon.probe.base.worker import start_thread
from tpmon.probe.job.job import Job
from tpmon.report.text import complain
from tpmon.session import DumpSink, SampleSink, Session, Sink
from tpmon.supervisor import end

LEASE_S = 10.0
"""An agent of which nobody asks anything for so long ends: srun that is killed leaves its tasks running."""
LOOK_AGAIN_S = 3.0
"""A job may start later than its monitor."""
VERDICT_S = 10.0
"""How old the figures of a verdict may be that stays the same."""
LEAVE_S = 2.0
_READ_BYTES = 4096
_REST_BYTES = 4096

FindJob = Callable[[], Job]
OpenSession = Callable[[Job, Sink, DumpSink, SampleSink], Session]


class Lines:
    """Write messages as lines, each whole, from any thread."""

    def __init__(self, descriptor: int, node: str) -> None:
        self._descriptor = descriptor
        self._node = node
        self._lock = threading.Lock()
        self._number = 0

    def send(self, message: Message) -> None:
        """Write one message; OSError where nobody reads any more, ValueError for one that is too large."""
        with self._lock:
            self._number += 1
            for line in split_message(self._node, self._number, encode_message(message)):
                rest = memoryview(line)
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]


@dataclass(frozen=True, slots=True)
class Told:
    """Hold the verdict that was told last, and when, on the monotonic clock."""

    finding: Finding
    at_s: float


class Agent:
    """Watch the job of one node for the head of a fleet."""

    def __init__(self, lines: Lines, node: str, find: FindJob, open_session: OpenSession) -> None:
        """Hold the parts; ``run`` does the work."""
        self._lines = lines
        self._node = node
        self._find = find
        self._open = open_session
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._full = False
        self._dumps: deque[Verb] = deque()
        """Requests that the next looks that end will answer, if they are as many as were asked for."""
        self._samples: deque[int] = deque()
        self._ping: tuple[int, datetime] | None = None
        """The ping that is to be answered with the clock here, and when it came."""
        self._told: Told | None = None
        self._waits: Mapping[int, Known[float]] = {}
        self._measured_ns = 0

    def run(self) -> None:
        """Say hello, then tell of the job until the head says goodbye, or says nothing for ``LEASE_S``."""
        start_thread("requests", self._listen)
        self._send(make_hello())
        while not self._over.is_set():
            self._watch()

    def stop(self) -> None:
        """End the work after the reading it is in."""
        self._over.set()
        with self._lock:
            if self._session is not None:
                self._session.stop()

    def _watch(self) -> None:
        try:
            job = self._find()
        except TpmonError as error:
            state = NodeState.NO_JOB if isinstance(error, NoTargetError) else NodeState.REFUSED
            more = "; tpmon fleet --name SCRIPT takes one" if isinstance(error, SeveralJobsError) else ""
            self._send(AgentStatus(state, f"{error.what}{more}"))
            self._answer(Missing(error.what))
            self._answer_ping()
            self._over.wait(LOOK_AGAIN_S)
            return
        session = self._open(job, self._take, self._take_dump, self._take_sample)
        with self._lock:
            self._session, self._told, self._measured_ns = session, None, 0
        if not self._over.is_set():
            session.run()
        with self._lock:
            self._session = None
        self._answer(Missing("the job has ended"))
        self._over.wait(LOOK_AGAIN_S)

    # Of the session's thread, which is the main one.

    def _take(self, update: Update) -> None:
        frame = update.frame
        frames, standing = self._session.recent() if self._session is not None else ((frame,), None)
        watch = standing.watch if standing is not None else NO_WATCH
        if standing is not None and frame.taken_ns - self._measured_ns >= WINDOW_S * 1e9:
            self._measured_ns = frame.taken_ns
            scene = see(frames, add_up_phases(standing.looks, frame.taken_ns), watch)
            found = find_waits(scene)
            self._waits = {} if isinstance(found, Missing) else {w.rank.process.pid: w.ratio for w in found}
        self._answer_ping()
        self._send(make_summary(frame, watch, self._waits))
        self._tell(frame.verdict)
        if self._full:
            try:
                self._send(frame)
            except ValueError as error:
                complain(f"tpmon agent: no whole Frames: {error}")

    def _tell(self, finding: Known[Finding]) -> None:
        """Tell a verdict when it is another one, and at times its newer figures."""
        if isinstance(finding, Missing):
            return
        now_s, told = time.monotonic(), self._told
        same = told is not None and _gist(told.finding) == _gist(finding)
        if told is None or not same or (now_s - told.at_s >= VERDICT_S and told.finding != finding):
            self._told = Told(finding, now_s)
            self._send(finding)

    def _take_dump(self, update: DumpUpdate) -> None:
        if update.state.running or update.awaits_records:
            return
        refused, looks = update.state.refused, update.state.request.rounds
        if refused and not is_known(update.dump):
            self._answer(Missing(refused))
            return
        self._answer(update.dump, looks)
        with self._lock:
            left, session = tuple(self._dumps), self._session
        if left and session is not None:
            session.ask_dump(_plan_looks(left[0]))

    def _answer(self, dump: Known[Dump], looks: int = MOST_ROUNDS) -> None:
        """Answer the requests for so many looks or fewer."""
        with self._lock:
            waiting = [one for one in self._dumps if one.count <= looks]
            self._dumps = deque(one for one in self._dumps if one.count > looks)
        for verb in waiting:
            try:
                self._send(NodeDump(verb.request, dump))
            except ValueError as error:
                self._send(NodeDump(verb.request, Missing(str(error))))

    def _answer_ping(self) -> None:
        with self._lock:
            ping, self._ping = self._ping, None
        if ping is not None:
            self._send(replace(make_hello(), ping=ping[0], pinged=ping[1]))

    def _take_sample(self, update: SampleUpdate) -> None:
        if update.state.running:
            return
        with self._lock:
            waiting = tuple(self._samples)
            self._samples.clear()
        for request in waiting:
            self._send(NodeSample(request, update.hot))

    def _send(self, message: Message) -> None:
        try:
            self._lines.send(message)
        except OSError:
            self.stop()

    # Of the thread that listens.

    def _listen(self) -> None:
        """Do what is asked; end this process when the head is gone, also where its pipe is full."""
        heard_s, rest = time.monotonic(), b""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        while not self._over.is_set() and time.monotonic() - heard_s < LEASE_S:
            if not poll.poll(1000 * LEASE_S / 10):
                continue
            data = os.read(0, _READ_BYTES)
            if not data:
                break
            heard_s = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-_REST_BYTES:]
            for line in lines:
                verb = parse_verb(line, self._node)
                if verb is not None:
                    self._do(verb)
        self.stop()
        time.sleep(LEAVE_S)  # the main thread mostly ends this process before
        end(0)

    def _do(self, verb: Verb) -> None:
        with self._lock:
            session = self._session
            if verb.name is VerbName.BYE:
                self._over.set()
            elif verb.name is VerbName.PING and verb.request:
                # Not answered here: this thread must hear the head also where the pipe to it is full.
                self._ping = verb.request, datetime.now().astimezone()
            elif verb.name is VerbName.FULL:
                self._full = verb.count > 0
            elif verb.name in (VerbName.DUMP, VerbName.ROUNDS):
                self._dumps.append(verb)
            elif verb.name is VerbName.SAMPLE:
                self._samples.append(verb.request)
        if session is None:
            if verb.name in (VerbName.DUMP, VerbName.ROUNDS):
                self._answer(Missing("no job is watched here"))
        elif verb.name in (VerbName.DUMP, VerbName.ROUNDS):
            session.ask_dump(_plan_looks(verb))  # after those that run, where these are fewer
        elif verb.name is VerbName.SAMPLE:
            session.ask_sample(SampleRequest(everyone=True, seconds=max(1.0, verb.seconds)))


def _plan_looks(verb: Verb) -> DumpRequest:
    if verb.name is VerbName.DUMP:
        return DumpRequest(Asker.KEY)
    return DumpRequest(Asker.KEY, rounds=max(1, verb.count), every_s=verb.seconds)


def _gist(finding: Finding) -> tuple[object, ...]:
    return finding.kind, finding.cause, finding.confidence, finding.rank, finding.pid


def read_node_name() -> str:
    """Return the name of this node: what Slurm calls it, else its host name."""
    return (os.environ.get("SLURMD_NODENAME") or os.uname().nodename)[:NODE_CHARS]


def make_hello() -> Hello:
    """Say who speaks."""
    return Hello(__version__, os.uname().nodename, datetime.now().astimezone())


def make_summary(frame: Frame, watch: WatchedTime, waits: Mapping[int, Known[float]]) -> NodeSummary:
    """Reduce a judged Frame to what fits a line; ``waits`` are by the PID of a rank."""
    target, finding = frame.target, frame.verdict
    living = target.state is not TargetState.ENDED
    cause: Applicable[str] = finding.cause if is_known(finding) else NOT_APPLICABLE
    return NodeSummary(
        taken=frame.taken,
        state=target.state,
        pid=target.pid,
        script=target.script,
        world_size=target.world_size,
        kind=map_known(lambda one: one.kind, finding),
        cause=cause,
        still_s=watch.still_s if living and frame.ranks else 0.0,
        hang_after_s=watch.hang_after_s,
        ranks=tuple(_sum_up(row, waits) for row in frame.ranks),
        workers=target.local_workers,
        step_rate_hz=frame.steps.rate_hz if is_known(frame.steps) else fresh_hz(frame.pace),
        gpu_pct=map_known(lambda cards: tuple(card.sm_pct for card in list_used(cards)), frame.gpus),
        used_cores=frame.cpu.used_cores,
        budget_cores=frame.cpu.budget_cores,
        own_cpu_pct=frame.self_.cpu_pct,
    )


def _sum_up(row: RankRow, waits: Mapping[int, Known[float]]) -> RankSummary:
    wait = waits.get(row.pid, Missing("not measured"))
    return RankSummary(row.rank, row.pid, row.step_own_ms, row.step_ms, wait)
