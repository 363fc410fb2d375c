"""Watch a fleet as a program does: read the reports of ``tpmon fleet --json`` while something is done to it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.command_line import start
from tests.waiting import wait_until

Report = Mapping[str, Any]


class Watch:
    """Hold a running ``tpmon fleet --json`` and all that it has said."""

    def __init__(self, *words: str, **options: Any) -> None:
        self.head = start("fleet", *words, "--json", start_new_session=True, **options)
        self.reports: list[Report] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.head.stdout:
            self.reports.append(json.loads(line))

    def states(self) -> dict[str, str]:
        """Return the state of each node in the newest report."""
        return {one["node"]: one["state"] for one in self.reports[-1]["nodes"]} if self.reports else {}

    def row(self, node: str) -> Mapping[str, Any]:
        return next(one for one in self.reports[-1]["nodes"] if one["node"] == node)

    def await_states(self, limit_s: float = 60.0, **wanted: str) -> None:
        """Wait until nodes are in these states; others may be in any."""
        assert wait_until(lambda: wanted.items() <= self.states().items(), limit_s, 0.1), self.reports[-1:]

    def await_report(self, holds: Callable[[Report], bool], limit_s: float = 60.0) -> Report:
        """Wait for a report that is as wanted, and return it."""
        found = wait_until(lambda: any(map(holds, self.reports[-1:])), limit_s, 0.1)
        assert found, self.reports[-1:]
        return self.reports[-1]

    def end(self, number: int = signal.SIGTERM) -> None:
        os.killpg(self.head.pid, number)
        self.head.wait(60)
        self._reader.join(10)
        self.head.stdout.close()
        self.head.stderr.close()


@contextmanager
def watching(*words: str, **options: Any) -> Iterator[Watch]:
    """Watch, and end that."""
    watch = Watch(*words, **options)
    try:
        yield watch
    finally:
        if watch.head.poll() is None:
            watch.end()
