"""Keep what the NVML child reported, and answer with ages: live, stale and lost cards. Pure of I/O.

``GpuProbe`` owns it and holds a lock around every call. Times are CLOCK_MONOTONIC in ns.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from tpmon.model.frozen import dataclass, replace
from tpmon.model.gpu import NOT_VISIBLE, Driver, GpuSample, GpuState, say_unlisted
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, Why, is_known, map_known
from tpmon.model.results.doctor import drop_pointers, point_to
from tpmon.model.text.redaction import admit_text
from tpmon.probe.gpu.bounds import Listed
from tpmon.probe.gpu.mapping import (
    Card,
    Held,
    find_unread,
    held_minors,
    list_unheard,
    map_to_job,
    place_silent,
    unlisted_minors,
)
from tpmon.probe.gpu.rates import CardTrack, make_silent_sample, without_live
from tpmon.probe.gpu.wire import CardLine, DriverLine, FailureLine, Line

GRACE_S = 2.0  # a card whose line is later is stale: twice what a call takes at most on a healthy card
PATIENCE_S = 3.0
OTHERS_S = 0.5  # a card may lack a first answer for so long after another's: all are asked at once
MAX_PERIOD_S = 30.0
MAX_LINES = 64  # kept of one card; 10 s have 10
MAX_EVENTS = 100
MAX_NOTES = 20
PASSING_S = 180.0  # a passing note is repeated every 30 s while it holds
MAX_CARDS = 64
NOT_YET = Missing("NVML has not answered yet", Why.PENDING)

# What a shell without access to the cards gets on a machine that has some.
_MAY_HIDE = frozenset((4, 9, 12, 999))
_NO_LIBRARY = 12
_FAILURES = {
    4: point_to("no permission to use the NVIDIA driver", "nvml"),
    9: point_to("the NVIDIA driver is not loaded", "nvml"),
    _NO_LIBRARY: point_to("no NVIDIA driver on this machine (libnvidia-ml.so.1 not found)", "nvml"),
    18: point_to("the NVIDIA driver was replaced while in use (library and kernel module differ)", "nvml"),
    999: point_to("NVML fails with an unknown error (in a container: it lost its cards, restart it)", "nvml"),
}


_LIBRARY_MISSING = point_to("libnvidia-ml.so.1 not found, though the kernel has a driver", "nvml")
_UNANSWERED = Missing("the card has not answered yet")
_NOT_LOOKED = Missing("drivers not searched")
_NOT_LISTED = "NVML does not list it: it is lost, or of another container or Slurm step"


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Hold all that is known of the GPUs at one moment.

    ``of_job`` is ``gpus``, but where NVML does not answer it says whether the job can have a card. ``age_s``
    is of the newest line of any card. ``events`` are new since the last reading; ``notes`` hold as long as
    they are listed.
    """

    driver: Known[Driver]
    gpus: Known[tuple[GpuSample, ...]]
    age_s: Known[float]
    source: str
    events: tuple[str, ...]
    notes: tuple[str, ...]
    of_job: Known[tuple[GpuSample, ...]] = Missing("not asked for a job")
    unlisted: Applicable[tuple[str, ...]] = NOT_APPLICABLE
    """Device files of cards that the job holds open and NVML does not list."""


@dataclass(slots=True)
class _Slot:
    track: CardTrack
    sample: GpuSample


class Board:
    """Collect the lines of one child after another, and keep the cards across restarts."""

    def __init__(self, now_ns: int) -> None:
        self._slots: dict[str, _Slot] = {}
        self._driver: Known[Driver] = NOT_YET
        self._failure: Missing | None = None
        self.refused = False  # NVML could not be opened at all in the last child that ended
        self._crashed = False  # the last child that ended did so without a word
        self._hidden = False
        self._expected: int | None = None
        self._seen: set[str] = set()
        self._asked_ns = now_ns
        self._driver_ns = now_ns
        self._ended: tuple[str, int] | None = None
        self._events: deque[str] = deque(maxlen=MAX_EVENTS)
        self._notes: dict[str, int | None] = {}
        """When a passing note last came, None for lasting ones; in the order in which they first came."""

    def on_start(self, now_ns: int) -> None:
        """Record that a new child was started."""
        self._asked_ns = now_ns
        self._expected = None
        self.refused = False
        self._seen.clear()

    def on_line(self, line: Line, now_ns: int) -> None:
        """Take a line of the child."""
        if is_known(line.driver):
            self._on_driver(line.driver, now_ns)
        elif is_known(line.failure):
            self._on_failure(line.failure)
        elif is_known(line.card):
            self._on_card(line.card)
        elif is_known(line.xid):
            self._on_xid(line.xid.uuid, line.xid.xid)
        elif is_known(line.note):
            # A repeated note keeps its place, so that lines do not jump.
            self._notes[admit_text(line.note.text)] = now_ns if line.note.passing else None
            if len(self._notes) > MAX_NOTES:
                del self._notes[next(iter(self._notes))]

    def on_end(self, how: str, now_ns: int, retry_s: float) -> None:
        """Record how the child ended, and that the next one starts in ``retry_s``."""
        if self.answered:
            self._ended = (how, now_ns)
            self._events.append(f"GPU child ended ({how}); next try in {retry_s:g} s")
        elif not self.refused:
            self._hidden, self._crashed = False, True
            self._failure = Missing(point_to(f"the GPU child ended before it answered ({how})", "nvml"))
        self._expected = None

    @property
    def answered(self) -> bool:
        """Tell whether NVML answered in the child that runs, or ran last."""
        return self._expected is not None

    def read(
        self,
        job: Mapping[int, int],
        held: Held,
        pids_are_ours: bool,
        now_ns: int,
        has_driver: Known[bool] = _NOT_LOOKED,
        *,
        driver_cards: Listed = (),
    ) -> GpuReading:
        """Return every card with its age and the job's processes on it.

        ``has_driver``: the kernel or WSL has a driver for cards; ``driver_cards``: which cards that lists.
        """
        held_by_job = held_minors(job, held)
        silent_s = (now_ns - self._driver_ns) / 1e9
        cards = place_silent(self._cards(now_ns), driver_cards, job, held)
        if not cards and self._is_wedged(now_ns) and (held_by_job or find_unread(job, held) is not None):
            why = self._failure if self._crashed and self._failure is not None else self._waiting(now_ns)
            cards = list_unheard(driver_cards, held_by_job, 0, silent_s, why.reason)
        since_ns = now_ns - PASSING_S * 1e9
        self._notes = {text: ns for text, ns in self._notes.items() if ns is None or ns >= since_ns}
        notes = tuple(self._notes)
        gpus: Known[tuple[GpuSample, ...]]
        hidden: Applicable[tuple[str, ...]] = NOT_APPLICABLE
        if cards and self._lacks_first_answers(cards, now_ns):
            gpus = NOT_YET
        elif cards:
            gpus = map_to_job(cards, job, held, pids_are_ours)
            unlisted = unlisted_minors(cards, held_by_job)
            if unlisted:
                hidden = tuple(f"/dev/nvidia{minor}" for minor in unlisted)
                notes = (say_unlisted(hidden), *notes)
                there = map_known(lambda all_: tuple(c for c in all_ if c.minor in unlisted), driver_cards)
                lost = list_unheard(there, (), 1 + gpus[-1].index, silent_s, _NOT_LISTED)
                gpus += map_to_job(lost, job, held, pids_are_ours)
        elif held_by_job and (self._hidden or self._expected == 0):
            gpus = Missing(point_to(NOT_VISIBLE, "cards"))
        elif self._expected == 0:
            gpus = ()
        else:
            gpus = self._failure if self._failure is not None else self._waiting(now_ns)
        taken_ns = [slot.track.window[-1].taken_ns for slot in self._slots.values()]
        age = max(0.0, (now_ns - max(taken_ns)) / 1e9) if taken_ns else Missing("no GPU reading yet")
        events = tuple(self._events)
        self._events.clear()
        of_job = gpus
        if self._failure is not None and gpus is self._failure and is_known(has_driver):
            of_job = self._describe_failure(self._failure, job, held, has_driver=has_driver)
        version = self._driver.driver_version if is_known(self._driver) else self._driver
        source = f"NVML, driver {version}" if is_known(version) else "NVML"
        return GpuReading(self._driver, gpus, age, source, events, notes, of_job, hidden)

    def _on_driver(self, line: DriverLine, now_ns: int) -> None:
        self._driver = Driver(
            driver_version=map_known(lambda text: admit_text(text, 40), line.driver_version),
            cuda_version=map_known(lambda text: admit_text(text, 40), line.cuda_version),
        )
        if self.answered:
            return  # the versions came after the cards
        if self._ended:
            how, ended_ns = self._ended
            last_ns = max((slot.track.last_answer_ns() for slot in self._slots.values()), default=ended_ns)
            gap_s = max(0.0, (now_ns - last_ns) / 1e9)
            self._events.append(f"GPU child restarted after {how}, gap {gap_s:.0f} s")
        elif self._failure is not None:
            self._events.append("NVIDIA driver answers")
        self._ended = None
        self._crashed = False
        self._failure = None
        self._hidden = False
        self._notes.clear()  # a new child repeats what it cannot do
        self._expected = max(0, min(line.cards, MAX_CARDS))
        self._driver_ns = now_ns

    def _on_failure(self, line: FailureLine) -> None:
        reason = _FAILURES.get(line.code) or point_to(drop_pointers(admit_text(line.reason)), "nvml")
        if self.answered:
            self._events.append(f"NVIDIA driver went away: {reason}" if line.code else f"GPU child: {reason}")
        else:
            self.refused = True
        self._failure = Missing(reason, Why.ABSENT if line.code == _NO_LIBRARY else Why.UNREAD)
        self._crashed, self._hidden, self._driver = False, line.code in _MAY_HIDE, self._failure

    def _on_card(self, line: CardLine) -> None:
        key = line.uuid or self._key_of(line.index)
        if line.uuid:
            self._slots.pop(_nameless(line.index), None)
        slot = self._slots.get(key)
        if slot is None and len(self._slots) >= MAX_CARDS:
            return
        track = slot.track if slot else CardTrack(deque(maxlen=MAX_LINES))
        before = slot.sample.state if slot else GpuState.OK
        track.add(line)
        sample = track.sample(key)
        self._slots[key] = _Slot(track, sample)
        self._seen.add(key)
        if (sample.state is GpuState.LOST) != (before is GpuState.LOST):
            what = f"is lost: {line.lost}" if is_known(line.lost) else "answers again"
            self._events.append(admit_text(f"GPU {line.index} ({sample.name}) {what}"))

    def _key_of(self, index: int) -> str:
        """Name a card without a UUID: most likely the last one seen under this index."""
        same = [
            (slot.track.window[-1].taken_ns, key)
            for key, slot in self._slots.items()
            if slot.sample.index == index
        ]
        return max(same, default=(0, _nameless(index)))[1]

    def _on_xid(self, uuid: str, xid: int) -> None:
        slot = self._slots.get(uuid)
        if slot is None:
            self._events.append(admit_text(f"Xid {xid} on GPU {uuid}"))
            return
        slot.track.add_xid(xid)
        slot.sample = replace(slot.sample, xids=slot.track.xids)
        self._events.append(f"Xid {xid} on GPU {slot.sample.index} ({slot.sample.name})")

    def _cards(self, now_ns: int) -> tuple[Card, ...]:
        cards = [self._card(key, slot, now_ns) for key, slot in self._slots.items()]
        waited_s = (now_ns - self._driver_ns) / 1e9
        if self._expected and waited_s > (OTHERS_S if cards else PATIENCE_S):
            answered = {card.sample.index for card in cards}
            for index in set(range(self._expected)) - answered:
                silent = make_silent_sample(index, _nameless(index), waited_s, _UNANSWERED.reason)
                cards.append(Card(silent, _UNANSWERED))
        return tuple(sorted(cards, key=lambda card: (card.sample.index, card.sample.uuid)))

    def _lacks_first_answers(self, cards: Sequence[Card], now_ns: int) -> bool:
        """Tell whether other cards may still answer first: some of them would look like all."""
        expected = self._expected or 0
        return len(cards) < expected and (now_ns - self._driver_ns) / 1e9 <= OTHERS_S

    def _card(self, key: str, slot: _Slot, now_ns: int) -> Card:
        line = slot.track.window[-1]
        sample = slot.sample
        age_s = max(0.0, (now_ns - slot.track.last_answer_ns()) / 1e9)
        # A card that a new child has not read yet counts as silent only since that child began.
        waited_s = (now_ns - self._driver_ns) / 1e9 if key not in self._seen else math.inf
        late_s = (now_ns - line.taken_ns) / 1e9 - min(line.next_s, MAX_PERIOD_S)
        if self._expected and key not in self._seen and len(self._seen) >= self._expected:
            gone = "the driver lists this card no more"
            sample = replace(without_live(sample, gone), state=GpuState.LOST)
        elif sample.state is not GpuState.LOST and late_s > GRACE_S:
            sample = replace(without_live(sample, "the card does not answer"), state=GpuState.STALE)
            if not self.answered or waited_s < PATIENCE_S:
                sample = replace(sample, unheard="NVML does not answer")
        return Card(
            replace(sample, age_s=min(age_s, waited_s) if self.answered else age_s), slot.track.identity.minor
        )

    def _describe_failure(
        self, failure: Missing, job: Mapping[int, int], held: Held, *, has_driver: bool
    ) -> Missing:
        """Say why NVML does not answer, or that there is no card."""
        told, absent = drop_pointers(failure.reason), failure.why is Why.ABSENT
        if not has_driver:  # tpmon is refused nothing, so the doctor could not say more
            return Missing(told if absent else f"no NVIDIA driver on this machine ({told})", Why.ABSENT)
        why = _LIBRARY_MISSING if absent else failure.reason
        untold = not job or any(pid not in held for pid in job) or find_unread(job, held) is not None
        if untold or held_minors(job, held):
            return Missing(why)
        return Missing(f"the job holds no NVIDIA card open ({drop_pointers(why)})", Why.ABSENT)

    def _is_wedged(self, now_ns: int) -> bool:
        """Tell whether NVML says nothing at all: its child ended without a word, or hangs in the driver."""
        waits = (now_ns - self._asked_ns) / 1e9 > PATIENCE_S
        return not self.answered and not self.refused and (self._crashed or waits)

    def _waiting(self, now_ns: int) -> Missing:
        waited_s = (now_ns - self._asked_ns) / 1e9
        if waited_s <= PATIENCE_S:
            return NOT_YET
        return Missing(point_to(f"the NVIDIA driver has not answered for {waited_s:.0f} s", "nvml"))


def _nameless(index: int) -> str:
    return f"card-{index}"
