"""Speak as an agent does, or as none should: ``odd_agent.py MODE --node NAME``."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count

from tests.fleet.nodes import look_at_pair, make_rank_summary, make_summary, make_verdict
from tests.frames import later, make_frame
from tpmon.fleet.agent import make_hello
from tpmon.fleet.line import split_message
from tpmon.fleet.messages import VerbName, encode_message, parse_verb
from tpmon.model.known import Missing
from tpmon.model.results.fleet import AgentStatus, NodeDump, NodeSample, NodeState
from tpmon.model.verdict import Kind

mode, node = sys.argv[1], sys.argv[-1]
if mode == "crowd":
    mode = ("live", "babbles", "wide", "deep", "lies", "endless", "hostile")[int(node[1:])]
numbers = count(1)
FRAME = make_frame(verdict=make_verdict(Kind.BALANCED))


def send_all(message: bytes, name: str = node) -> None:
    while True:
        for line in split_message(name, next(numbers), message):
            os.write(1, line)


def send(message: object) -> None:
    for line in split_message(node, next(numbers), encode_message(message)):
        os.write(1, line)


def obey() -> None:
    """Do what is asked: whole Frames while they are wanted, looks of its rank, which stands in a lock on n1."""
    rank, full, rest, end_s = int(node[1:]), False, b"", time.monotonic() + 60.0
    looks = look_at_pair()[f"n{rank + 1}"]
    send(make_verdict(Kind.BALANCED))
    while time.monotonic() < end_s:
        while select.select([0], [], [], 0.1)[0]:
            data = os.read(0, 4096)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for verb in filter(None, (parse_verb(line, node) for line in lines)):
                full = verb.count > 0 if verb.name is VerbName.FULL else full
                if verb.name in (VerbName.DUMP, VerbName.ROUNDS):
                    denied = mode == "shy"
                    send(NodeDump(verb.request, Missing("may not be read") if denied else looks))
                elif verb.name is VerbName.SAMPLE:
                    send(NodeSample(verb.request, Missing(f"nothing in {verb.seconds:g} s")))
        send(make_summary(make_rank_summary(rank)))
        if full:
            second = later(FRAME, 60.0 - (end_s - time.monotonic()))
            send(replace(second, taken_ns=time.monotonic_ns(), events=()))


def speak(seconds: float = 60.0) -> None:
    """Tell of a rank, twice a second."""
    rank = int(node[1:])
    send(make_verdict(Kind.BALANCED))
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        send(make_summary(make_rank_summary(rank)))
        time.sleep(0.5)


match mode:
    case "live":
        send(make_hello())
        speak()
    case "obeys" | "shy":
        send(make_hello())
        obey()
    case "gushes":
        send(make_hello())
        send_all(encode_message(FRAME))
    case "older":
        send(replace(make_hello(), version="0.0.1"))
        speak()
    case "ahead":
        year = timedelta(days=365)
        send(replace(make_hello(), clock=datetime.now().astimezone() + year))
        for line in sys.stdin.buffer:
            if (verb := parse_verb(line.rstrip(), node)) is not None and verb.request:
                now = datetime.now().astimezone() + year
                send(replace(make_hello(), clock=now, ping=verb.request, pinged=now))
                break
        speak()
    case "prompts":
        os.write(1, b"quota> ")  # before its first line, which is lost so
        send(make_hello())
        send(make_summary(make_rank_summary(int(node[1:]))))
        for line in sys.stdin.buffer:
            if (verb := parse_verb(line.rstrip(), node)) is not None and verb.request:
                send(replace(make_hello(), ping=verb.request, pinged=datetime.now().astimezone()))
                break
        speak()
    case "jobless":
        send(make_hello())
        while True:
            send(AgentStatus(NodeState.NO_JOB, "this user runs no training job on this machine"))
            time.sleep(0.5)
    case "denied":
        os.write(2, b"Welcome to the cluster\nme@n1: Permission denied (publickey).\n")
        sys.exit(255)
    case "dies":
        send(make_hello())
        speak(0.6)
        os.kill(os.getpid(), signal.SIGKILL)
    case "stops":
        send(make_hello())
        speak(0.6)
        os.kill(os.getpid(), signal.SIGSTOP)
    case "mute":
        time.sleep(60.0)
    case "hostile":
        send(make_hello())
        noise = os.urandom(1 << 16)
        while True:
            os.write(1, b"tpmon/1 \x1b[2J" + noise + b"\n")
    case "endless":
        while True:
            os.write(1, b"y" * (1 << 16))
    case "babbles":
        send(make_hello())
        junk = b"\x1b[2Jall is well\n" * 5000
        while True:
            os.write(1, junk)
    case "wide":
        send(make_hello())
        send_all(b'dump {"request":1,"dump":[' + b"{}," * 2_500_000 + b"{}]}")
    case "deep":
        send(make_hello())
        send_all(b"summary " + b"[" * 60_000)
    case "lies":
        send(make_hello())
        send_all(encode_message(make_verdict(Kind.HUNG)), "n0")
    case "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        send(make_hello())
        os.close(0)
        speak()
