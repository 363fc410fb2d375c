"""Tell which cards a job uses: by the cards' process lists, else by open /dev/nvidiaN files.

CUDA opens every visible card, so open files are an upper bound. Outside the first PID namespace a listed PID
counts only if an open device file agrees: older drivers (open-gpu-kernel-modules before 535.113) list host
PIDs, which may equal an unrelated PID here.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

from tpmon.model.frozen import dataclass, replace
from tpmon.model.gpu import GpuSample, GpuState, list_processes
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.results.doctor import say_refusal
from tpmon.probe.base.procread import read_file, read_or, read_text
from tpmon.probe.gpu.bounds import DriverCard, Listed
from tpmon.probe.gpu.rates import make_silent_sample

Held = Mapping[int, Known[tuple[int, ...]]]  # minor numbers of the device files that each process holds open

NVIDIA_MAJOR = 195
DXG = "/dev/dxg"
ON_DXG = Missing(f"it reaches its card through {DXG} (WSL), which names none")
NOT_SCANNED = Missing("open files not read yet")
_MAJOR = str(NVIDIA_MAJOR)
_DRIVERS = ("nvidia", "nvhost", "nvgpu")
_GONE = frozenset(("no such file or directory", "no such process"))
_DEVICE = re.compile(r"/dev/nvidia(\d+)")

RESCAN_S = 30.0
EMPTY_RESCAN_S = 3.0  # a process without a card may open one any moment: torch does so at first use
NEW_SCANS = 64
OLD_SCANS = 8  # rescans a round; each reads every descriptor link of a process, 0.1 to 1 ms


def open_device_indices(pid: int, proc: str = "/proc") -> Known[tuple[int, ...]]:
    """Return the N of every /dev/nvidiaN that a process holds open, ascending; Missing under WSL."""
    directory = f"{proc}/{pid}/fd"
    minors = set()
    try:
        for name in os.listdir(directory):
            path = f"{directory}/{name}"
            try:
                link = os.readlink(path)
            except FileNotFoundError:
                continue
            if link == DXG:
                return ON_DXG
            match = _DEVICE.fullmatch(link)
            if match:
                minors.add(_minor_of(path, int(match[1])))
    except OSError as error:
        return Missing(say_refusal(error, "fd"))
    return tuple(sorted(minors))


def _minor_of(path: str, by_name: int) -> int:
    # A container may rename the device; the node itself has the number.
    status = read_or(None, lambda: os.stat(path))
    is_card = status and stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) == NVIDIA_MAJOR
    return os.minor(status.st_rdev) if status and is_card else by_name


def kernel_has_driver(proc: str = "/proc") -> bool:
    """Tell whether the kernel has an NVIDIA driver, even where this shell may not see its cards."""
    return any(words[:1] == [_MAJOR] for words in map(str.split, read_text(f"{proc}/devices").splitlines()))


def read_has_driver(proc: str = "/proc", dxg: str = DXG) -> Known[bool]:
    """Tell whether a card could be used here: the kernel has a driver, or WSL passes one through."""
    if os.path.exists(dxg):
        return True
    try:
        lines = read_file(f"{proc}/devices").decode(errors="replace").splitlines()
    except OSError as error:
        return Missing(say_refusal(error, "fd"))
    entries = (words for line in lines if len(words := line.split()) == 2)
    return any(number == _MAJOR or name.startswith(_DRIVERS) for number, name in entries)


OWN_NAMESPACE = "this PID namespace"


class DeviceFiles:
    """Scan the open device files of a job's processes, a ration at a time. ``scan`` runs off the tick."""

    def __init__(self, proc: str = "/proc", dxg: str = DXG) -> None:
        self._proc = proc
        self._dxg = dxg
        self._job: Mapping[int, int] = {}
        self._scans: dict[tuple[int, int], tuple[float, Known[tuple[int, ...]]]] = {}
        self._driver_checked_s = float("-inf")
        self.has_driver: Known[bool] = Missing("drivers not searched yet")

    def watch(self, job: Mapping[int, int]) -> None:
        """Name the job's processes: PID to start ticks."""
        self._job = dict(job)

    def scan(self) -> Held:
        """Scan new processes, and those not scanned for a while; return what all of them hold."""
        now_s = time.monotonic()
        if now_s - self._driver_checked_s >= RESCAN_S:
            self._driver_checked_s = now_s
            self.has_driver = read_has_driver(self._proc, self._dxg)
        if not is_known(self.has_driver) or not self.has_driver:
            return {}
        job = self._job
        self._scans = {key: self._scans[key] for key in job.items() if key in self._scans}
        new = [key for key in job.items() if key not in self._scans][:NEW_SCANS]
        due = [
            key
            for key, (at_s, found) in self._scans.items()
            if now_s - at_s >= (EMPTY_RESCAN_S if found == () else RESCAN_S)
        ]
        for key in (*new, *sorted(due, key=lambda key: self._scans[key][0])[:OLD_SCANS]):
            self._scans[key] = (now_s, open_device_indices(key[0], self._proc))
        return {pid: minors for (pid, _), (_, minors) in self._scans.items()}


@dataclass(frozen=True, slots=True)
class Card:
    """Hold a card's sample and the N of its /dev/nvidiaN."""

    sample: GpuSample
    minor: Known[int]


def map_to_job(
    cards: tuple[Card, ...], job: Mapping[int, int], held: Held, pids_are_ours: bool
) -> tuple[GpuSample, ...]:
    """Mark the job's processes on each card; ``pids_are_ours``: we are in the first PID namespace.

    Once one card lists a process of the job, lists decide for all cards that answer. If no list names one and
    lists cannot be trusted, and for a card that does not answer, open files decide; files that were not read
    decide nothing.
    """
    if not pids_are_ours:
        cards = tuple(replace(card, sample=replace(card.sample, lists_only=OWN_NAMESPACE)) for card in cards)
    confirmed = {pid for pid in job if pids_are_ours or _minors_of(pid, held)}
    listed = [tuple(sorted(confirmed & {one.pid for one in list_processes(card.sample)})) for card in cards]
    if any(listed) and not any(is_unlisted(card.sample) for card in cards):
        return tuple(_mark(card.sample, ours) for card, ours in zip(cards, listed, strict=True))
    unread = find_unread(job, held)
    believed = pids_are_ours and unread != ON_DXG
    return tuple(
        _mark(card.sample, ours)
        if any(listed) and not is_unlisted(card.sample)
        else _mark_visible(card, job, held, unread, believed)
        for card, ours in zip(cards, listed, strict=True)
    )


def is_unlisted(sample: GpuSample) -> bool:
    """Tell whether a card does not answer and has never listed a process."""
    return sample.state is not GpuState.OK and not is_known(sample.processes)


def place_silent(
    cards: tuple[Card, ...], driver: Listed, job: Mapping[int, int], held: Held
) -> tuple[Card, ...]:
    """Find the N of /dev/nvidiaN of cards that never answered: by the kernel's driver, else by exclusion.

    Exclusion: as many cards are silent as the job holds minors that belong to no other card.
    """
    silent = [card for card in cards if not is_known(card.minor) and is_unlisted(card.sample)]
    if not silent:
        return cards
    taken = {card.minor for card in cards if is_known(card.minor)}
    rest = [one for one in known_or(driver, ()) if one.minor not in taken]
    minors = sorted(held_minors(job, held) - taken)
    if len(rest) != len(silent):
        rest = [DriverCard(minor) for minor in minors]
    if len(rest) == len(silent):
        named = dict(zip(map(id, silent), rest, strict=True))
        return tuple(_name_silent(card, named[id(card)]) if id(card) in named else card for card in cards)
    open_ = bool(minors) or find_unread(job, held) is not None
    pids: Known[tuple[int, ...]] = Missing("which /dev/nvidiaN it is is not known") if open_ else ()
    return tuple(
        replace(card, sample=replace(card.sample, pids=pids)) if card in silent else card for card in cards
    )


def list_unheard(
    driver: Listed, minors: Collection[int], first: int, age_s: float, why: str
) -> tuple[Card, ...]:
    """List cards unknown to NVML, from ``first``: the driver's, else the ``minors`` that the job holds."""
    named = known_or(driver, ()) or tuple(map(DriverCard, sorted(minors)))
    samples = (
        replace(make_silent_sample(index, f"minor-{one.minor}", age_s, why), unheard=why)
        for index, one in enumerate(named, first)
    )
    return tuple(_name_silent(Card(sample, 0), one) for sample, one in zip(samples, named, strict=True))


def _name_silent(card: Card, named: DriverCard) -> Card:
    return Card(replace(card.sample, name=named.name, uuid=named.uuid or card.sample.uuid), named.minor)


def unlisted_minors(cards: tuple[Card, ...], held: AbstractSet[int]) -> tuple[int, ...]:
    """Return the minors that the job holds open and no card has, ascending."""
    known = {card.minor for card in cards if is_known(card.minor)}
    rest = held - known
    # Some may belong to the cards whose number is unknown.
    return tuple(sorted(rest)) if len(rest) > sum(not is_known(card.minor) for card in cards) else ()


def find_unread(job: Mapping[int, int], held: Held) -> Missing | None:
    """Return why open files of a living process were not read, None when all were; newborns do not count."""
    if job and not any(pid in held for pid in job):
        return NOT_SCANNED
    missing = [one for pid in job if isinstance(one := held.get(pid), Missing) and one.reason not in _GONE]
    return next((one for one in missing if one == ON_DXG), missing[0] if missing else None)


def held_minors(job: Mapping[int, int], held: Held) -> set[int]:
    """Return the minors of all device files that the job holds open."""
    return {minor for pid, minors in held.items() if pid in job and is_known(minors) for minor in minors}


def _minors_of(pid: int, held: Held) -> tuple[int, ...]:
    return known_or(held.get(pid, NOT_SCANNED), ())


def _mark(sample: GpuSample, ours: tuple[int, ...]) -> GpuSample:
    if not ours:
        return sample
    processes = tuple(replace(one, of_job=one.pid in ours) for one in list_processes(sample))
    return replace(sample, processes=processes, pids=ours)


def _mark_visible(
    card: Card, job: Mapping[int, int], held: Held, unread: Missing | None, believed: bool
) -> GpuSample:
    minor = card.minor
    # A trusted list that does not name the job says that it is not on the card.
    told = believed and is_known(card.sample.processes)
    if isinstance(minor, Missing):
        return card.sample if told or is_unlisted(card.sample) else _mark_unread(card.sample, minor)
    if holders := tuple(pid for pid in sorted(job) if minor in _minors_of(pid, held)):
        return replace(card.sample, pids=holders, pids_are_visible_only=True)
    if unread is None and is_unlisted(card.sample):
        return replace(card.sample, pids=())
    return card.sample if told or unread is None else _mark_unread(card.sample, unread)


def _mark_unread(sample: GpuSample, why: Missing) -> GpuSample:
    return replace(sample, pids=why) if is_known(sample.pids) else sample
