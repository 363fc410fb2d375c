"""The head: start agents, read all of them with one selector, and keep for each node what is known of it.

No node holds the others: every pipe is read and written without a wait, and what does not answer is a state.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from functools import partial

from tpmon import __version__
from tpmon.fleet.launch import MOST_CONNECTIONS, TRIES, AgentLaunch, keep_environment
from tpmon.fleet.line import Joiner
from tpmon.fleet.messages import Message, Verb, VerbName, decode_message, write_verb
from tpmon.model.codec import CodecError
from tpmon.model.frame import Frame, TargetState
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, is_known
from tpmon.model.results.fleet import (
    AgentStatus,
    FleetNode,
    Hello,
    NodeDump,
    NodeSample,
    NodeState,
    NodeSummary,
)
from tpmon.model.text.redaction import admit_text
from tpmon.model.verdict import Finding
from tpmon.probe.job.exit_status import name_signal

START_S = 30.0
"""After so long without a hello the reason is said; the agent may still come."""
LATE_S = 5.0
PING_S = 2.0
AGAIN_S = 30.0
"""An agent that had answered is started again so long after its end, and ended when it is so late."""
AT_ONCE = 32
"""Agents that are being started at one time."""
END_S = 2.0
GATHER_S = 0.05
"""Lines of nodes come one by one: to wake for each of 64 costs 20 ms of CPU a second."""
REAP_S = 0.05
"""Whoever closes its output has mostly ended; the others are not kept waiting for one that has not."""
MOST_FRAMES = 5
"""Whole Frames of a node that are kept until they are taken; its agent sends one a second."""
MOST_TORN = 100
MOST_SAID_BYTES = 1 << 20
"""An agent that sends more of what is no message than this is left."""
UNASKED_BYTES = 64 << 10
"""A message that answers no request is not longer: to decode 8 MB takes a second, and 200 MB."""
_ANSWERED = (VerbName.DUMP, VerbName.ROUNDS, VerbName.SAMPLE)
_READ_BYTES = 256 << 10
_MORE_BYTES = 16 << 10
_SAID_CHARS = 160
_OURS = "tpmon"


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold what one node answered to a request; whole Frames come until nobody asks for them."""

    node: str
    message: NodeDump | NodeSample | Frame


class _Node:
    """Hold what is known of one node."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hello: Hello | None = None
        self.skew_s: Applicable[float] = NOT_APPLICABLE
        self.started_s: float | None = None
        self.heard_s: float | None = None
        self.status: AgentStatus | None = None
        self.ended = ""
        """Why its agent is gone."""
        self.summary: NodeSummary | None = None
        self.finding: Finding | None = None
        self.frames = 0
        """Whole Frames that nobody has taken so far."""
        self.owes = set[int]()
        """The requests that it has not answered."""

    def begin(self, now_s: float) -> None:
        self.hello, self.skew_s, self.status, self.ended = None, NOT_APPLICABLE, None, ""
        self.summary, self.finding = None, None
        self.owes.clear()
        self.started_s, self.heard_s = now_s, None


class _Link:
    """Hold one process and its pipes: an agent, or a launcher through which several speak."""

    def __init__(self, launch: AgentLaunch, nodes: Sequence[_Node]) -> None:
        self.launch = launch
        self.nodes = {node.name: node for node in nodes}
        self.process: subprocess.Popen[bytes] | None = None
        self.joiner = Joiner(self.nodes)
        self.complaint = b""
        self.prepared = not launch.first
        """What is sent before an agent is there."""
        self.due_s = 0.0
        """When it may be started, infinity for never again."""
        self.tries = 0
        """How often it may be started again after it had answered."""

    def is_awaited(self, now_s: float) -> bool:
        """Tell whether it was started lately and nobody of it has answered."""
        return self.process is not None and all(
            node.hello is None and node.started_s is not None and now_s - node.started_s < START_S
            for node in self.nodes.values()
        )

    def list_silent(self, now_s: float) -> list[_Node]:
        """Return the nodes of which nothing has come for ``AGAIN_S``, after something had."""
        heard = [(one, one.heard_s) for one in self.nodes.values()]
        return [one for one, heard_s in heard if heard_s is not None and now_s - heard_s > AGAIN_S]

    def explain(self) -> str:
        """Return the last words of its launcher, or of who answered in place of an agent."""
        words = self.complaint.strip() or self.joiner.said
        return admit_text(find_last_words(words.decode("utf-8", "replace"), self.launch.argv), _SAID_CHARS)


class FleetHead:
    """Start the agents of some nodes, and take what they tell. Owned by one thread."""

    def __init__(self, launches: Sequence[AgentLaunch], *, version: str = __version__) -> None:
        """Start nothing so far."""
        self._version = version
        self._nodes = {name: _Node(name) for launch in launches for name in launch.nodes}
        self._links = [_Link(one, [self._nodes[name] for name in one.nodes]) for one in launches]
        self._selector = selectors.DefaultSelector()
        self._answers: deque[Answer] = deque()
        self._requests = 0
        self._pinged_s = 0.0
        self._more = False
        """A pipe was so full that its writer may wait."""
        self._full = frozenset[str]()
        """The nodes that send whole Frames."""
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._hear_wake)
        self._is_woken = False
        self._clock_wanted = False
        self._clock_asked = 0, datetime.now().astimezone()
        """The last ping that agents answer with their clocks, and when it was sent."""

    def wake(self) -> None:
        """End the poll that is under way; from any thread."""
        with suppress(OSError):  # full: it is woken already; closed: nobody polls any more
            self._waker.send(b"w")

    def _hear_wake(self) -> None:
        self._is_woken = True
        with suppress(BlockingIOError):
            self._woken.recv(_READ_BYTES)

    def poll(self, seconds: float) -> None:
        """Read what comes within so many seconds, or until ``wake``; start, ping and end what is due."""
        until_s, self._is_woken = time.monotonic() + seconds, False
        while True:
            now_s = time.monotonic()
            self._start_due(now_s)
            if now_s - self._pinged_s >= PING_S:
                self._pinged_s = now_s
                self._ping()
            wait_s, self._more = min(until_s, self._pinged_s + PING_S) - now_s, False
            for key, _ in self._selector.select(max(0.0, wait_s)):
                key.data()
            rest_s = until_s - time.monotonic()
            if self._is_woken or rest_s <= 0:
                return
            if not self._more:
                time.sleep(min(GATHER_S, rest_s))

    def take_answers(self) -> list[Answer]:
        """Return what was answered since the last call."""
        answers = list(self._answers)
        self._answers.clear()
        for node in self._nodes.values():
            node.frames = 0
        return answers

    def ask(self, name: VerbName, nodes: Sequence[str], *, count: int = 1, seconds: float = 0.0) -> int:
        """Ask some nodes for something, and return the number that their answers will have."""
        self._requests += 1
        verb = Verb(name, self._requests, count, seconds)
        asked = frozenset(nodes)
        for node in asked if name in _ANSWERED else ():
            self._nodes[node].owes.add(self._requests)
        for link in self._links:
            if asked.issuperset(link.nodes):
                self._write(link, write_verb(verb))  # once for all that srun gives it to
                continue
            for node in asked.intersection(link.nodes):
                self._write(link, write_verb(verb, node))
        return self._requests

    def ask_frames(self, nodes: frozenset[str]) -> None:
        """Have these nodes send whole Frames, also when their agents start again, and no others."""
        for wanted, changed in ((1, nodes - self._full), (0, self._full - nodes)):
            if changed:
                self.ask(VerbName.FULL, sorted(changed), count=wanted)
        self._full = nodes

    def rows(self) -> tuple[FleetNode, ...]:
        """Return what is known of each node now."""
        now_s = time.monotonic()
        return tuple(
            self._describe(node, link, now_s) for link in self._links for node in link.nodes.values()
        )

    def close(self) -> None:
        """Say goodbye, and end what does not go within ``END_S``."""
        self._ask_all(Verb(VerbName.BYE))
        running = [one.process for one in self._links if one.process is not None]
        for process in running:
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            until_s = time.monotonic() + END_S
            running = [one for one in running if not _has_ended(one, until_s)]
            for process in running:
                with suppress(OSError):
                    os.killpg(process.pid, number)
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def _start_due(self, now_s: float) -> None:
        room = AT_ONCE - sum(one.is_awaited(now_s) for one in self._links)
        for link in tuple(self._links):
            if link.process is None and link.due_s <= now_s and room > 0:
                self._start(link, now_s)
                room -= 1
            elif link.process is not None and (silent := link.list_silent(now_s)):
                self._start_again(link, silent, now_s)

    def _start_again(self, link: _Link, silent: Sequence[_Node], now_s: float) -> None:
        """Start silent nodes again: by the process of all, or beside it where others of it speak."""
        why = f"silent for {AGAIN_S:g} s, started again"
        again = link.launch.again
        if len(silent) == len(link.nodes):
            self._end(link, why)
            link.due_s = now_s
        elif again is not None and len(self._links) < MOST_CONNECTIONS:
            for node in silent:
                self._write(link, write_verb(Verb(VerbName.BYE), node.name))
                del link.nodes[node.name]
                node.ended = why
            own = _Link(again(tuple(one.name for one in silent)), silent)
            own.tries = TRIES  # what broke it may last
            self._links.append(own)

    def _start(self, link: _Link, now_s: float) -> None:
        for node in link.nodes.values():
            node.begin(now_s)
        link.joiner, link.complaint = Joiner(link.nodes), b""
        argv, pipe = link.launch.argv if link.prepared else link.launch.first, subprocess.PIPE
        try:
            with nullcontext(pipe) if link.prepared else open(link.launch.sends, "rb") as given:
                # In a session of its own: ^C of the terminal is for the head, and a question to srun.
                process = subprocess.Popen(
                    argv,
                    env=keep_environment(os.environ, link.launch.drops),
                    stdin=given,
                    stdout=pipe,
                    stderr=pipe,
                    start_new_session=True,
                    bufsize=0,
                )
        except OSError as error:
            for node in link.nodes.values():
                node.ended = f"{argv[0]}: {error.strerror or error}"
            link.due_s = float("inf")
            return
        link.process = process
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                descriptor, is_output = stream.fileno(), stream is process.stdout
                os.set_blocking(descriptor, False)
                read = partial(self._read, link, descriptor, process, is_output=is_output)
                self._selector.register(descriptor, selectors.EVENT_READ, read)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)

    def _read(
        self, link: _Link, descriptor: int, process: subprocess.Popen[bytes], *, is_output: bool
    ) -> None:
        if link.process is not process:
            return  # it was ended in this round
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data and is_output:
            self._more = self._more or len(data) >= _MORE_BYTES
            self._take(link, data)
        elif data:
            _complain(link, data)
        elif is_output:
            self._end(link, "")
        else:
            self._selector.unregister(descriptor)

    def _end(self, link: _Link, why: str) -> None:
        """Note the end of a process, with its last words, and end it where it lives on."""
        process, now_s = link.process, time.monotonic()
        link.process = None
        if process is None:
            return
        if process.stderr is not None:
            with suppress(OSError, ValueError):
                _complain(link, os.read(process.stderr.fileno(), _READ_BYTES))
        if why or not _has_ended(process, now_s + (REAP_S if link.prepared else END_S)):
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            _has_ended(process, time.monotonic() + REAP_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(KeyError):
                    self._selector.unregister(stream.fileno())
                with suppress(OSError):
                    stream.close()
        if not link.prepared and process.returncode == 0:
            link.prepared, link.due_s = True, now_s
            return
        if any(node.hello is not None for node in link.nodes.values()):
            link.tries = link.launch.tries
        else:
            link.tries -= 1
        link.due_s = now_s + AGAIN_S if link.tries > 0 else float("inf")
        said = why or link.explain() or _say_exit(process.returncode)
        for node in link.nodes.values():
            node.ended = said

    def _take(self, link: _Link, data: bytes) -> None:
        for whole in link.joiner.add(data):
            node = link.nodes.get(whole.node)
            if node is None:
                continue  # another process speaks for it now
            try:
                if len(whole.message) > UNASKED_BYTES and not (node.owes or node.name in self._full):
                    raise CodecError(f"{len(whole.message)} bytes that nobody asked for")
                message = decode_message(whole.message)
            except CodecError:
                link.joiner.torn += 1
                continue
            self._hear(link, node, message)
        is_none = link.joiner.torn > MOST_TORN or link.joiner.said_bytes > MOST_SAID_BYTES
        if is_none and len(link.nodes) == 1:
            self._end(link, "what it sends is no message of tpmon")
            link.due_s = float("inf")

    def _hear(self, link: _Link, node: _Node, message: Message) -> None:
        node.heard_s = time.monotonic()
        if isinstance(message, Hello):
            self._hear_hello(link, node, message)
        elif node.hello is None:
            self._clock_wanted = True  # its first words were lost: it says them again with its clock
        elif node.hello.version != self._version:
            return  # its readings may mean something else
        elif isinstance(message, NodeSummary):
            node.summary, node.status = message, None
        elif isinstance(message, Finding):
            node.finding = message
        elif isinstance(message, AgentStatus):
            node.status = message
            if node.summary is not None and node.summary.state is not TargetState.ENDED:
                node.summary, node.finding = None, None  # of a job that has ended they stay
        elif isinstance(message, Frame):
            if node.name in self._full and node.frames < MOST_FRAMES:
                node.frames += 1
                self._answers.append(Answer(node.name, message))
        elif message.request in node.owes:
            node.owes.discard(message.request)
            self._answers.append(Answer(node.name, message))

    def _ping(self) -> None:
        """Tell all agents that the head is there, and ask for their clocks where some are not known."""
        number = 0
        if self._clock_wanted:
            self._requests += 1
            number = self._requests
            self._clock_wanted, self._clock_asked = False, (number, datetime.now().astimezone())
        self._ask_all(Verb(VerbName.PING, number))

    def _hear_hello(self, link: _Link, node: _Node, hello: Hello) -> None:
        if node.name in self._full:
            self._write(link, write_verb(Verb(VerbName.FULL), node.name))
        number, sent = self._clock_asked
        if node.hello is None:
            self._clock_wanted = True
        elif hello.ping == number and is_known(hello.pinged):
            node.skew_s = measure_skew(sent, hello.pinged, hello.clock, datetime.now().astimezone())
        node.hello = hello

    def _ask_all(self, verb: Verb) -> None:
        for link in self._links:
            self._write(link, write_verb(verb))

    def _write(self, link: _Link, data: bytes) -> None:
        """Write to an agent; one that takes nothing is late, and nobody waits for it."""
        if link.process is not None and link.process.stdin is not None:
            with suppress(OSError, ValueError):
                os.write(link.process.stdin.fileno(), data)

    def _describe(self, node: _Node, link: _Link, now_s: float) -> FleetNode:
        state, reason = self._judge(node, link, now_s)
        hello = node.hello
        since_s = node.heard_s if node.heard_s is not None else node.started_s
        return FleetNode(
            node=node.name,
            state=state,
            reason=reason or NOT_APPLICABLE,
            age_s=0.0 if since_s is None else max(0.0, now_s - since_s),
            host=NOT_APPLICABLE if hello is None else hello.host,
            version=NOT_APPLICABLE if hello is None else hello.version,
            clock_skew_s=node.skew_s,
            summary=NOT_APPLICABLE if node.summary is None else node.summary,
            verdict=NOT_APPLICABLE if node.finding is None else node.finding,
            torn=link.joiner.torn,
        )

    def _judge(self, node: _Node, link: _Link, now_s: float) -> tuple[NodeState, str]:
        if node.ended:
            never = node.hello is None and link.due_s == float("inf")
            return (NodeState.REFUSED if never else NodeState.GONE), node.ended
        if node.hello is None:
            waited_s = now_s - node.started_s if node.started_s is not None else 0.0
            if waited_s < START_S:
                return NodeState.STARTING, ""
            said = link.explain()
            return NodeState.STARTING, f"no answer within {START_S:g} s{f': {said}' if said else ''}"
        if node.hello.version != self._version:
            return NodeState.OTHER_VERSION, f"{_OURS} {node.hello.version} there, {self._version} here"
        if node.heard_s is not None and now_s - node.heard_s > LATE_S:
            return NodeState.LATE, "its agent answers no more"
        if node.status is not None:
            return node.status.state, node.status.reason
        return (NodeState.LIVE if node.summary is not None else NodeState.STARTING), ""


def find_last_words(text: str, argv: Sequence[str]) -> str:
    """Return the last line that says something: no marks below another line, no command that it repeats."""
    lines = [one.strip() for one in text.strip().splitlines()] or [""]
    telling = (one for one in reversed(lines) if re.search(r"\w.*[^\s:]$", one) and one not in " ".join(argv))
    return next(telling, lines[-1])


def measure_skew(sent: datetime, came: datetime, answered: datetime, back: datetime) -> float:
    """Return how far the clock of a node is ahead, seconds; 0 where the way of the messages may explain it.

    ``sent`` and ``back`` are of the clock here, ``came`` and ``answered`` of the one there.
    """
    least_s, most_s = (answered - back).total_seconds(), (came - sent).total_seconds()
    return 0.0 if least_s <= 0 <= most_s else (least_s + most_s) / 2


def _complain(link: _Link, data: bytes) -> None:
    link.complaint = (link.complaint + data)[-_READ_BYTES // 64 :]


def _has_ended(process: subprocess.Popen[bytes], until_s: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, until_s - time.monotonic()))
        return True
    return False


def _say_exit(code: int | None) -> str:
    if code is None:
        return "its pipe was closed"
    return f"it ended with status {code}" if code >= 0 else f"it was ended by {name_signal(-code)}"
