"""Sample one thing at a time in a daemon thread, for the key; nobody waits for it.

What was sampled grows in ``state``, so that a screen shows hot functions while it goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.sample import SampleReading, SampleRequest, SampleState
from tpmon.model.text.clean import name_failure
from tpmon.probe.spy.sample import FindMembers, Sampler, choose_members, fix_request

ALREADY = "stacks are being sampled already"
NOBODY = "no process to sample"
OFF = "stacks are off (--no-stacks)"
HELD = "a dump stops processes now: ask again when it is done"
NOTHING_YET = Missing("nothing was sampled yet")

MakeSampler = Callable[[FindMembers, SampleRequest], Sampler]


class SampleService:
    """Own the daemon thread that samples. Every method returns at once."""

    def __init__(
        self,
        members: FindMembers,
        make: MakeSampler = Sampler,
        *,
        enabled: bool = True,
    ) -> None:
        """Sample nothing until ``ask``; ``members`` tells, in any thread, whose stacks there are."""
        self.on_change: Callable[[], None] = lambda: None
        self._members = members
        self._make = make
        self._enabled = enabled
        self._lock = threading.Lock()
        self._state: Applicable[SampleState] = NOT_APPLICABLE
        self._sampler: Sampler | None = None
        self._holds = 0
        self._stopped = False

    @property
    def state(self) -> Applicable[SampleState]:
        """Return how far the newest sampling is; not applicable before the first."""
        with self._lock:
            return self._state

    def ask(self, request: SampleRequest) -> None:
        """Start to sample, or say in ``state`` why not, beside what was sampled before: one at a time."""
        members = self._members() if self._enabled else ()
        fixed = fix_request(members, request)
        sampler: Sampler | None = None
        with self._lock:
            if is_known(self._state) and self._state.running:
                now = self._state
                self._state = SampleState(now.request, now.reading, running=True, refused=ALREADY)
            elif choose_members(members, fixed) and not self._stopped and not self._holds:
                sampler = self._sampler = self._make(lambda: choose_members(self._members(), fixed), request)
                self._state = SampleState(request, NOTHING_YET, running=True, refused="")
            else:
                refused = OFF if not self._enabled else HELD if self._holds else NOBODY
                nothing = SampleState(request, NOTHING_YET, running=False, refused="")
                before = self._state if is_known(self._state) else nothing
                self._state = replace(before, running=False, refused=refused)
        if sampler is not None:
            work = (request, sampler)
            threading.Thread(target=self._run, args=work, name="tpmon-sample-service", daemon=True).start()
        self.on_change()

    def finish(self) -> None:
        """End what runs, and keep what was sampled."""
        with self._lock:
            sampler = self._sampler
        if sampler is not None:
            sampler.finish()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Sample nothing within: a dump that stops a process must not meet a py-spy that reads it."""
        with self._lock:
            self._holds += 1
            sampler = self._sampler
        try:
            with sampler.hold() if sampler is not None else nullcontext():
                yield
        finally:
            with self._lock:
                self._holds -= 1

    def stop(self) -> None:
        """End what runs, with every py-spy of it, for good."""
        with self._lock:
            self._stopped = True
            sampler = self._sampler
        if sampler is not None:
            sampler.stop()

    def _run(self, request: SampleRequest, sampler: Sampler) -> None:
        refused = ""
        reading: Known[SampleReading] = NOTHING_YET
        try:
            reading = sampler.run(
                lambda part: self._tell(SampleState(request, part, running=True, refused=""))
            )
        except Exception as error:  # noqa: BLE001  # shown where the hot functions would be
            refused = f"sampling failed: {name_failure(error)}"
        with self._lock:
            self._sampler = None
            if not is_known(reading) and is_known(self._state):
                reading = self._state.reading
        self._tell(SampleState(request, reading, running=False, refused=refused))

    def _tell(self, state: SampleState) -> None:
        with self._lock:
            self._state = state
        self.on_change()
