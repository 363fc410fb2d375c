"""Ask the debug server that a rank itself started for its record of collectives, over the loopback.

torch.distributed.debug and elastic's control plane start a small HTTP server in C++ threads of each
rank, which write the FlightRecorder down without the GIL, in a few milliseconds. Only a socket that is
told for certain is spoken to: other servers of a rank (gloo, the store) listen too.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Sequence
from dataclasses import replace

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing
from tpmon.model.results.collectives import GroupRecord, RankRecord
from tpmon.model.results.doctor import say_refusal
from tpmon.model.text.redaction import hide
from tpmon.probe.base.procread import PROC, read_thread_names
from tpmon.probe.base.socket import LOOPBACK, Conversation
from tpmon.probe.host.sockets import ListeningSocket, read_listeners
from tpmon.probe.records.flight_recorder import RecordOrigin, parse_json

THREAD_NAME = "pt_workerserver"
"""Threads of the server (torch/csrc/distributed/c10d/control_plane/WorkerServer.cpp)."""
SERVER_BACKLOG = 5
"""What its HTTP library asks for; gloo and the store ask for hundreds."""
SOCKET_VARIABLE = "TORCH_WORKER_SERVER_SOCKET"
ANSWER_S = 3.0
MOST_BYTES = 64 << 20
NO_SERVER = Missing("no debug server in it (torch.distributed.debug.start_debug_server)")
_RECORDERS = ("fr_trace_json", "dump_nccl_trace_json")
"""Handlers of the server: the recorder of gloo and others, and that of NCCL, which has one of its own."""
_LENGTH_DIGITS = 12
_ANY_IPV6 = "::"


@dataclass(frozen=True, slots=True)
class Door:
    """Say where the server of one rank is reached: a port of the loopback, or the path of its socket."""

    port: int
    path: str = ""
    pid: int = 0


def pick_door(listeners: Sequence[ListeningSocket]) -> Known[Door]:
    """Tell which of a process's sockets is that of its debug server."""
    fitting = [one for one in listeners if one.is_everywhere and one.backlog == SERVER_BACKLOG]
    if len(fitting) > 1:
        # Servers written in Python listen with the same backlog, mostly on IPv4 alone.
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


def ask_records(
    door: Door, origin: RecordOrigin, *, with_nccl: bool, seconds: float = ANSWER_S
) -> RankRecord:
    """Ask a rank for its record, and for that of NCCL where it may be asked; the groups of both in one.

    Raises:
        OSError: when the first cannot be had.
        RecordError: when it is none.
    """
    record = parse_json(ask_server(door, _RECORDERS[0], seconds), origin)
    if not with_nccl:
        return record
    try:
        other = parse_json(ask_server(door, _RECORDERS[1], seconds), origin)
    except OSError:
        if record.groups:
            # One of both is better than none, but what it lacks may have been called all the same.
            return replace(record, from_start=False)
        raise
    newest: dict[tuple[str, str, str], GroupRecord] = {}
    for group in (*record.groups, *other.groups):
        # A group of "cpu:gloo,cuda:nccl" has two backends, and each numbers its own collectives.
        key = (group.name, group.description, group.backend)
        if key not in newest or newest[key].last_called < group.last_called:
            newest[key] = group
    return replace(record, from_start=record.from_start and other.from_start, groups=tuple(newest.values()))


def ask_server(door: Door, handler: str = _RECORDERS[0], seconds: float = ANSWER_S) -> bytes:
    """Return what one handler of the server answers.

    Raises:
        OSError: when it cannot be reached, does not answer in time, refuses, or says too much.
    """
    if not door.path:
        return _ask((LOOPBACK, door.port), door, handler, seconds)
    # The name of a socket may have 107 bytes, and the way through /proc makes it longer.
    fd = os.open(door.path, os.O_PATH | os.O_CLOEXEC)
    try:
        return _ask(f"/proc/self/fd/{fd}", door, handler, seconds)
    finally:
        os.close(fd)


def _ask(address: str | tuple[str, int], door: Door, handler: str, seconds: float) -> bytes:
    head = (
        f"POST /handler/{handler} HTTP/1.1",
        "Host: localhost",
        "Content-Length: 0",
        "Connection: close",
        "",
        "",
    )
    family = socket.AF_UNIX if door.path else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as link:
        talk = Conversation(link, seconds)
        talk.connect(address)
        if door.path:
            talk.check_peer(door.pid)
        talk.send("\r\n".join(head).encode())
        return parse_answer(talk.read_all(MOST_BYTES))


def parse_answer(data: bytes) -> bytes:
    """Return the body of an HTTP answer that was read to its end.

    Raises:
        OSError: when it is none, is cut, or is a refusal.
    """
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
