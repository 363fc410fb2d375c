"""Put the hook into one running process, or take it out, and read back that it is so."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TypeVar, Union

from tpmon import __version__
from tpmon.foreign_file import Owner
from tpmon.inject.folder import PrivateFolder
from tpmon.inject.layout import find_queue, find_state
from tpmon.inject.memory import TargetMemory, read_mappings
from tpmon.inject.payload import make_payload, make_script
from tpmon.inject.python import Python, read_python
from tpmon.inject.refusal import RefusalReason, RefusedError
from tpmon.inject.remote_script import RemoteScript
from tpmon.inject.request import PendingCall, ignore
from tpmon.inject.target import check_descriptors, check_target
from tpmon.model.frozen import dataclass
from tpmon.model.hook import HookState
from tpmon.model.known import is_known
from tpmon.model.process import Identity
from tpmon.model.results.late import LatePlan, LateResult, LateState, LateWay
from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.procread import read_status
from tpmon.probe.hooked.page import NO_HOOK, StepReader

DEADLINE_S = 20.0
_LOOK_S = 0.002
_POKE_S = 0.05
_AGAIN_S = 0.05
_SETTLED_S = 0.05
"""What is so for longer is not just being changed: a queue in use, a list that leads nowhere."""
_MOVING = (RefusalReason.QUEUE, RefusalReason.OFFSETS)
_LOST_S = 1.0
"""Who took a request and has not begun for so long lost it.

3.14 opens the script by ``__import__`` of the frame that runs, and the constructor of a namedtuple has none.
"""
_MOST_LOST = 3
"""So often it is asked: each time 3.14 says on the program's standard error that it cannot open it."""
_BUSY, _LOST = "busy", "lost"
_TOLD_S = 2.0
_SCRIPTED = (3, 14)
"""From here on Python takes scripts itself (PEP 768)."""

IN_C = "its main thread is in a call in C: it will run when the call returns"

_DETAIL_CHARS = 200
_GRACE_S = 5.0
"""How long the answer to a request that was taken may take beyond the deadline."""

Request = Union[PendingCall, RemoteScript]
Answer = TypeVar("Answer")


_WORDS = {one.value: one for one in LateState}


@dataclass(frozen=True, slots=True)
class LateTarget:
    """Hold what was found of a process that may get the hook."""

    process: Identity
    owner: Owner
    python: Python

    def plan(self) -> LatePlan:
        """Return what a person is told of it."""
        way = LateWay.SCRIPT if self.python.minor >= _SCRIPTED else LateWay.PENDING_CALL
        return LatePlan(self.process.pid, ".".join(map(str, self.python.version)), way)


class LateHook:
    """Lead one request to one process from its checks to the answer, and undo what is not taken."""

    def __init__(
        self,
        process: Identity,
        *,
        deadline_s: float = DEADLINE_S,
        tell: Callable[[str], None] = ignore,
        on_write: Callable[[str], None] = ignore,
    ) -> None:
        """Touch nothing; ``on_write`` is told each write into the target once it is done."""
        self.process, self._deadline_s, self._tell, self._on_write = process, deadline_s, tell, on_write

    def check(self, *, installs: bool = True) -> LateTarget:
        """Look at the process without writing; RefusedError for what is not known to be safe."""
        owner = check_target(self.process)
        if installs:
            check_descriptors(self.process.pid)
        memory = TargetMemory(self.process.pid)
        python = read_python(memory, read_mappings(self.process.pid))
        self._look(memory, python)
        return LateTarget(self.process, owner, python)

    def install(self) -> LateResult:
        """Put the hook in; RefusedError where it is not in afterwards."""
        return self._ask("install")

    def remove(self) -> LateResult:
        """Take the hook out; RefusedError where it is not out afterwards."""
        return self._ask("remove")

    def is_there(self) -> bool:
        """Tell whether a hook counts in the process already, or waits for torch in it."""
        reader = StepReader()
        try:
            found = reader.read_steps([self.process]).get(self.process, NO_HOOK)
        finally:
            reader.close()
        return is_known(found) and found.state is not HookState.UNINSTALLED

    def _open(self, memory: TargetMemory, python: Python) -> Request:
        if python.minor >= _SCRIPTED:
            return RemoteScript(memory, python, read_status(memory.pid).ns_pids[-1], self._on_write)
        return PendingCall(
            memory, python, find_queue(memory, python, find_state(memory, python)), self._on_write
        )

    def _look(self, memory: TargetMemory, python: Python) -> tuple[Request, bool]:
        """Return the request, checked, and whether its place is free.

        A queue in use is looked at again for a moment: the call before this one has answered, and the main
        thread may be looking for the next, with the lock in its hand and no CPU to go on. So are offsets: the
        list of threads is read while threads come and go.
        """
        began = time.monotonic()
        while True:
            late = time.monotonic() - began > _SETTLED_S
            try:
                request = self._open(memory, python)
                return request, request.check()
            except RefusedError as error:
                if late or error.reason not in _MOVING:
                    raise
            time.sleep(_LOOK_S)

    def _ask(self, verb: str) -> LateResult:
        target = self.check(installs=verb == "install")
        memory = TargetMemory(target.process.pid)
        payload = make_payload(target.process.pid, target.python.minor, target.owner)
        place = PrivateFolder(target.process.pid, target.owner, payload.data)
        try:
            script = make_script(place.path, verb, time.time_ns(), __version__, payload.mark)
            place.write("run.py", script)
            place.open_up()
            began = time.monotonic()
            tries = lost = 0
            while True:
                tries += 1
                try:
                    word, detail = self._ask_once(memory, target.python, place, began)
                except RefusedError as error:
                    if tries > 1 and error.reason is RefusalReason.BLOCKED:
                        raise RefusedError(RefusalReason.BUSY) from error  # it answered before
                    raise
                if word not in (_BUSY, _LOST):
                    state = _WORDS.get(word)
                    if state is None:
                        raise RefusedError(RefusalReason.FAILED, admit_text(detail or word, _DETAIL_CHARS))
                    return LateResult(target.process.pid, state, (time.monotonic() - began) * 1e3, tries)
                lost += word == _LOST
                if lost >= _MOST_LOST:
                    raise RefusedError(RefusalReason.NOT_RUN)
                if time.monotonic() - began > self._deadline_s:
                    raise RefusedError(RefusalReason.BUSY if word == _BUSY else RefusalReason.NOT_RUN)
                time.sleep(_AGAIN_S)
        finally:
            place.remove()

    def _ask_once(
        self, memory: TargetMemory, python: Python, place: PrivateFolder, began: float
    ) -> tuple[str, str]:
        check_target(self.process)
        request, free = self._look(memory, python)
        if not free:
            request.take_back()
            self._await(request, lambda: True if request.is_taken() else None, began)
        place.forget_answer()
        request.place(f"{place.path}/run.py")
        taken_s: float | None = None

        def read_answer() -> tuple[str, str] | None:
            nonlocal taken_s
            answer = place.read_answer()
            if answer is None and request.is_taken() and not place.has_begun():
                taken_s = taken_s or time.monotonic()
                return (_LOST, "") if time.monotonic() - taken_s > _LOST_S else None
            return answer

        answer = self._await(request, read_answer, began)
        request.clean()
        return answer

    def _await(self, request: Request, read: Callable[[], Answer | None], began: float) -> Answer:
        """Wait for what ``read`` returns; take the request back at the deadline, and when this is ended."""
        placed = poked = time.monotonic()
        told = False
        try:
            while (found := read()) is None:
                now = time.monotonic()
                if now - began > self._deadline_s and not request.is_taken():
                    break
                if now - began > self._deadline_s + _GRACE_S:
                    request.clean()
                    raise RefusedError(RefusalReason.SILENT)
                if now - poked > _POKE_S:
                    poked = now
                    request.poke()
                if now - placed > _TOLD_S and not told and not request.is_taken():
                    told = True
                    self._tell(IN_C)
                time.sleep(_LOOK_S)
            else:
                return found
        except BaseException:
            request.take_back()
            raise
        if request.take_back():
            raise RefusedError(RefusalReason.BLOCKED)
        return self._await(request, read, time.monotonic() - self._deadline_s)  # it was taken just now


def install_everywhere(hooks: Sequence[LateHook]) -> tuple[LateResult, ...]:
    """Put the hook into each process, or into none: where one refuses, it is taken out of those before."""
    done: list[LateHook] = []
    results = []
    try:
        for one in hooks:
            results.append(one.install())
            if results[-1].state is LateState.INSTALLED:
                done.append(one)
    except BaseException:
        for one in done:
            with contextlib.suppress(RefusedError):
                one.remove()
        raise
    return tuple(results)
