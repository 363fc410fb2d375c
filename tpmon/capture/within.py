"""Ask the hook under which conditions its loop runs: what only the process itself can tell."""

from __future__ import annotations

import json
import time
from typing import Any

from tpmon.capture.bus import Bus
from tpmon.capture.ends import Turn, judge_turn
from tpmon.capture.plan import draw_number
from tpmon.hook.bus import wire_capture
from tpmon.model.known import Known, Missing

ANSWERS_S = 3.0
"""So long the end of a step is waited for, at which the hook looks at its mailbox."""

_EVERY_S = 0.02
_NOT_YET = Missing(f"no step ended within {ANSWERS_S:.0f} s, at whose end the hook tells it")
_GONE = Missing("the process ended before its hook told it")
_BUSY = Missing("the hook had another capture to do, and did not tell it")
_OLDER = Missing("the hook of this run does not tell it: it is of an older tpmon")
_NO_ROOM = Missing("the hook told more than there is room for")
_ODD = Missing("what the hook told could not be read")


def ask_conditions(bus: Bus, limit_s: float = ANSWERS_S) -> Known[dict[str, Any]]:
    """Return the conditions by the names that the hook writes into a trace of its own.

    The loop stands still while the hook looks for the model among the objects of Python, the first time:
    20 to 50 ms for each 100,000 of them.
    """
    limit = time.monotonic() + limit_s
    if judge_turn(bus, time.monotonic_ns()) is not Turn.FREE:
        return _BUSY
    number = draw_number()
    words = [0] * wire_capture.REQUEST_WORDS
    words[wire_capture.ASK_NUMBER] = number
    words[wire_capture.ASK_KIND] = wire_capture.KIND_DESCRIBE
    words[wire_capture.ASK_EXPIRES_NS] = time.monotonic_ns() + round(limit_s * 1e9)
    bus.post(wire_capture.Request(tuple(words), "", ""))
    while True:
        answered, answer = bus.read_answer()
        if answered == number:
            return _parse(bus, number) if answer == wire_capture.ANSWER_DONE else _say_why(answer)
        if not bus.is_alive():
            return _GONE
        if time.monotonic() > limit:
            return _NOT_YET
        time.sleep(_EVERY_S)


def _say_why(answer: int) -> Missing:
    return _BUSY if answer == wire_capture.ANSWER_BUSY else _OLDER


def _parse(bus: Bus, number: int) -> Known[dict[str, Any]]:
    text = wire_capture.parse_told(bus.page, number)
    if not text:
        return _NO_ROOM
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return _ODD
    return told if isinstance(told, dict) else _ODD
