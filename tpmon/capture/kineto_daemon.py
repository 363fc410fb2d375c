"""Speak with libkineto in a training as the daemon that it asks for profiles: datagrams both ways. Pure.

A message is its body's size (u64), its kind (32 bytes, zero-padded), and the body. libkineto sends

    ctxt    i32 GPU, i32 PID, i64 job               and awaits an i32
    req     i32 bits, i32 n, i64 job, n i32 PIDs    and awaits a configuration, or nothing

every few seconds, and waits 50 ms for the answer. The PIDs are those that it sees itself; the kernel
tells the sender's. Bit 2 is there while no profile is under way. An answer that is not understood
ends the process that asked, so nothing is answered but what stands here.
"""

from __future__ import annotations

import struct

from tpmon.model.frozen import dataclass

DAEMON = "dynolog"
CLIENT = "dynoconfigclient"
MOST_BYTES = 1 << 16
LONGEST_FOLDER = 54
"""libkineto copies folder, "/", and 52 bytes of a name into the 107 of a socket's address, unchecked."""

_HEAD = struct.Struct("<Q32s")
_CONTEXT = struct.Struct("<iiq")
_REQUEST = struct.Struct("<iiq")
_FREE = 2
_UNSAFE = "\n\r#=\0"


@dataclass(frozen=True, slots=True)
class Ask:
    """Hold what a process asked: to be registered, or for a configuration."""

    registers: bool
    free: bool


@dataclass(frozen=True, slots=True)
class Order:
    """Hold what kineto shall record: so many of the optimizer's updates from the next one on."""

    path: str
    updates: int
    stacks: bool
    shapes: bool
    memory: bool


def parse_ask(data: bytes) -> Ask | None:
    """Parse a datagram of libkineto; None where it is none."""
    if len(data) < _HEAD.size:
        return None
    size, kind = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if size != len(body):
        return None
    name = kind.split(b"\0", 1)[0]
    if name == b"ctxt" and size == _CONTEXT.size:
        return Ask(registers=True, free=False)
    if name == b"req" and size >= _REQUEST.size:
        bits, count, _ = _REQUEST.unpack_from(body)
        if count >= 0 and size == _REQUEST.size + 4 * count:
            return Ask(registers=False, free=bool(bits & _FREE))
    return None


def write_answer(ask: Ask, order: Order | None) -> bytes:
    """Write the answer to a question; without an order there is nothing to do."""
    if ask.registers:
        return _HEAD.pack(4, b"ctxt") + struct.pack("<i", 1)
    body = write_config(order).encode("utf-8", "surrogateescape") if order is not None else b""
    return _HEAD.pack(len(body), b"req") + body


def write_config(order: Order) -> str:
    """Write the configuration of one profile: one line of warm-up, then whole updates.

    Raises:
        ValueError: where the path cannot be said in it.
    """
    if not is_sayable(order.path):
        raise ValueError(f"kineto cannot be told this path: {order.path!r}")
    lines = (
        f"ACTIVITIES_LOG_FILE={order.path}",
        "PROFILE_START_ITERATION=0",
        "ACTIVITIES_WARMUP_ITERATIONS=1",
        f"ACTIVITIES_ITERATIONS={order.updates}",
        f"PROFILE_REPORT_INPUT_SHAPES={_word(order.shapes)}",
        f"PROFILE_PROFILE_MEMORY={_word(order.memory)}",
        f"PROFILE_WITH_STACK={_word(order.stacks)}",
        "PROFILE_WITH_FLOPS=false",
        "PROFILE_WITH_MODULES=false",
    )
    return "\n".join(lines) + "\n"


def is_sayable(path: str) -> bool:
    """Tell whether a path fits into a line of kineto's configuration."""
    return path.startswith("/") and path == path.strip() and not any(sign in path for sign in _UNSAFE)


def _word(on: bool) -> str:
    return "true" if on else "false"
