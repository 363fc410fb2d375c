"""Readings of one GPU, and which processes of the job use it.

The driver lists every process with a context, such as that of a checkpoint that was loaded to the card it
was saved from. It says how busy each keeps the card, but has no sample of a process that did nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known, known_or, map_known

NO_NVLINK = Missing("no NVLink")
NOT_VISIBLE = "GPUs not visible from this shell (container or Slurm step)"
NORMAL_REASONS = frozenset(("power cap", "application clocks"))
"""What holds clocks down on a card that is well: full load does, and what its owner chose."""
APPLICATION_XIDS = frozenset((13, 31, 43, 45, 63, 68, 69))
"""Xids that a program's own fault raises (13, 31, 43, 68, 69), that follow its end (45), or that say
a row was remapped (63, told by the remap reading)."""
# NVIDIA's Xid catalogue, by the action that it wants of whoever runs the program.
HARMLESS_XIDS = frozenset((37, 38, 44, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141))
"""Xids that want none (IGNORE), such as a rate of corrected errors or a notice of the driver's own."""
RESTART_XIDS = frozenset((8, 11, 25, 32, 39, 40, 41, 60, 70, 71, 72, 75, 76, 77, 80, 94, 139)) | frozenset(
    (*range(82, 90), *range(96, 106), *range(126, 136))
)
"""Xids after which the program is to be started anew and the card is well (RESTART_APP): a fault of the
program, or an error that the card contained (94, of which the remap reading tells more)."""


def is_card_fault(xid: int) -> bool:
    """Tell whether an Xid tells of a card that is not well; one that the catalogue does not name does."""
    return xid not in APPLICATION_XIDS and xid not in HARMLESS_XIDS and xid not in RESTART_XIDS


RECOVERY_ACTIONS = (
    *("nothing", "reset the GPU", "reboot the node", "drain P2P traffic"),
    "drain P2P traffic and reset the GPU",
)
"""What a card asks for, by its number (nvml.h, nvmlDeviceGpuRecoveryAction_t)."""


def name_recovery(action: int) -> str:
    """Say what a card asks for: "reboot the node"."""
    known = 0 <= action < len(RECOVERY_ACTIONS)
    return RECOVERY_ACTIONS[action] if known else f"recovery action {action}"


class GpuState(str, Enum):
    """Say whether a card still answers."""

    OK = "ok"
    STALE = "stale"
    REFUSED = "refused"
    """It answers, but with nothing but refusals, such as those to a shell that may not open it."""
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """Hold one entry of the driver's process list of a card; ``of_job`` says that it is ours."""

    pid: int
    used_bytes: Known[int]
    sm_pct: Known[float]
    of_job: bool


@dataclass(frozen=True, slots=True)
class ThrottleShare:
    """Say for which share of the last window a reason held the clocks down.

    ``source`` is "counter" (violation time, misses nothing) or "bit" (share of readings with the reason bit
    set).
    """

    reason: str
    pct: float
    source: str


@dataclass(frozen=True, slots=True)
class MigInstance:
    """Hold one MIG instance of a card."""

    uuid: str
    gpu_instance: int
    memory_used_bytes: Known[int]
    memory_total_bytes: Known[int]
    sm_active_pct: Known[float]
    pids: Known[tuple[int, ...]] = Missing("not read yet")
    """All processes on it, ascending, of whatever job."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """Hold one second of one card.

    ``sm_pct`` is NVML utilisation (share of time with at least one kernel), mean of the driver's sample
    buffer; ``sm_active_pct`` and below are GPM cycle ratios (Hopper and newer). ``power_w`` is the energy
    counter's difference over time where the card has one.
    """

    index: int
    uuid: str
    name: str
    state: GpuState
    age_s: float
    sm_pct: Known[float]
    sm_samples: int
    """How many entries of the driver's buffer ``sm_pct`` is the mean of; 0: one-shot value."""
    sm_idle_ratio: Known[float]
    """Share of those entries at or below 5 %."""
    sm_busy_ratio: Known[float]
    """Share of those entries at or above 80 %."""
    memory_busy_pct: Known[float]
    sm_active_pct: Known[float]
    occupancy_pct: Known[float]
    tensor_pct: Known[float]
    dram_pct: Known[float]
    pcie_tx_bytes_s: Known[float]
    pcie_rx_bytes_s: Known[float]
    nvlink_tx_bytes_s: Known[float]
    nvlink_rx_bytes_s: Known[float]
    memory_used_bytes: Known[int]
    memory_total_bytes: Known[int]
    power_w: Known[float]
    power_source: Known[str]
    power_limit_w: Known[float]
    sm_clock_mhz: Known[float]
    sm_clock_max_mhz: Known[float]
    memory_clock_mhz: Known[float]
    memory_clock_max_mhz: Known[float]
    temperature_c: Known[float]
    memory_temperature_c: Known[float]
    temperature_margin_c: Known[float]
    throttle: tuple[str, ...]
    """Reasons set right now, in words; "idle" is left out (never a fault)."""
    throttle_known: Known[bool]
    throttle_shares: tuple[ThrottleShare, ...]
    pcie_generation: Known[int]
    pcie_generation_max: Known[int]
    pcie_width: Known[int]
    pcie_width_max: Known[int]
    ecc_uncorrected: Known[int]
    remapped_rows_pending: Known[bool]
    remapped_rows_failed: Known[bool]
    recovery_action: Known[int]
    xids: tuple[int, ...]
    """Xid codes seen since attaching, oldest first."""
    mig: Known[bool]
    mig_instances: tuple[MigInstance, ...]
    processes: Known[tuple[GpuProcess, ...]]
    pids: Known[tuple[int, ...]]
    """The job's PIDs on this card, ascending."""
    pids_are_visible_only: bool
    """True when the mapping comes from open /dev/nvidiaN files: an upper bound."""
    lists_only: Applicable[str]
    """What the driver's list is limited to where that is not the machine: others may share the card."""
    unheard: Applicable[str] = NOT_APPLICABLE
    """Why NVML as a whole does not answer, or does not list the card: then it is not silent by itself."""
    decoder_pct: Applicable[float] = NOT_APPLICABLE
    """Use of the engines that decode video (NVDEC), a mean over all of the card's."""
    jpeg_pct: Applicable[float] = NOT_APPLICABLE
    """The same for JPEG engines; not applicable where a recording is older than these figures."""


@dataclass(frozen=True, slots=True)
class Driver:
    """Hold what NVML says of itself."""

    driver_version: Known[str]
    cuda_version: Known[str]


USED_PCT = 1.0
"""SM % from which a process computes on a card."""
BULK_RATIO = 0.5
"""Bytes over those on its fullest card from which a process uses a card on which it does not compute now."""
CONTEXT_RATIO = 0.1
"""The same where the driver does not say who computes: a context alone takes 0.3 to 0.6 GB."""
EXPLAINED_RATIO = 0.8
"""Part of U that the processes with a sample account for, from which those without one did nothing."""


def is_listed(card: GpuSample) -> bool:
    """Tell whether the card's process list is what says which processes are the job's."""
    return is_known(card.pids) and bool(card.pids) and not card.pids_are_visible_only


def list_processes(card: GpuSample) -> tuple[GpuProcess, ...]:
    """Return the driver's process list of a card; nothing where it was not read."""
    return known_or(card.processes, ())


def share_card(card: GpuSample) -> Known[Mapping[int, float]]:
    """Return the SM % of processes by PID; Missing where the driver leaves open who kept the card busy."""
    if is_known(card.sm_pct) and card.sm_pct < USED_PCT:
        return {}
    listed = list_processes(card)
    told = {one.pid: one.sm_pct for one in listed if is_known(one.sm_pct)}
    untold = next((one.sm_pct for one in listed if isinstance(one.sm_pct, Missing)), None)
    if untold is None:
        return told or Missing("no process list")
    if told and is_known(card.sm_pct) and sum(told.values()) >= EXPLAINED_RATIO * card.sm_pct:
        return told
    return untold


def bytes_on(pid: int, card: GpuSample) -> Known[int]:
    """Return the bytes that a process has on a card."""
    found = (one.used_bytes for one in list_processes(card) if one.pid == pid)
    return next(found, Missing("the driver does not list it"))


def tell_contexts(
    used_bytes: Mapping[str, Known[int]], busy_pct: Mapping[str, Known[float]]
) -> frozenset[str]:
    """Return the cards on which a process only has a context, by its bytes and SM % on each, by UUID."""
    most = max((one for one in used_bytes.values() if is_known(one)), default=0)
    works = {uuid for uuid, pct in busy_pct.items() if is_known(pct) and pct >= USED_PCT}
    idle = {uuid: used for uuid, used in used_bytes.items() if uuid not in works and is_known(used)}
    ratios = {uuid: BULK_RATIO if works and is_known(busy_pct[uuid]) else CONTEXT_RATIO for uuid in idle}
    return frozenset(uuid for uuid, used in idle.items() if used < ratios[uuid] * most)


def find_contexts(
    cards: Sequence[GpuSample], busy: Callable[[GpuSample, int], Known[float]]
) -> frozenset[tuple[str, int]]:
    """Return the cards, by UUID, on which a process only has a context: it works on another one.

    ``busy`` tells the SM % of a process on a card. Never a card that is lost, or known only by open files.
    """
    on: dict[int, list[GpuSample]] = {}
    for card in cards:
        if is_listed(card) and card.state is not GpuState.LOST:
            for pid in known_or(card.pids, ()):
                on.setdefault(pid, []).append(card)
    return frozenset(
        (uuid, pid)
        for pid, mine in on.items()
        if len(mine) > 1
        for uuid in tell_contexts(
            {one.uuid: bytes_on(pid, one) for one in mine}, {one.uuid: busy(one, pid) for one in mine}
        )
    )


def find_used(cards: Sequence[GpuSample]) -> Mapping[int, tuple[GpuSample, ...]]:
    """Return the cards that each process of the job works on, lost and only held open ones among them."""
    contexts = find_contexts(
        cards, lambda card, pid: map_known(lambda pct: pct.get(pid, 0.0), share_card(card))
    )
    on = {card.uuid: known_or(card.pids, ()) for card in cards}
    return {
        pid: tuple(one for one in cards if pid in on[one.uuid] and (one.uuid, pid) not in contexts)
        for pids in on.values()
        for pid in pids
    }


def name_several(pid: int, cards: Sequence[GpuSample]) -> str:
    """Name the cards that the driver lists a process to work on, "" where it is one or only held open."""
    mine = find_used(cards).get(pid, ())
    told = len(mine) > 1 and all(map(is_listed, mine))
    return ",".join(str(one.index) for one in mine) if told else ""


def list_silent(cards: Sequence[GpuSample]) -> tuple[GpuSample, ...]:
    """Return the cards that do not answer and that the job is on, or may be; a refusal is an answer."""
    return tuple(one for one in cards if one.state in (GpuState.STALE, GpuState.LOST) and may_be_on(one))


def list_missed(cards: Sequence[GpuSample]) -> tuple[GpuSample, ...]:
    """Return the silent cards but those that are no card of the job, though it holds them open.

    CUDA opens every card it may see: where the driver lists each of several processes on one card that
    answers, those are their cards.
    """
    own = [known_or(one.pids, ()) for one in cards if one.state is GpuState.OK and is_listed(one)]
    placed = {pid for pids in own for pid in pids}
    apart = len(placed) > 1 and len(placed) == sum(map(len, own))
    return tuple(
        one
        for one in list_silent(cards)
        if not (apart and one.pids_are_visible_only and placed.issuperset(known_or(one.pids, ())))
    )


def may_be_on(card: GpuSample) -> bool:
    """Tell whether the job is on a card, or nothing says that it is not."""
    return not is_known(card.pids) or bool(card.pids)


def list_used(cards: Sequence[GpuSample]) -> tuple[GpuSample, ...]:
    """Return the cards that the job works on."""
    used = {one.uuid for mine in find_used(cards).values() for one in mine}
    return tuple(card for card in cards if card.uuid in used)


def say_unlisted(names: Sequence[str]) -> str:
    """Say which cards the job holds open though NVML does not list them."""
    return f"{NOT_VISIBLE}: the job holds {', '.join(names)}"
