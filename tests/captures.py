"""Read what a capture wrote, without tpmon's own parser: marks, order and nesting of its events."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.traces import TraceBuilder
from tpmon.capture.files import find_block, to_conditions
from tpmon.model.known import Known, Missing
from tpmon.model.results.capture import Conditions

Event = dict[str, Any]

ROUNDING_US = 0.0021
"""Begin and duration are written in thousandths of a microsecond, each rounded on its own."""

MARK = "ProfilerStep#"


@dataclass(frozen=True)
class Told:
    """Hold what a trace says: numbers of its step marks, optimizer steps, names, and what is wrong in it."""

    marks: tuple[int, ...]
    optimizer: int
    names: Counter[str]
    conditions: dict[str, Any]
    wrong: tuple[str, ...]


def read_told(path: str | Path) -> Told:
    with gzip.open(path) if str(path).endswith(".gz") else open(path, "rb") as file:
        whole = json.load(file)
    events = [one for one in whole["traceEvents"] if one.get("ph") == "X"]
    host = [
        one for one in events if one.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
    ]
    # A range is entered and left within calls of Python, which end after that: the two nest each in itself.
    calls = [one for one in host if one.get("cat") == "python_function"]
    others = [one for one in host if one.get("cat") != "python_function"]
    marks = sorted((one for one in host if one["name"].startswith(MARK)), key=lambda one: one["ts"])
    told = whole.get("tpmon", {})
    return Told(
        marks=tuple(int(one["name"][len(MARK) :]) for one in marks),
        optimizer=sum(one["name"].startswith("Optimizer.step") for one in host),
        names=Counter(one["name"] for one in host),
        conditions=json.loads(told) if isinstance(told, str) else told,
        wrong=(*judge_order(marks), *judge_nesting(others), *judge_nesting(calls), *judge_pairs(whole["traceEvents"])),
    )


def judge_order(marks: Sequence[Event]) -> list[str]:
    """Say where the marks of steps are not consecutive, or one begins before the end of the one before."""
    found = []
    for one, following in pairwise(marks):
        if int(following["name"][len(MARK) :]) != int(one["name"][len(MARK) :]) + 1:
            found.append(f"{following['name']} follows {one['name']}")
        if following["ts"] < one["ts"] + one["dur"] - ROUNDING_US:
            found.append(f"{following['name']} begins before the end of {one['name']}")
    return found


def judge_nesting(host: Sequence[Event]) -> list[str]:
    """Say which events of a thread reach beyond the one that they began in, or end before they begin."""
    found = [f"{one['name']} lasts {one['dur']}" for one in host if one["dur"] < 0]
    threads: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
    for one in host:
        threads[one["pid"], one["tid"]].append(one)
    for events in threads.values():
        events.sort(key=lambda one: (one["ts"], -one["dur"]))
        open_: list[float] = []
        for one in events:
            end = one["ts"] + one["dur"]
            while open_ and open_[-1] <= one["ts"] + ROUNDING_US:
                open_.pop()
            if open_ and end > open_[-1] + ROUNDING_US:
                found.append(f"{one['name']} ends {end - open_[-1]:.3f} us after what it is in")
            open_.append(end)
    return found


def judge_pairs(events: Sequence[Event]) -> list[str]:
    """Say which threads have more beginnings than ends, or the other way round."""
    depth: Counter[tuple[Any, Any]] = Counter()
    for one in events:
        depth[one.get("pid"), one.get("tid")] += {"B": 1, "E": -1}.get(str(one.get("ph")), 0)
    return [f"thread {where}: {many} unpaired" for where, many in depth.items() if many]


def parse_conditions(head: bytes, tail: bytes) -> Known[Conditions]:
    block = find_block(head) or find_block(tail)
    return Missing("the trace does not say it") if block is None else to_conditions(block.told)


def make_updates(updates: int) -> TraceBuilder:
    """Make a trace of kineto's in which an update ends each 100 us."""
    trace = TraceBuilder(base_us=0).op("aten::mm", 5, 10)
    for at in range(updates):
        trace.add("user_annotation", "Optimizer.step#SGD.step", 100 * at + 80, 20)
    return trace
