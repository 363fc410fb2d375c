"""Read the steps that the hook counts inside training processes, from a page that its owner alone wrote.

A page is mapped once and then read without a system call; a process without one is checked ever more rarely.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from operator import sub
from typing import Any

from tpmon.foreign_file import Owner, open_foreign, read_owner
from tpmon.hook.bus import wire
from tpmon.model.frozen import dataclass
from tpmon.model.hook import (
    HookPatch,
    HookState,
    LoopNow,
    LoopPhase,
    NamedTime,
    PhaseTimes,
    PutIn,
    StepCounts,
    StepReading,
    StepRule,
    StepSpan,
)
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, Why
from tpmon.model.process import Identity
from tpmon.model.results.doctor import say_refusal
from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.procread import PROC, each_process, read_or, read_stat, read_status, read_text
from tpmon.probe.hooked.settings import parse_device, parse_settings

NO_HOOK = Missing("no hook in this process", Why.ABSENT)
NO_OPTIMIZER = Missing("no optimizer's step was seen: all were skipped, or the hook does not see them")
NO_SCALER = Missing("the hook watches no GradScaler in this torch")

_MOST_RECORDS = 128  # new ones whose detail is read, 3 us each; totals need only the newest

_MOST_DESCRIPTORS = 65_536
_MOST_PAGES = 64  # a fork has its parents' too; a process with thousands of that name hides only its own
# include/uapi/linux/fcntl.h; Pythons built on an old system (conda) do not name them.
_GET_SEALS = 1034
_SEAL_SHRINK = 0x2

_LINK = f"/memfd:{wire.TELEMETRY_NAME} (deleted)"

_FIRST_WAIT_S = 2.0
_LONGEST_WAIT_S = 4.0  # listing descriptors takes 20 to 300 us, and t puts a hook in for some seconds

_CHECK_S = 10.0  # between checks of a page: after an exec the new program's hook has one of the same number

_RULES = {
    wire.RULE_NONE: StepRule.NONE,
    wire.RULE_DATA_AFTER_UPDATE: StepRule.BATCH_AFTER_UPDATE,
    wire.RULE_UPDATE: StepRule.UPDATE,
    wire.RULE_BACKWARD: StepRule.BATCH_AFTER_BACKWARD,
    wire.RULE_BATCH: StepRule.BATCH,
    wire.RULE_CALL: StepRule.CALL,
}
_STATES = {
    wire.STATE_RUNNING: HookState.RUNNING,
    wire.STATE_DISABLED: HookState.DISABLED,
    wire.STATE_UNINSTALLED: HookState.UNINSTALLED,
}
_PATCHES = (
    (wire.PATCH_DATA, HookPatch.DATA),
    (wire.PATCH_BACKWARD, HookPatch.BACKWARD),
    (wire.PATCH_OPTIMIZER, HookPatch.OPTIMIZER),
    (wire.PATCH_SCALER, HookPatch.SCALER),
)
_PHASE_AFTER = (
    (wire.LIVE_DATA_BEGAN, LoopPhase.DATA),
    (wire.LIVE_DATA_ENDED, LoopPhase.FORWARD),
    (wire.LIVE_BACKWARD_BEGAN, LoopPhase.BACKWARD),
    (wire.LIVE_BACKWARD_ENDED, LoopPhase.OPTIMIZER),
    (wire.LIVE_OPTIMIZER, LoopPhase.OTHER),
    (wire.LIVE_LEFT, LoopPhase.OTHER),
)
_NO_TIME = PhaseTimes(0, 0, 0, 0, 0)
_NOTHING = (0,) * wire.RECORD_WORDS


@dataclass(frozen=True, slots=True)
class PageSeen:
    """Hold the count of a page's records, and the last one at the end of a step, if known."""

    count: int = 0
    ended: tuple[int, ...] | None = None


@dataclass(slots=True)
class _OpenPage:
    """Hold the mapped page of one process, and what was read of its records."""

    mapped: mmap.mmap
    view: memoryview
    link: str
    stat: os.stat_result
    header: wire.Header
    checked_at: float
    seen: PageSeen = PageSeen()
    last_event_ns: int = 0

    def close(self) -> None:
        """Unmap the page."""
        self.view.release()
        self.mapped.close()


@dataclass(slots=True)
class _Absent:
    """Remember that a process has no readable page, why, and when to look again."""

    found: Missing
    wait_s: float
    again_at: float


class StepReader:
    """Read the hooks of a job's processes; keep a mapping for each page, release unneeded ones."""

    def __init__(self) -> None:
        self._open: dict[Identity, _OpenPage] = {}
        self._absent: dict[Identity, _Absent] = {}

    def read_steps(self, processes: Iterable[Identity]) -> dict[Identity, Known[StepReading]]:
        """Read the hook of each process, mostly ranks; Missing where there is none."""
        asked = list(processes)
        now = time.monotonic()
        self._forget_others(set(asked))
        return each_process(asked, lambda process: self._read_one(process, now))

    def close(self) -> None:
        """Release all mappings."""
        self._forget_others(set())

    def _forget_others(self, asked: set[Identity]) -> None:
        for process in [one for one in self._open if one not in asked]:
            self._open.pop(process).close()
        for process in [one for one in self._absent if one not in asked]:
            del self._absent[process]

    def _read_one(self, process: Identity, now: float) -> Known[StepReading]:
        page = self._open.get(process)
        if page is None:
            absent = self._absent.get(process)
            if absent is not None and now < absent.again_at:
                return absent.found
            found = self._find(process, now)
            if isinstance(found, Missing):
                wait_s = min(absent.wait_s * 2, _LONGEST_WAIT_S) if absent else _FIRST_WAIT_S
                self._absent[process] = _Absent(found, wait_s, now + wait_s)
                return found
            page = self._open[process] = found
            self._absent.pop(process, None)
        reading, page.seen = parse_reading(process, page.header, page.view, page.seen, time.monotonic_ns())
        if reading.state is HookState.UNINSTALLED or self._is_gone(page, now):
            self._open.pop(process).close()
        return reading

    def _is_gone(self, page: _OpenPage, now: float) -> bool:
        """Tell whether the process gave up its page: another or none is there, and this one is quiet."""
        if now - page.checked_at < _CHECK_S:
            return False
        page.checked_at = now
        event_ns = max(wire.parse_live(page.view)[: wire.LIVE_MARKS])
        quiet = event_ns == page.last_event_ns
        page.last_event_ns = event_ns
        return read_or(quiet, lambda: quiet and not os.path.samestat(os.stat(page.link), page.stat))

    def _find(self, process: Identity, now: float) -> _OpenPage | Missing:
        """Map the page that belongs to this process and not to a parent."""
        pid, reason = process.pid, ""
        try:
            links = _list_links(f"{PROC}/{pid}/fd")
            inner_pid, owner = read_status(pid).ns_pids[-1], read_owner(pid)
        except PermissionError as error:
            return Missing(f"descriptors: {say_refusal(error, 'fd')}")
        except (OSError, KeyError, ValueError):
            return Missing("the process is gone")
        for link in links:
            try:
                page = _map(link, owner, now)
            except wire.OtherLayoutError as error:
                reason = f"{error}: the hook is of another version of tpmon"
                continue
            except PermissionError:
                reason = "not permitted to read the hook's page"
                continue
            except (OSError, ValueError):
                continue  # closed meanwhile, not written yet, or a foreign memfd of that name
            if page.header.pid == inner_pid and page.header.start_ticks == process.start_ticks:
                return self._confirm(process, page)
            page.close()
        word = "" if reason else _read_word(process.pid)
        reason = f"the hook turned itself off: {word}" if word else reason
        return Missing(reason) if reason else NO_HOOK

    def _confirm(self, process: Identity, page: _OpenPage) -> _OpenPage | Missing:
        """Make sure that the PID was not reused while its descriptors were read."""
        with suppress(OSError):
            if read_stat(process.pid).start_ticks == process.start_ticks:
                return page
        page.close()
        return Missing("the process is gone")


def explain_absence(pid: int, proc: str = PROC) -> str:
    """Say why a process has no page, by the hook's word or a page mapped without descriptor; "" else."""
    mapped = _read_mapped(pid, proc)
    if any(at == f"{wire.WORD_ADDRESS:x}" for at, _ in mapped):
        return f"its hook turned itself off: {_read_word(pid, proc) or 'why may not be read (ptrace_scope)'}"
    if not any(path == [_LINK] for _, path in mapped) or read_or([], lambda: _list_links(f"{proc}/{pid}/fd")):
        return ""  # none, or one that is being made now
    if any(path == [_LINK] for _, path in _read_mapped(pid, proc)):  # else it was just taken away
        return "the program closed the descriptors of its hook, by which alone tpmon finds it"
    return ""


def _read_mapped(pid: int, proc: str) -> list[tuple[str, list[str]]]:
    """Return where each mapping of a process begins, and its file, if any."""
    lines = read_text(f"{proc}/{pid}/maps").splitlines()
    return [(line.partition("-")[0], line.split(maxsplit=5)[5:]) for line in lines]


def _read_word(pid: int, proc: str = PROC) -> str:
    """Return what a hook left where it could make no page; read from its own page alone, without a stop."""
    data = b""
    with suppress(OSError), open(f"{proc}/{pid}/mem", "rb", buffering=0) as file:  # none, or unreadable
        data = os.pread(file.fileno(), wire.WORD_BYTES, wire.WORD_ADDRESS)
    magic, text = data[: len(wire.WORD_MAGIC)], data[len(wire.WORD_MAGIC) :].rstrip(b"\0")
    return admit_text(text.decode("utf-8", "replace"), 240) if magic == wire.WORD_MAGIC else ""


def _list_links(folder: str) -> list[str]:
    """List the descriptors that may be a page; ours lie high, so the highest come first."""
    names = sorted((int(name) for name in os.listdir(folder)), reverse=True)[:_MOST_DESCRIPTORS]
    targets = each_process((f"{folder}/{name}" for name in names), os.readlink)
    return [path for path, target in targets.items() if target == _LINK][:_MOST_PAGES]


def _map(link: str, owner: Owner, now: float) -> _OpenPage:
    """Map one page for reading; OSError when it cannot be opened, ValueError for a foreign page or layout."""
    descriptor = open_foreign(link, owner, follows=True)
    try:
        # A page that could shrink would end tpmon with SIGBUS.
        told = os.fstat(descriptor)
        if told.st_size < wire.TELEMETRY_BYTES or not _is_size_sealed(descriptor):
            raise wire.NotABusError("not sealed")
        mapped = mmap.mmap(descriptor, wire.TELEMETRY_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
    finally:
        os.close(descriptor)
    view = memoryview(mapped)
    try:
        return _OpenPage(mapped, view, link, told, wire.parse_header(view), now)
    except ValueError:
        view.release()
        mapped.close()
        raise


def _is_size_sealed(descriptor: int) -> bool:
    import fcntl  # noqa: PLC0415 only where a hook was found

    return bool(fcntl.fcntl(descriptor, _GET_SEALS) & _SEAL_SHRINK)


def parse_reading(
    process: Identity, header: wire.Header, page: memoryview, seen: PageSeen, taken_ns: int
) -> tuple[StepReading, PageSeen]:
    """Parse a page whose header is believed, and return what was read of it by now."""
    state, patches, error = wire.parse_status(page)
    count, records = wire.parse_records(page, seen.count, _MOST_RECORDS)
    if not seen.count and 2 * len(_list_ends(records)) < len(records):
        # Its steps are long: most records are of their middle, and the ends of some lie far back.
        count, records = wire.parse_records(page, 0, wire.RING_RECORDS)
    last = records[-1] if records else _NOTHING
    new = [one for one in records if one[wire.REC_NUMBER] >= seen.count]
    ends = _list_ends(new)
    before = seen.ended
    if new and new[0][wire.REC_NUMBER] > seen.count:
        before = None  # whether a step ended in what was overwritten is not known
    elif not seen.count:
        before = (0, header.created_ns, *_NOTHING[2:])
    chain = ends if before is None else [before, *ends]
    spans = tuple(_parse_span(early, late) for early, late in pairwise(chain))
    ended = chain[-1] if chain else None
    reading = StepReading(
        process=process,
        rank=_parse_rank(header.rank),
        world_size=_parse_rank(header.world_size),
        local_rank=_parse_rank(header.local_rank),
        hook_version=admit_text(header.hook_version, 16),
        torch_version=admit_text(header.torch_version, 24),
        python_version=admit_text(header.python_version, 16),
        state=_STATES.get(state, HookState.DISABLED),
        error=admit_text(error, wire.ERROR_BYTES),
        patches=tuple(patch for bit, patch in _PATCHES if patches & bit),
        rule=_RULES.get(last[wire.REC_RULE], StepRule.NONE),
        counts=_parse_counts(last, patches),
        ended=_parse_ended(ended),
        batch_size=last[wire.REC_BATCH_SIZE] or Missing("the DataLoader does not say it"),
        spans=spans,
        lost_records=max(count - seen.count - len(new) + len(ends) - len(spans), 0),
        now=_parse_now(wire.parse_live(page), taken_ns),
        marks=tuple(NamedTime(admit_text(name, 40), *rest) for name, *rest in wire.parse_marks(page)),
        taken_ns=taken_ns,
        settings=parse_settings(page, taken_ns),
        device=parse_device(page, taken_ns),
        put_in=_parse_put_in(header),
    )
    return reading, PageSeen(count, ended)


def _parse_put_in(header: wire.Header) -> Applicable[PutIn]:
    try:
        at = datetime.fromtimestamp(header.put_in_ns / 1e9).astimezone()
    except (OverflowError, OSError, ValueError):
        return NOT_APPLICABLE
    return PutIn(at, admit_text(header.put_in_by, 16)) if header.put_in_ns else NOT_APPLICABLE


def _list_ends(records: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the records that end a step; others are of a step that goes on."""
    return [one for one in records if one[wire.REC_TIME_NS] == one[wire.REC_ENDED_NS]]


def _parse_ended(record: Sequence[int] | None) -> Known[StepSpan]:
    """Return all steps until a record at the end of one; Missing where none ended, or too long ago."""
    if record is None or not record[wire.REC_ENDED_NS]:
        return Missing("no step ended yet") if record is not None else Missing("no step ended lately")
    return StepSpan(
        record[wire.REC_TIME_NS],
        record[wire.REC_STEPS],
        record[wire.REC_EVAL_STEPS],
        record[wire.REC_SAMPLES],
        PhaseTimes(*record[wire.REC_DATA_NS : wire.REC_OTHER_NS + 1]),
        _parse_evaluation(record),
    )


def _parse_rank(number: int) -> Applicable[int]:
    return number if number >= 0 else NOT_APPLICABLE


def _parse_counts(record: Sequence[int], patches: int) -> StepCounts:
    skipped: Known[int] = record[wire.REC_SKIPPED]
    if not skipped and not patches & wire.PATCH_SCALER:
        skipped = NO_SCALER
    elif skipped and not record[wire.REC_OPTIMIZER_CALLS]:
        skipped = NO_OPTIMIZER
    made, samples = record[wire.REC_STEPS : wire.REC_SKIPPED], record[wire.REC_SAMPLES : wire.REC_DATA_NS]
    values: list[Any] = [*made, skipped, *samples, record[wire.REC_ELSEWHERE]]
    return StepCounts(*values)


def _parse_evaluation(record: Sequence[int]) -> PhaseTimes:
    data_ns, forward_ns, other_ns = record[wire.REC_EVAL_DATA_NS : wire.REC_EVAL_OTHER_NS + 1]
    return PhaseTimes(data_ns, forward_ns, backward_ns=0, optimizer_ns=0, other_ns=other_ns)


def _parse_span(before: Sequence[int], after: Sequence[int]) -> StepSpan:
    # Positions and not names: there are up to a thousand of these a second.
    time = wire.REC_DATA_NS
    train = PhaseTimes(
        after[time] - before[time],
        after[time + 1] - before[time + 1],
        after[time + 2] - before[time + 2],
        after[time + 3] - before[time + 3],
        after[time + 4] - before[time + 4],
    )
    evals = after[wire.REC_EVAL_STEPS] - before[wire.REC_EVAL_STEPS]
    evaluation = _NO_TIME
    if evals:
        evaluation = _parse_evaluation([*map(sub, after, before)])
    return StepSpan(
        after[wire.REC_TIME_NS],
        after[wire.REC_STEPS] - before[wire.REC_STEPS],
        evals,
        after[wire.REC_SAMPLES] - before[wire.REC_SAMPLES],
        train,
        evaluation,
    )


def _parse_now(live: Sequence[int], taken_ns: int) -> Known[LoopNow]:
    """Tell by the newest event what the loop is in: after a backward the optimizer, after that the rest."""
    at_ns, phase = max((live[word], phase) for word, phase in _PHASE_AFTER)
    if at_ns == 0:
        return Missing("nothing happened yet")
    return LoopNow(phase, max(taken_ns - at_ns, 0) / 1e9)
