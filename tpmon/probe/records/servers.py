"""Ask the servers of a job over the loopback: torch's debug server for records, NCCL's RAS for dead ranks.

torch.distributed.debug and elastic's control plane start a small HTTP server in C++ threads of each rank,
which writes out the FlightRecorder without the GIL, in a few milliseconds. Only a socket that is certainly
its own is used: other servers of a rank (gloo, the store) listen too.

RAS (NCCL 2.24, on by default) reports which ranks lag, are silent or are dead. Every NCCL process tries to
listen on one port, of IPv4 or IPv6, and one of a host gets it. It is asked only where that is a process of
this job. Its own threads gather the answer over their own connections; the training is not touched.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results.collectives import GroupRecord, RankRecord, RasProcess, RasRank, RasReport
from tpmon.model.results.doctor import say_refusal
from tpmon.model.text.redaction import admit_text, hide
from tpmon.probe.base.procread import PROC, read_thread_names
from tpmon.probe.host.network import ListeningSocket, read_listeners
from tpmon.probe.records.flight_recorder import parse_json

LOOPBACK = "127.0.0.1"
_CREDENTIALS = struct.Struct("iII")  # struct ucred: PID, user, group
_CHUNK = 1 << 16


class LocalConnection:
    """Hold one conversation; every method raises OSError when its time is over."""

    def __init__(self, link: socket.socket, seconds: float) -> None:
        self._link = link
        self._end_s = time.monotonic() + seconds
        self._read = bytearray()

    def _wait_no_longer(self) -> None:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        self._link.settimeout(left_s)

    def connect(self, address: str | tuple[str, int]) -> None:
        """Connect to a port or to a socket in the file system."""
        self._wait_no_longer()
        self._link.connect(address)

    def check_peer(self, pid: int) -> None:
        """Check who listens at a socket in the file system, before the first byte."""
        told = self._link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(told)[0] != pid:
            raise PermissionError(errno.EACCES, f"another process than {pid} listens there")

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._wait_no_longer()
        self._link.sendall(data)

    def read_line(self, limit: int) -> bytes:
        """Read up to the end of a line, without it."""
        while b"\n" not in self._read:
            if len(self._read) > limit:
                raise OSError("a line of the answer is too long")
            if not self._hear():
                raise OSError("the other end closed the connection")
        line, _, self._read = self._read.partition(b"\n")
        return bytes(line)

    def read_all(self, limit: int) -> bytes:
        """Read until the other end closes."""
        while self._hear():
            if len(self._read) > limit:
                raise OSError(f"the answer has more than {limit >> 20} MiB")
        return bytes(self._read)

    def _hear(self) -> bool:
        """Read some more; False at the end."""
        self._wait_no_longer()
        data = self._link.recv(_CHUNK)
        self._read += data
        return bool(data)


THREAD_NAME = "pt_workerserver"  # torch/csrc/distributed/c10d/control_plane/WorkerServer.cpp
SERVER_BACKLOG = 5  # what its HTTP library asks for; gloo and the store ask for hundreds
SOCKET_VARIABLE = "TORCH_WORKER_SERVER_SOCKET"
ANSWER_S = 3.0
MOST_BYTES = 64 << 20
NO_SERVER = Missing("no debug server in it (torch.distributed.debug.start_debug_server)")
_RECORDERS = ("fr_trace_json", "dump_nccl_trace_json")  # handlers: gloo's and others' recorder, NCCL's own
_LENGTH_DIGITS = 12
_ANY_IPV6 = "::"


@dataclass(frozen=True, slots=True)
class Door:
    """Say where the server of one rank is: a port of the loopback, or the path of its socket."""

    port: int
    path: str = ""
    pid: int = 0


def pick_door(listeners: Sequence[ListeningSocket]) -> Known[Door]:
    """Find the socket of a process's debug server among its sockets."""
    fitting = [one for one in listeners if one.is_everywhere and one.backlog == SERVER_BACKLOG]
    if len(fitting) > 1:
        # Python servers listen with the same backlog, mostly on IPv4 only.
        fitting = [one for one in fitting if one.address == _ANY_IPV6]
    if len(fitting) == 1:
        return Door(fitting[0].port)
    if any(one.is_everywhere for one in listeners):
        return Missing("which of its sockets is its debug server's is not known: none is asked")
    return Missing("its debug server listens on no address of this host")


def find_door(
    pid: int, environment: dict[str, str], everything: tuple[ListeningSocket, ...], proc: str = PROC
) -> Known[Door]:
    """Find the debug server of one rank, or say why it has none that could be asked."""
    if THREAD_NAME not in read_thread_names(pid, proc):
        return NO_SERVER
    path = environment.get(SOCKET_VARIABLE, "")
    if path:
        seen = f"{proc}/{pid}/root{path}"
        try:
            if stat.S_ISSOCK(os.stat(seen).st_mode):
                return Door(0, seen, pid)
        except OSError as error:
            return Missing(f"{hide(path)}: {say_refusal(error, 'environ')}")
    listeners = read_listeners(pid, everything, proc)
    return listeners if isinstance(listeners, Missing) else pick_door(listeners)


def ask_records(door: Door, origin: RankRecord, *, with_nccl: bool, seconds: float = ANSWER_S) -> RankRecord:
    """Ask a rank for its record, and NCCL's where it may be asked; join the groups of both.

    OSError when the first cannot be had, RecordError when it is none.
    """
    record = parse_json(ask_server(door, _RECORDERS[0], seconds), origin)
    if not with_nccl:
        return record
    try:
        other = parse_json(ask_server(door, _RECORDERS[1], seconds), origin)
    except OSError:
        if record.groups:
            # One of the two is better than none, but what it lacks may still have been called.
            return replace(record, from_start=False)
        raise
    newest: dict[tuple[str, str, str], GroupRecord] = {}
    for group in (*record.groups, *other.groups):
        # A group of "cpu:gloo,cuda:nccl" has two backends, which number their own collectives.
        key = (group.name, group.description, group.backend)
        if key not in newest or newest[key].last_called < group.last_called:
            newest[key] = group
    return replace(record, from_start=record.from_start and other.from_start, groups=tuple(newest.values()))


def ask_server(door: Door, handler: str = _RECORDERS[0], seconds: float = ANSWER_S) -> bytes:
    """Return a handler's answer; OSError for no connection, no answer in time, a refusal, or too much."""
    if not door.path:
        return _ask((LOOPBACK, door.port), door, handler, seconds)
    # A socket's name may have 107 bytes, and the way through /proc makes it longer.
    fd = os.open(door.path, os.O_PATH | os.O_CLOEXEC)
    try:
        return _ask(f"/proc/self/fd/{fd}", door, handler, seconds)
    finally:
        os.close(fd)


def _ask(address: str | tuple[str, int], door: Door, handler: str, seconds: float) -> bytes:
    head = f"POST /handler/{handler} HTTP/1.1", "Host: localhost", "Content-Length: 0", "Connection: close"
    family = socket.AF_UNIX if door.path else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as link:
        connection = LocalConnection(link, seconds)
        connection.connect(address)
        if door.path:
            connection.check_peer(door.pid)
        connection.send("\r\n".join((*head, "", "")).encode())
        return parse_answer(connection.read_all(MOST_BYTES))


def parse_answer(data: bytes) -> bytes:
    """Return the body of a complete HTTP answer; OSError when it is none, is cut, or is a refusal."""
    head, gap, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    words = lines[0].split()
    if not gap or len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise OSError("its debug server speaks no HTTP")
    if words[1] != b"200":
        raise OSError(f"its debug server answered {words[1][:3].decode('ascii', 'replace')}")
    fields = dict(line.lower().split(b":", 1) for line in lines[1:] if b":" in line)
    length = fields.get(b"content-length", b"").strip()
    if not length.isdigit() or len(length) > _LENGTH_DIGITS or int(length) != len(body):
        raise OSError("the answer of its debug server is cut")
    return body


PORT = 28028
ADDRESS_VARIABLE, ENABLE_VARIABLE = "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"
GATHER_S = 2  # NCCL waits so long for its other processes, and reports which did not answer
RAS_S = GATHER_S + 2.0
RAS_BYTES = 4 << 20
MOST_RANKS = 1024
_MOST_ERRORS = 16
_LINE_BYTES = 4096
_OF_EVERYWHERE = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104  # compared, not bound
_PROTOCOL = 2

_VERSION = re.compile(r"NCCL version (\S+)")
_TOTAL = re.compile(r"\s*\d{1,9}(?:\s+\d{1,9}){4}\s*")
_COMMUNICATOR = re.compile(r"#\d+-\d+ \(([0-9a-f]+)\) ([A-Z]+)")
_COUNTS = re.compile(r"different (\w+) operation counts")
_LAUNCHED = re.compile(r"launched up to operation (\d{1,18})\b")
_STATUS = re.compile(r"have status (\w+)|has status (\w+)")
_REPORTED = re.compile(r"reported (.+?)(?: -- |$)")
_RANK = re.compile(r"\s*Rank (\d{1,9})\b")
_MANAGED = re.compile(r"managed by process (\d{1,10}) on node (\S+)")
_DEAD = re.compile(r"\s*(\d{1,9}) job process(?:es)? (?:is|are) considered dead")
_SILENT = re.compile(r"Missing communicator data from (\d{1,9}) job process")
_PROCESS = re.compile(r"\s*Process (\d{1,10}) on node (\S+)")
_MISSING_RANKS = re.compile(r"\s*The missing ranks?: ([\d, -]+)")
_PROBLEMS = {"INCOMPLETE": "no answer", "DEAD": "dead"}
_ROW = re.compile(r"\s*\d+\s+\d+\s+\d+\s+\S+\s+\d+\s+\d+\s+[A-Z]+\s+([A-Z,]+)\s*")


def find_port(environments: Sequence[Mapping[str, str]]) -> Known[int]:
    """Return the port that the ranks were told to use, or why there is none."""
    if any(one.get(ENABLE_VARIABLE) == "0" for one in environments):
        return Missing(f"{ENABLE_VARIABLE}=0 turned it off")
    told = next((one[ADDRESS_VARIABLE] for one in environments if one.get(ADDRESS_VARIABLE)), "")
    port = told.rpartition(":")[2]
    return int(port) if port.isdecimal() and len(port) < 6 and 0 < int(port) < 1 << 16 else PORT


def read_ras(port: int, seconds: float = RAS_S, address: str = LOOPBACK) -> RasReport:
    """Ask the service on a port of this host, at most for ``seconds``; ``address`` is where it listens.

    OSError when nobody answers in time, or not as NCCL does.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as link:
        connection = LocalConnection(link, seconds)
        connection.connect((_OF_EVERYWHERE.get(address, address), port))
        connection.send(f"CLIENT PROTOCOL {_PROTOCOL}\n".encode())
        if not connection.read_line(_LINE_BYTES).startswith(b"SERVER PROTOCOL"):
            raise OSError("what listens there is no NCCL")
        connection.send(f"TIMEOUT {GATHER_S}\n".encode())
        if connection.read_line(_LINE_BYTES).strip() != b"OK":
            raise OSError("it does not take a time limit")
        connection.send(b"VERBOSE STATUS\n")
        return parse_ras(connection.read_all(RAS_BYTES).decode("utf-8", "replace"))


@dataclass(slots=True)
class _Place:
    """Hold where in the report a line stands: its communicator, subject, and count."""

    communicator: str = ""
    problem: str = ""
    operation: Applicable[str] = NOT_APPLICABLE
    launched: Applicable[int] = NOT_APPLICABLE
    status: str = ""


@dataclass(slots=True)
class _Found:
    """Collect what a report says."""

    version: str = ""
    processes: Known[int] = field(default_factory=lambda: Missing("not in the report"))
    gpus: Known[int] = field(default_factory=lambda: Missing("not in the report"))
    errors: list[str] = field(default_factory=list)
    ranks: list[RasRank] = field(default_factory=list)
    most: dict[tuple[str, str], int] = field(default_factory=dict)
    dead: int = 0
    silent: int = 0
    lost: list[RasProcess] = field(default_factory=list)


def parse_ras(text: str) -> RasReport:
    """Parse the answer to VERBOSE STATUS, which lists by rank only what is wrong; OSError for other text."""
    found = _Found()
    place = _Place()
    for line in text.splitlines():
        _read_head(line, found)
        place = _move(line, place, found)
        if (rank := _RANK.match(line)) and place.communicator and len(found.ranks) < MOST_RANKS:
            found.ranks.append(_read_rank(line, int(rank[1]), place, found))
        elif (numbers := _MISSING_RANKS.match(line)) and place.communicator:
            room = MOST_RANKS - len(found.ranks)
            found.ranks += [
                RasRank(place.communicator, one, "no answer", *[NOT_APPLICABLE] * 5)
                for one in _list_numbers(numbers[1], room)
            ]
        elif (process := _PROCESS.match(line)) and (problem := _PROBLEMS.get(place.problem)):
            found.lost.append(RasProcess(int(process[1]), admit_text(process[2], 80), problem))
    if not found.version:
        raise OSError("its answer is no report of NCCL")
    return RasReport(
        version=found.version,
        processes=found.processes,
        gpus=found.gpus,
        errors=tuple(dict.fromkeys(found.errors))[:_MOST_ERRORS],
        ranks=tuple(_add_most(one, found.most) for one in _name_processes(found)),
        dead=found.dead,
        silent=found.silent,
        lost=tuple(dict.fromkeys(found.lost[:MOST_RANKS])),
    )


def _list_numbers(text: str, most: int) -> list[int]:
    """List the first ``most`` numbers of "21, 24-26"."""
    numbers: list[int] = []
    for found in re.finditer(r"(\d{1,9})(?:-(\d{1,9}))?", text):
        room = most - len(numbers)
        if room <= 0:
            break
        numbers += range(int(found[1]), int(found[2] or found[1]) + 1)[:room]
    return numbers


def _name_processes(found: _Found) -> list[RasRank]:
    """Give missing ranks their processes, where the report names them elsewhere or there is only one."""
    known = {(one.communicator, one.rank): one for one in found.ranks if is_known(one.process)}
    missing = {one.rank for one in found.ranks if not is_known(one.process) and one.problem == "no answer"}
    lost = {(one.process, one.node) for one in found.lost}

    def name(one: RasRank) -> RasRank:
        if is_known(one.process) or one.problem != "no answer":
            return one
        if other := known.get((one.communicator, one.rank)):
            return replace(one, process=other.process, node=other.node)
        if len(lost) == len(missing) == 1:
            process, node = next(iter(lost))
            return replace(one, process=process, node=node)
        return one

    return [name(one) for one in found.ranks]


def _read_head(line: str, found: _Found) -> None:
    if not found.version and (version := _VERSION.match(line)):
        found.version = admit_text(version[1], 40)
    if not is_known(found.gpus) and _TOTAL.fullmatch(line):
        numbers = [int(word) for word in line.split()]
        found.processes, found.gpus = numbers[3], numbers[4]
    if (row := _ROW.fullmatch(line)) and row[1] != "OK":
        found.errors += row[1].split(",")
    if dead := _DEAD.match(line):
        found.dead = int(dead[1])
    if silent := _SILENT.search(line):
        found.silent = int(silent[1])


def _move(line: str, place: _Place, found: _Found) -> _Place:
    """Return the place of the lines after this one."""
    if head := _COMMUNICATOR.match(line):
        return _Place(head[1], head[2])
    if line and not line[0].isspace():
        return _Place(problem=line.strip())  # another part of the report
    if _RANK.match(line) or not place.communicator:
        return place
    if counts := _COUNTS.search(line):
        return _Place(place.communicator, place.problem, counts[1])
    launched = _read_launched(line, place, found)
    status = _STATUS.search(line)
    return replace(place, launched=launched, status=status[1] or status[2] if status else "")


def _read_launched(line: str, place: _Place, found: _Found) -> Applicable[int]:
    """Return the count at which a line stands, and record the highest of its communicator."""
    launched = place.launched
    if count := _LAUNCHED.search(line):
        launched = int(count[1])
    elif "not launched any operations" in line:
        launched = 0
    if is_known(launched) and is_known(place.operation):
        key = (place.communicator, place.operation)
        found.most[key] = max(found.most.get(key, 0), launched)
    return launched


def _read_rank(line: str, rank: int, place: _Place, found: _Found) -> RasRank:
    launched = _read_launched(line, place, found) if is_known(place.operation) else place.launched
    managed = _MANAGED.search(line)
    return RasRank(
        communicator=place.communicator,
        rank=rank,
        problem=_describe_problem(line, place),
        operation=place.operation,
        launched=launched,
        most_launched=NOT_APPLICABLE,
        process=int(managed[1]) if managed else NOT_APPLICABLE,
        node=admit_text(managed[2], 80) if managed else NOT_APPLICABLE,
    )


def _describe_problem(line: str, place: _Place) -> str:
    if is_known(place.operation):
        return "launched"
    if status := _STATUS.search(line):
        return f"status {status[1] or status[2]}"
    if place.status:
        return f"status {place.status}"
    if reported := _REPORTED.search(line):
        return admit_text(f"reported {reported[1]}", 80)
    return "no answer" if place.problem == "INCOMPLETE" else place.problem.lower()


def _add_most(one: RasRank, most: Mapping[tuple[str, str], int]) -> RasRank:
    if not is_known(one.operation) or not is_known(one.launched):
        return one
    count = most[one.communicator, one.operation]
    return replace(
        one, problem="behind" if one.launched < count else "ahead of the rest", most_launched=count
    )
