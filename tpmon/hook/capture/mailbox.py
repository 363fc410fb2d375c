"""Connect steps and capture: load it with the first request, wake it where no step ends.

The signal is SIGURG, which a process without a handler ignores. The main thread installs the handler with
the pages, unless a handler is not Python's; it calls the one before it, and interrupts no system call. It is
given back with the hook, and in a forked child. Where the program replaces it, the bus says so, and tpmon
sends no more.
"""

from __future__ import annotations

import time
from _thread import allocate_lock, get_ident

from tpmon.hook.bus import wire, wire_capture
from tpmon.hook.bus.headroom import is_set
from tpmon.hook.bus.pages import keep_for_ever
from tpmon.hook.context import describe, is_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from tpmon.hook.capture.capture import Capture
    from tpmon.hook.counters import Counts


_RING_AGAIN_S, _RING_SELDOM_S = 0.1, 5.0
_LOOK_AGAIN_S = 0.5
_ENDS_S = 0.1


class Mailbox:
    """Hold the Capture, once somebody asked for one, and the handler of SIGURG."""

    def __init__(self) -> None:
        self.steps: Any = None
        self.capture: Capture | None = None
        self._before: Any = None
        self._handling = False
        self._timer: Any = None
        self._over: Any = None

    def opened(self, steps: Counts) -> None:
        """Take the signal when the pages are made, if this is the main thread and no C code has it."""
        import signal  # noqa: PLC0415 torch imported both already
        import threading  # noqa: PLC0415

        self.steps = steps
        if self._handling or threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGURG)
        # A handler that is not Python's cannot be called from here; getsignal() misses those installed later.
        if before is None or (not callable(before) and is_set(signal.SIGURG, b"SigCgt:", unknown=True)):
            return
        try:
            signal.signal(signal.SIGURG, self._woken)
        except ValueError:
            return  # a subinterpreter, or a Python embedded in another program: it has no main thread
        self._before = before
        signal.siginterrupt(signal.SIGURG, False)
        self._handling = True
        self.look_at_signal()

    def look_at_signal(self) -> None:
        """Write to the bus whether the signal is ours: the program may have taken it, or given it back."""
        import signal  # noqa: PLC0415
        import threading  # noqa: PLC0415

        pages = self.steps.pages if self.steps is not None else None
        if pages is not None:
            ours = (
                self._handling
                and signal.getsignal(signal.SIGURG) == self._woken
                # Python runs handlers in its main thread, which serves only a loop of its own.
                and self.steps.owner == threading.main_thread().ident
            )
            wire.write_signal(pages.page, ours=ours)

    def between(self) -> None:
        """Do what is due where no step ended for long, and look at the signal."""
        self.look_at_signal()
        if self.capture is not None and self.capture.under_way is not None:
            self.capture.woken()

    def requested(self) -> None:
        """Do what the mailbox asks, at the end of a step."""
        try:
            if not self._describe():
                self._load().at_boundary()
        except Exception as error:
            self._refuse(error)

    def _describe(self) -> bool:
        """Write conditions or counts of the run where those are asked for, and no capture is under way."""
        steps = self.steps
        number, kind = steps.requests[0], steps.requests[1]
        under_way = self.capture is not None and self.capture.under_way is not None
        if kind not in (wire_capture.KIND_DESCRIBE, wire_capture.KIND_COUNTS) or under_way:
            return False
        request = wire_capture.parse_request(steps.pages.mailbox)
        if request is None or request.number != number:
            return False
        from tpmon.hook.capture import conditions  # noqa: PLC0415 only who asks pays for it

        if kind == wire_capture.KIND_COUNTS:
            told = conditions.tell_counts(steps)
        else:
            told = conditions.tell_conditions(steps, wire_capture.TOLD_BYTES)
        wire_capture.write_told(steps.page, number, told)
        steps.reply(number, wire.ANSWER_DONE)
        steps.last_ns = time.monotonic_ns()  # the pause is in no phase
        return True

    def forked(self) -> None:
        """Begin anew in a forked child, where the handler would find no mailbox."""
        self._give_back()
        self._timer = self._over = None  # that thread stayed with the parent
        if self.capture is not None:
            self.capture.forked()

    def leave(self) -> None:
        """Drop the Capture in a forked child without ending it: that is the parent's."""
        keep_for_ever(self.capture)  # freeing it would end the parent's recording
        self.capture = self._timer = self._over = None
        self._handling = False

    def take_back(self) -> None:
        """End what is under way, and give the signal back."""
        if self._handling:
            import threading  # noqa: PLC0415

            if threading.current_thread() is threading.main_thread():
                self._give_back()
        self.look_at_signal()
        if self.capture is not None:
            self.capture.take_back()
        self._ring_no_more()

    def _load(self) -> Capture:
        capture = self.capture
        if capture is None:
            import atexit  # noqa: PLC0415

            from tpmon.hook.capture.capture import Capture  # noqa: PLC0415 only who captures pays for it

            capture = self.capture = Capture(self.steps, self._ring_when_due, self._ring_no_more)
            atexit.register(self._at_exit)
        return capture

    def _wake(self) -> None:
        try:
            self._load().woken()
        except Exception as error:
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        """Refuse the request after an error of ours (tpmon's files may be gone); raise others again."""
        if not is_ours(error):
            raise error
        steps = self.steps
        number = steps.requests[0]
        if number == steps.answered or steps.pages is None:
            return
        told = wire_capture.Progress(
            request=number,
            state=wire_capture.STATE_REFUSED,
            changed_ns=time.monotonic_ns(),
            reason=f"captures are not possible here: {describe(error)}",
        )
        wire_capture.write_progress(steps.pages.page, told)
        steps.reply(number, wire.ANSWER_TAKEN)

    def _at_exit(self) -> None:
        capture = self.capture
        try:
            if capture is not None:
                capture.at_exit()
        except Exception as error:  # Python would print it
            if capture is not None:
                capture.break_off(error, ours=True)  # torch crashes at the end of a program that records

    def _ring_when_due(self) -> bool:
        """Start a thread that wakes this one when its recording must end; False where that cannot be."""
        import signal  # noqa: PLC0415
        import threading  # noqa: PLC0415

        if not self._handling or signal.getsignal(signal.SIGURG) != self._woken:
            return False
        if get_ident() != threading.main_thread().ident:
            return False
        over = self._over = allocate_lock()
        over.acquire()
        timer = threading.Thread(target=self._ring, args=(over,), name="tpmon-timer", daemon=True)
        timer.start()
        self._timer = timer
        return True

    def _ring_no_more(self) -> None:
        """End that thread, and wait up to 0.1 s for it, so that there is one at most."""
        timer, over = self._timer, self._over
        if over is not None and over.locked():
            over.release()
        if timer is not None:
            timer.join(_ENDS_S)
        self._timer = self._over = None  # last: after an interrupt this is called again

    def _ring(self, over: Any) -> None:
        try:
            self._ring_until(over)
        except Exception as error:  # Python would print it
            try:
                if self.capture is not None:
                    self.capture.failure = error  # the thread of the loop ends the recording, and says why
                self._ring_once()
            except Exception:
                return  # the end of a step bounds the recording too

    def _ring_until(self, over: Any) -> None:
        again_s = _RING_AGAIN_S
        # Repeated until it is heard: the first may come while the recording still begins.
        while self._handling and self.capture is not None:
            if self.capture.under_way is None:
                return
            left_s = self.capture.left_s()
            if left_s <= 0 and not self._ring_once():
                return
            # Waits in parts, to see a cancelled request and the memory that it takes.
            if over.acquire(timeout=min(left_s, _LOOK_AGAIN_S) if left_s > 0 else again_s):
                return
            if left_s <= 0:
                again_s = min(2 * again_s, _RING_SELDOM_S)  # it is in one long call

    def _ring_once(self) -> bool:
        """Send the main thread the signal, where that is ours; return whether it was sent."""
        import signal  # noqa: PLC0415
        import threading  # noqa: PLC0415

        main = threading.main_thread().ident
        if not self._handling or main is None or signal.getsignal(signal.SIGURG) != self._woken:
            return False  # the program took it: the end of a step bounds the recording
        try:
            signal.pthread_kill(main, signal.SIGURG)
        except OSError:
            return False  # that thread is gone; an error here would be printed
        return True

    def _give_back(self) -> None:
        if not self._handling:
            return
        import signal  # noqa: PLC0415

        self._handling = False
        if signal.getsignal(signal.SIGURG) == self._woken:
            signal.signal(signal.SIGURG, self._before)

    def _woken(self, number: int, frame: FrameType | None) -> None:
        """Look at the mailbox between two lines of the loop, for requests that are bounded by time."""
        steps = self.steps
        try:
            if self._handling and steps.pages is not None and steps.owner == get_ident():
                self._wake()
        except Exception as error:
            if not steps.fail(error):
                raise
        if callable(self._before):
            self._before(number, frame)
