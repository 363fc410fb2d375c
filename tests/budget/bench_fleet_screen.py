"""Measure what head and screen of a fleet cost: ``python -m tests.budget.bench_fleet_screen 64 1024``, of nodes each.

One process plays all agents, as srun hands them on: a second of eight ranks and cards from each node, each second.
The cards do something else each second, so that every node is drawn anew.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import replace

import pexpect
import psutil

from tests.fleet.nodes import make_rank_summary, make_summary, make_verdict
from tpmon.commands.nodes.screen import watch_on_screen
from tpmon.fleet.agent import make_hello
from tpmon.fleet.launch import AgentLaunch
from tpmon.fleet.line import split_message
from tpmon.fleet.loop import Fleet
from tpmon.fleet.messages import encode_message
from tpmon.model.verdict import Kind

SETTLE, MEASURED = 8, 12
"""Seconds that are left out, and that are measured."""


def play(nodes: int) -> None:
    """Speak for all nodes until the head is gone."""
    ranks = [make_rank_summary(rank, own_ms=123.4567, step_ms=456.789, wait_ratio=0.1234) for rank in range(8)]
    plain = make_summary(*ranks, step_rate_hz=1.2345, world_size=8 * nodes)
    told = [
        encode_message(replace(plain, gpu_pct=tuple(99.0 - 8 * way - card / 10 for card in range(8))))
        for way in range(8)
    ]
    first = [encode_message(one) for one in (make_hello(), make_verdict(Kind.BALANCED))]
    number = 0
    while True:
        due_s = time.monotonic() + 1.0
        number += 1
        for node in range(nodes):
            message = first[number - 1] if number <= len(first) else told[(node + number) % len(told)]
            for line in split_message(f"n{node}", number, message):
                os.write(1, line)
        time.sleep(max(0.0, due_s - time.monotonic()))


def make_fleet(nodes: int) -> Fleet:
    """Return a fleet of so many nodes that one process plays."""
    player = (sys.executable, "-m", "tests.budget.bench_fleet_screen", "--play", str(nodes))
    return Fleet([AgentLaunch(player, tuple(f"n{node}" for node in range(nodes)))])


def draw(nodes: int) -> None:
    """Draw the screen of so many nodes on this terminal until it is left."""
    watch_on_screen(make_fleet(nodes), ascii_only=False, no_stacks=False)


def measure_screen(nodes: int, columns: int = 120, rows: int = 40) -> str:
    """Draw so many nodes for some seconds on a terminal of that size, and say what head and screen cost together."""
    words = ["-m", "tests.budget.bench_fleet_screen", "--draw", str(nodes)]
    child = pexpect.spawn(
        sys.executable, words, env=os.environ | {"TERM": "xterm-256color"}, dimensions=(rows, columns)
    )
    process, begun_s, marks, sent = psutil.Process(child.pid), time.monotonic(), list[tuple[float, float, int]](), 0
    for due_s in (SETTLE, SETTLE + MEASURED):
        while time.monotonic() - begun_s < due_s:
            with suppress(pexpect.TIMEOUT):
                sent += len(child.read_nonblocking(1 << 16, timeout=0.1))
        used = process.cpu_times()
        marks.append((time.monotonic(), used.user + used.system, sent))
    child.send("q")
    child.expect(pexpect.EOF)
    child.close()
    (from_s, before_s, before), (to_s, after_s, after) = marks
    span_s = to_s - from_s
    cost, rate = 1000 * (after_s - before_s) / span_s, (after - before) / span_s / 1000
    return f"{nodes} nodes: head and screen of {columns}x{rows} {cost:.1f} ms of CPU a second, {rate:.1f} KB/s"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--play"]:
        play(int(sys.argv[2]))
    elif sys.argv[1:2] == ["--draw"]:
        draw(int(sys.argv[2]))
    else:
        for given in sys.argv[1:] or ["64", "1024"]:
            print(measure_screen(int(given)), flush=True)
