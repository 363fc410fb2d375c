"""Readings of one GPU and of the driver's process list."""

from __future__ import annotations

from enum import Enum

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing

NO_DRIVER = "no NVIDIA driver"
NO_CARD_OPEN = "the job holds no NVIDIA card open"


NO_NVLINK = Missing("no NVLink")
NOT_YET = "NVML has not answered yet"
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


def is_no_card(reason: str) -> bool:
    """Tell whether the reason why no card was read is that the job has none."""
    return reason.startswith((NO_DRIVER, NO_CARD_OPEN))


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

    ``source`` is "counter" (violation time, misses nothing) or "bit" (share of the readings
    of the window in which the reason bit was set).
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

    ``sm_pct`` is NVML utilisation (share of time with at least one kernel), mean of the
    driver's sample buffer; ``sm_active_pct`` and below are GPM cycle ratios (Hopper and newer).
    ``power_w`` is the energy counter's difference over time where the card has one.
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


@dataclass(frozen=True, slots=True)
class Driver:
    """Hold what NVML says of itself."""

    driver_version: Known[str]
    cuda_version: Known[str]
