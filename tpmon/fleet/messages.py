"""What goes over the wire: messages of an agent, a word and JSON each, and verbs of the head, words. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Union

from tpmon.model.codec import CodecError, encode_fast, from_plain, parse_plain
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable, is_known
from tpmon.model.results.fleet import AgentStatus, Hello, NodeDump, NodeSample, NodeSummary
from tpmon.model.text.redaction import clean_value
from tpmon.model.units import clean_text
from tpmon.model.verdict import Finding

Message = Union[Hello, AgentStatus, NodeSummary, Finding, Frame, NodeDump, NodeSample]
KINDS: MappingProxyType[str, type[Any]] = MappingProxyType(
    {
        "hello": Hello,
        "status": AgentStatus,
        "summary": NodeSummary,
        "verdict": Finding,
        "frame": Frame,
        "dump": NodeDump,
        "sample": NodeSample,
    }
)
_WORDS = {kind: word.encode() for word, kind in KINDS.items()}
_CLEAN = re.compile(rb"[ !#-\[\]-~\"]{0,2000}")
"""A short text without control characters, and without a backslash, which could stand for one."""
_TRY_LINES = 8
_TRY_CHARS = 400


def encode_message(message: Message) -> bytes:
    """Encode a message: its kind, a space, and its JSON."""
    return b"%s %s" % (_WORDS[type(message)], encode_fast(message))


def decode_message(data: bytes) -> Message:
    """Decode a message of an agent, control characters replaced and texts cut; CodecError for any other."""
    word, _, body = data.partition(b" ")
    kind = KINDS.get(word.decode("ascii", "replace"))
    if kind is None:
        raise CodecError(f"a message of an unknown kind: {clean_text(word.decode('ascii', 'replace'), 20)}")
    message: Message = from_plain(kind, parse_plain(body))
    if _CLEAN.fullmatch(body):
        return message  # a second of a node is read a thousand times a second: cleaning takes most of it
    cleaned = clean_value(message)
    if isinstance(message, Finding) and isinstance(cleaned, Finding) and is_known(message.try_):
        # Of commands to paste each keeps its line.
        return replace(cleaned, try_=_clean_lines(message.try_), try_code=_clean_lines(message.try_code))
    return cleaned


def _clean_lines(text: Applicable[str]) -> Applicable[str]:
    if not is_known(text):
        return text
    return "\n".join(clean_text(line, _TRY_CHARS) for line in text.split("\n")[:_TRY_LINES])


class VerbName(str, Enum):
    """Name what the head may ask of an agent."""

    PING = "ping"
    FULL = "full"
    """Whole Frames from now on, or, with 0, no more of them."""
    DUMP = "dump"
    ROUNDS = "rounds"
    SAMPLE = "sample"
    BYE = "bye"


@dataclass(frozen=True, slots=True)
class Verb:
    """Hold one request to an agent: ``request`` is its number, the other two are its arguments."""

    name: VerbName
    request: int = 0
    count: int = 1
    seconds: float = 0.0


ALL = "*"
"""Stands for every node: srun gives what it reads to all tasks."""
VERB_BYTES = 200
MOST_ROUNDS = 10
MOST_SECONDS = 60.0


def write_verb(verb: Verb, node: str = ALL) -> bytes:
    """Write a request to one node, or to all."""
    return f"{node} {verb.name.value} {verb.request} {verb.count} {verb.seconds:g}\n".encode()


def parse_verb(line: bytes, node: str) -> Verb | None:
    """Parse a request; None for one to another node, and for what no head writes."""
    words = line.decode("ascii", "replace").split()
    if len(line) > VERB_BYTES or len(words) != 5 or words[0] not in (ALL, node):
        return None
    try:
        verb = Verb(VerbName(words[1]), int(words[2]), int(words[3]), float(words[4]))
    except ValueError:
        return None
    is_small = 0 <= verb.count <= MOST_ROUNDS and 0 <= verb.seconds <= MOST_SECONDS
    return verb if is_small and 0 <= verb.request < 1 << 31 else None
