"""What the NVML child says to its parent: one JSON object a line, typed on both ends.

A line is a ``Line`` with one field set. Counters are raw and cumulative, so a lost line costs only a second
of a rate; slower tiers come when they were read.
"""

from __future__ import annotations

from enum import IntEnum

from tpmon.model.codec import CodecError, decode, encode
from tpmon.model.frozen import dataclass
from tpmon.model.gpu import MigInstance
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, is_known


@dataclass(frozen=True, slots=True)
class DriverLine:
    """Report that NVML answers, its versions, and how many cards it lists."""

    driver_version: Known[str]
    cuda_version: Known[str]
    cards: int


@dataclass(frozen=True, slots=True)
class FailureLine:
    """Report why the child ends: NVML could not be opened, or the driver went away. NVML code or 0."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class XidLine:
    """Report one Xid event of a card."""

    uuid: str
    xid: int


@dataclass(frozen=True, slots=True)
class NoteLine:
    """Report what the child cannot do: once, or if ``passing`` again as long as it holds."""

    text: str
    passing: bool = False


@dataclass(frozen=True, slots=True)
class Busy:
    """Hold the driver's utilisation samples since the last reading; 0 samples: a one-shot value."""

    mean_pct: float
    samples: int
    idle_ratio: Known[float]
    busy_ratio: Known[float]


class Counter(IntEnum):
    """Name the cumulative counters: energy in mJ, bytes, and ns for which a reason held the clocks down."""

    ENERGY, POWER_CAP, THERMAL, SW_THERMAL, HW_THERMAL, POWER_BRAKE, SYNC_BOOST = range(7)
    BOARD_LIMIT, RELIABILITY, PCIE_TX, PCIE_RX, NVLINK_TX, NVLINK_RX = range(7, 13)


@dataclass(frozen=True, slots=True)
class Counters:
    """Hold the counters in the order of ``Counter``.

    Each was valid ``after_us`` after ``taken_ns``; a driver may hand out what it read before.
    """

    values: tuple[Known[int], ...]
    after_us: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gpm:
    """Hold GPM metrics between two samples: percent of cycles, and bytes per second."""

    sm_active_pct: Known[float]
    occupancy_pct: Known[float]
    tensor_pct: Known[float]
    dram_pct: Known[float]
    pcie_tx_bytes_s: Known[float]
    pcie_rx_bytes_s: Known[float]
    nvlink_tx_bytes_s: Known[float]
    nvlink_rx_bytes_s: Known[float]


@dataclass(frozen=True, slots=True)
class CardProcessReading:
    """Hold one entry of a card's process list."""

    pid: int
    used_bytes: Known[int]
    sm_pct: Known[float]


@dataclass(frozen=True, slots=True)
class Fast:
    """Hold what is read of a card each second."""

    busy: Known[Busy]
    memory_busy_pct: Known[float]
    decoder_pct: Known[float]
    jpeg_pct: Known[float]
    power_w: Known[float]
    sm_clock_mhz: Known[float]
    temperature_c: Known[float]
    memory_temperature_c: Known[float]
    reasons: Known[int]  # clock event reasons at this moment, a bit mask
    counters: Counters
    memory_used_bytes: Known[int]
    memory_total_bytes: Known[int]
    gpm: Known[Gpm]
    processes: Known[tuple[CardProcessReading, ...]]
    instances: tuple[MigInstance, ...]

    @property
    def is_blank(self) -> bool:
        """Tell whether nothing at all was read."""
        told = (self.busy, self.power_w, self.sm_clock_mhz, self.temperature_c, self.memory_used_bytes)
        return not any(map(is_known, (*told, self.processes, self.reasons, self.gpm)))


@dataclass(frozen=True, slots=True)
class Slow:
    """Hold what is read of a card every 10 s."""

    power_limit_w: Known[float]
    memory_clock_mhz: Known[float]
    margin_c: Known[float]
    pcie_generation: Known[int]
    pcie_width: Known[int]
    mig: Known[bool]


@dataclass(frozen=True, slots=True)
class Health:
    """Hold what is read of a card every 30 s."""

    ecc_uncorrected: Known[int]
    remapped_rows_pending: Known[bool]
    remapped_rows_failed: Known[bool]
    recovery_action: Known[int]


@dataclass(frozen=True, slots=True)
class CardIdentity:
    """Hold what is read of a card once, and repeated every 30 s."""

    name: Known[str]
    minor: Known[int]  # the N of /dev/nvidiaN
    sm_clock_max_mhz: Known[float]
    memory_clock_max_mhz: Known[float]
    pcie_generation_max: Known[int]
    pcie_width_max: Known[int]
    slowdown_c: Known[float]
    is_pcie: Known[bool]  # it is connected by PCIe; chips that hold CPU and GPU are not (GB10)


@dataclass(frozen=True, slots=True)
class CardLine:
    """Hold one reading of one card.

    ``taken_ns`` is CLOCK_MONOTONIC before the first call, ``next_s`` when the next line is due. ``lost`` says
    why a card that no longer answers is lost.
    """

    index: int
    uuid: str
    taken_ns: int
    next_s: float
    lost: Applicable[str]
    fast: Fast
    slow: Applicable[Slow]
    health: Applicable[Health]
    identity: Applicable[CardIdentity]


@dataclass(frozen=True, slots=True)
class Line:
    """Hold one line of the pipe: exactly one of these."""

    driver: Applicable[DriverLine] = NOT_APPLICABLE
    failure: Applicable[FailureLine] = NOT_APPLICABLE
    xid: Applicable[XidLine] = NOT_APPLICABLE
    note: Applicable[NoteLine] = NOT_APPLICABLE
    card: Applicable[CardLine] = NOT_APPLICABLE


def encode_line(line: Line) -> bytes:
    """Encode a line with its newline; ValueError for NaN or an infinity."""
    return encode(line).encode() + b"\n"


def decode_line(raw: bytes) -> Line:
    """Decode a line; CodecError for anything that the child of this version does not write."""
    if b"NaN" in raw or b"Infinity" in raw:
        raise CodecError("a number is not finite")
    try:
        return decode(Line, raw.decode("utf-8", "replace"))
    except (ArithmeticError, RecursionError) as error:
        raise CodecError(f"not of this child: {error}") from error
