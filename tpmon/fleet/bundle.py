"""The evidence of all nodes for a ticket: the joint verdict, all stacks folded, a whole Frame of each node.

Made in a thread of its own beside a fleet that runs. What a node does not give is named with its reason.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from tpmon.errors import TpmonError
from tpmon.fleet.loop import Fleet
from tpmon.fleet.record import pick_name
from tpmon.fleet.report import write_fleet
from tpmon.judge.dumps.describe import shorten_stack
from tpmon.judge.hang.detection import ANSWER_S
from tpmon.judge.nodes import ROUNDS
from tpmon.model.codec import encode
from tpmon.model.frame import Frame
from tpmon.model.known import Applicable, Known, Missing, is_known
from tpmon.model.results.fleet import FleetReport, FleetStacks, NodeState
from tpmon.model.units import clean_text, count_of, format_seconds
from tpmon.probe.base.worker import read_within
from tpmon.probe.collect.bundle import list_own_versions
from tpmon.report.bundle import (
    Contents,
    FolderSink,
    add_part,
    check_written,
    close_bundle,
    say_result,
    say_verdict,
    write_versions,
)
from tpmon.report.stacks import write_dump
from tpmon.view.fleet.nodes import name_nodes, order_nodes

MOST_FRAMES = 64
"""Nodes of which a whole Frame is kept, the worst first."""
FRAMES_S = 5.0
"""A node that is live sends a whole Frame within a second or two."""
OPEN_S = 10.0
_LOOK_S = 0.1
_NO_STACKS = "not read: --no-stacks or --readonly"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class _Gathering:
    """Gather the stacks of all nodes, and a whole Frame of some, while the fleet runs."""

    def __init__(self, fleet: Fleet, nodes: Sequence[str], hurries: Callable[[], bool]) -> None:
        self.frames: dict[str, Frame] = {}
        self.stacks = FleetStacks(Missing("no answer" if fleet.may_look else _NO_STACKS), ())
        self._fleet = fleet
        self._nodes = nodes
        self._hurries = hurries
        self._looked = threading.Event()

    def run(self) -> None:
        """Ask, and wait in bounded time for what comes."""
        begun_s = time.monotonic()
        for node in self._nodes:
            self._fleet.follow(node, self._take_frame)
        if self._fleet.may_look:
            self._fleet.ask_stacks((), self._take_stacks, rounds=ROUNDS)
        self._wait(begun_s + FRAMES_S, lambda: len(self.frames) == len(self._nodes))
        for node in self._nodes:
            self._fleet.unfollow(node, self._take_frame)
        if self._fleet.may_look:
            self._wait(begun_s + ANSWER_S + FRAMES_S, self._looked.is_set)

    def _wait(self, until_s: float, is_done: Callable[[], bool]) -> None:
        while not (is_done() or self._hurries() or time.monotonic() >= until_s):
            time.sleep(_LOOK_S)

    def _take_frame(self, node: str, frame: Frame) -> None:
        self.frames[node] = frame

    def _take_stacks(self, stacks: FleetStacks) -> None:
        self.stacks = stacks
        self._looked.set()


class FleetBundler:
    """Write the parts of one bundle of all nodes, each for itself."""

    def __init__(
        self, fleet: Fleet, sink: FolderSink, newest: Callable[[], FleetReport], hurries: Callable[[], bool]
    ) -> None:
        """Write nothing until ``run``; ``newest`` returns the report of the last second."""
        self._fleet = fleet
        self._sink = sink
        self._newest = newest
        self._hurries = hurries
        self.contents = Contents()

    def run(self) -> Contents:
        """Write every part; what is written stays, also when the rest fails."""
        begun = datetime.now().astimezone()
        ordered = [one for one in order_nodes(self._newest()) if one.state is NodeState.LIVE]
        nodes = [one.node for one in ordered[:MOST_FRAMES]]
        gathering = _Gathering(self._fleet, nodes, self._hurries)
        gathering.run()
        report = self._newest()
        try:
            self._add("report.txt", "the verdict of all nodes, and each node", partial(write_fleet, report))
            self._add("report.json", "the same", partial(_encode_lines, report))
            self._add_stacks(gathering.stacks)
            self._add_frames(report, gathering.frames)
            versions = "versions of tpmon, Python, torch and driver, here and on the nodes"
            self._add("versions.txt", versions, partial(_list_versions, report, gathering.frames))
        finally:
            self._close(report, begun)
        return self.contents

    def _add_stacks(self, stacks: FleetStacks) -> None:
        dump = stacks.dump
        if isinstance(dump, Missing):
            self.contents.failures.append(("dump.txt", dump.reason))
        else:
            self._add(
                "dump.txt",
                f"all stacks of the nodes, folded, in {ROUNDS} looks",
                partial(write_dump, dump, shorten_stack),
            )
            self._add("dump.json", "the same", partial(_encode_lines, dump))
        self._miss("the stacks", stacks.unread)

    def _add_frames(self, report: FleetReport, frames: dict[str, Frame]) -> None:
        used: set[str] = set()
        missed: list[tuple[str, str]] = []
        for node in order_nodes(report):
            if (frame := frames.get(node.node)) is not None:
                name = f"frame-{pick_name(node.node, used)}.json"
                self._add(name, f"all readings of {clean_text(node.node)}", partial(_encode_lines, frame))
            elif node.state is NodeState.LIVE:
                many = len(frames) >= MOST_FRAMES
                missed.append((node.node, f"only {MOST_FRAMES} nodes" if many else "it sent none in time"))
            else:
                reason = node.reason if is_known(node.reason) else ""
                missed.append((node.node, ": ".join(filter(None, (node.state.value, reason)))))
        self._miss("a Frame", missed)

    def _miss(self, what: str, missed: Sequence[tuple[str, str]]) -> None:
        """Name together the nodes that lack something for one reason."""
        reasons: dict[str, list[str]] = {}
        for node, reason in missed:
            reasons.setdefault(clean_text(reason), []).append(node)
        for reason, names in reasons.items():
            self.contents.failures.append((f"{what} of {name_nodes(tuple(names))}", reason))

    def _add(self, name: str, what: str, write: Callable[[], Sequence[str]]) -> None:
        add_part(self._sink, self.contents, name, what, write)

    def _close(self, report: FleetReport, begun: datetime) -> None:
        took_s = (datetime.now().astimezone() - begun).total_seconds()
        script = clean_text(report.script) if is_known(report.script) else "not known so far"
        head = [
            ("bundle", "evidence of a job on many nodes, made by tpmon fleet for a ticket"),
            ("job", f"{script}, {count_of(len(report.nodes), 'node')}, {count_of(report.ranks, 'rank')}"),
            ("made", f"{begun.isoformat(timespec='seconds')}, over {format_seconds(took_s)}"),
            ("verdict", say_verdict(report.verdict)),
        ]
        close_bundle(self._sink, self.contents, head)


def _encode_lines(value: object) -> list[str]:
    return [encode(value)]


def _list_versions(report: FleetReport, frames: dict[str, Frame]) -> list[str]:
    """Write the versions here, and those of the nodes that have the same together."""
    alike: dict[tuple[tuple[str, Known[str]], ...], list[str]] = {}
    for node in report.nodes:
        if not is_known(node.version):
            continue
        found: list[tuple[str, Known[str]]] = [("tpmon", node.version)]
        if (frame := frames.get(node.node)) is not None:
            driver: Known[str] = (
                frame.driver if isinstance(frame.driver, Missing) else frame.driver.driver_version
            )
            found += [
                ("Python of the job", frame.target.python_version),
                ("torch of the job", frame.target.torch_version),
                ("NVIDIA driver", driver),
            ]
        alike.setdefault(tuple(found), []).append(node.node)
    lines = ["here", *write_versions(list_own_versions())]
    for versions, names in alike.items():
        lines += ["", name_nodes(tuple(names)), *write_versions(versions)]
    return lines


def name_fleet_bundle(script: Applicable[str], now: datetime) -> str:
    """Name a folder after job and time, in the working directory."""
    words = script.split() if is_known(script) else []
    job = _UNSAFE.sub("_", os.path.basename(words[0]))[:60] if words else "job"
    return f"tpmon-fleet-bundle-{job}-{now.strftime('%Y%m%dT%H%M%S')}"


def start_fleet_bundle(
    fleet: Fleet,
    newest: Callable[[], FleetReport],
    told: Callable[[str], None],
    hurries: Callable[[], bool] = lambda: False,
) -> None:
    """Write a bundle of all nodes in a daemon thread, and tell in a line where it is, or why there is none.

    ``newest`` returns the report of the last second. Once it ``hurries``, because the screen is left, it
    waits for no node.
    """

    def work() -> None:
        try:
            name = name_fleet_bundle(newest().script, datetime.now().astimezone())
            sink = read_within(OPEN_S, lambda: FolderSink(name))
            if isinstance(sink, Missing):
                told(f"no bundle: {sink.reason} from the folder for it")
                return
            contents = FleetBundler(fleet, sink, newest, hurries).run()
            check_written(sink.path, contents)
        except TpmonError as error:
            told(f"no bundle: {error.what}")
        except Exception as error:  # noqa: BLE001  # the screen goes on, and shows it
            told(f"the bundle failed: {type(error).__name__}: {error}")
        else:
            told(" ".join(line.strip() for line in say_result(sink.path, contents)))

    threading.Thread(target=work, name="tpmon-fleet-bundle", daemon=True).start()
