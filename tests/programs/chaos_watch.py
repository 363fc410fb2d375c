"""Use tpmon as a person does, by its command line, beside a real job."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.command_line import start

Document = dict[str, Any]

TPMON = (sys.executable, "-m", "tpmon")
ROOT = Path(__file__).parents[2]
_ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("TPMON_")},
    "XDG_CONFIG_HOME": "/nonexistent",
}


def start_tpmon(*arguments: object, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    return start(*map(str, arguments), before=before, cwd=ROOT, env=_ENVIRONMENT)


def run_tpmon(*arguments: object, before: Sequence[str] = ()) -> tuple[int, str, str]:
    with start_tpmon(*arguments, before=before) as process:
        output, complaint = process.communicate(timeout=120)
    return process.returncode, output, complaint


ELSEWHERE = re.compile(r"\Atpmon: \d+ of \d+ ranks are on this host: tpmon fleet --hosts a,b watches all\n\Z")


def ask_once(pids: Sequence[int], before: Sequence[str] = ()) -> list[Document]:
    """Return what ``tpmon attach PID --json --once`` says of each PID, all asked at the same time.

    It complains of nothing; of ranks on other hosts it says which command watches all.
    """
    asked = [start_tpmon("attach", pid, "--json", "--once", before=before) for pid in pids]
    answers = []
    for process in asked:
        output, complaint = process.communicate(timeout=120)
        assert (process.returncode, ELSEWHERE.sub("", complaint)) == (0, ""), complaint
        answers.append(json.loads(output))
    return answers


class Watch:
    """Hold a running ``tpmon attach PID --json`` and the Frames that it has written."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._news = threading.Condition()
        self.pid = process.pid
        self.frames: list[Document] = []
        self.came_s: list[float] = []
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            with self._news:
                self.came_s.append(time.monotonic())
                self.frames.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_for(self, holds: Callable[[Document], bool], *, after_ns: int = 0, seconds: float = 90.0) -> Document:
        """Wait for a Frame of which something holds; returns the first, taken after ``after_ns``."""
        deadline = time.monotonic() + seconds
        looked = 0
        with self._news:
            while True:
                for frame in self.frames[looked:]:
                    if frame["taken_ns"] > after_ns and holds(frame):
                        return frame
                looked = len(self.frames)
                assert not self._ended, f"tpmon ended: {self.wait_for_end()}; last: {self.frames[-1:]}"
                left = deadline - time.monotonic()
                assert left > 0, f"not seen within {seconds:g} s; last: {self.frames[-1:]}"
                self._news.wait(left)

    def wait_for_next(self) -> Document:
        """Wait for the next Frame and return it when it has just been written."""
        return self.wait_for(lambda _: True, after_ns=self.frames[-1]["taken_ns"])

    def events(self, kind: str = "process") -> list[str]:
        return [event["text"] for frame in self.frames for event in frame["events"] if event["kind"] == kind]

    def wait_for_end(self) -> tuple[int, str]:
        """Wait until tpmon ends by itself; returns its exit status and complaints."""
        status = self._process.wait(90)
        self._reader.join(10)
        return status, self._process.stderr.read()

    def interrupt(self) -> tuple[int, str]:
        self._process.send_signal(signal.SIGINT)
        return self.wait_for_end()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(10)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def watch(pid: int, *arguments: object, before: Sequence[str] = ()) -> Iterator[Watch]:
    """Attach to a job and read Frames until the end of the block; the first one is there at once."""
    one = Watch(start_tpmon("attach", pid, "--json", *arguments, before=before))
    try:
        one.wait_for(lambda _: True)
        yield one
    finally:
        one.close()


def by_pid(frame: Document) -> dict[int, Document]:
    return {process["pid"]: process for process in frame["processes"]}
