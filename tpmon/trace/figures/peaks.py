"""What cards can do at best, by the data sheets of their makers: dense, at boost clock."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tpmon.model.frozen import dataclass
from tpmon.trace.reading.schema import Device

_LARGE_BYTES = 60_000_000_000
"""Of two cards of one name the one with more memory has the faster one."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Hold the best of a card: GB/s of its memory, TFLOP/s by number type."""

    gb_s: float
    tflop_s: Mapping[str, float]


def _types(
    fp32: float, tf32: float = 0.0, half: float = 0.0, fp8: float = 0.0, bf16: bool = True
) -> dict[str, float]:
    """Lay out TFLOP/s; 0 for what a card cannot."""
    found = {"fp32": fp32, "tf32": tf32, "fp16": half, "bf16": half if bf16 else 0.0, "fp8": fp8}
    return {name: value for name, value in found.items() if value}


_HOPPER = _types(66.9, 494.7, 989.4, 1978.9)
_CDNA3 = _types(163.4, 653.7, 1307.4, 2614.9)
_AMPERE = _types(19.5, 156, 312)
_SHEETS: tuple[tuple[str, Peak], ...] = (
    (r"V100.*PCI", Peak(900, _types(14.0, half=112, bf16=False))),
    (r"V100", Peak(900, _types(15.7, half=125, bf16=False))),
    (r"\bT4\b", Peak(320, _types(8.1, half=65, bf16=False))),
    (r"A[18]00.*80GB PCI", Peak(1935, _AMPERE)),
    (r"\bA[18]00\b", Peak(1555, _AMPERE)),
    (r"\bA30\b", Peak(933, _types(10.3, 82, 165))),
    (r"\bA10\b", Peak(600, _types(31.2, 62.5, 125))),
    (r"\bA40\b", Peak(696, _types(37.4, 74.8, 149.7))),
    (r"RTX A6000", Peak(768, _types(38.7, 77.4, 154.8))),
    (r"RTX 6000 Ada", Peak(960, _types(91.1, 182.1, 364.2, 728.5))),
    (r"\bL4\b", Peak(300, _types(30.3, 60, 121, 242))),
    (r"\bL40S\b", Peak(864, _types(91.6, 183, 362, 733))),
    (r"\bL40\b", Peak(864, _types(90.5, 90.5, 181, 362))),
    (r"H20\b", Peak(4000, _types(44, 74, 148, 296))),
    (r"\bH200", Peak(4800, _HOPPER)),
    (r"GH200", Peak(4000, _HOPPER)),
    (r"H[18]00.*PCI", Peak(2000, _types(51.2, 378, 756, 1513))),
    (r"H100 NVL", Peak(3938, _types(60, 417.5, 835.5, 1671))),
    (r"H[18]00", Peak(3350, _HOPPER)),
    (r"\bB200", Peak(8000, _types(75, 1125, 2250, 4500))),
    (r"RTX 3090(?! Ti)", Peak(936, _types(35.6, 35.6, 71.2))),
    (r"RTX 4090(?! (?:D|Lap))", Peak(1008, _types(82.6, 82.6, 165.2, 330.3))),
    (r"RTX 5090(?! (?:D|Lap))", Peak(1792, _types(104.8, 104.8, 209.5, 419))),
    (r"MI300X", Peak(5300, _CDNA3)),
    (r"MI325X", Peak(6000, _CDNA3)),
    (r"MI250X", Peak(1638, _types(47.9, half=191.5))),
    (r"MI210", Peak(1638, _types(45.3, half=181))),
)
"""The first that the name matches. A card of AMD with two dies is one device for each: half of its sheet."""


def find_peak(card: Device | None) -> Peak | None:
    """Return the peak of a card by its name, None for one that is not in the table.

    A slice of a card (MIG) bears the name of the whole, and has a part of it that depends on its profile.
    """
    if card is None or re.search(r"\bMIG\b", card.name):
        return None
    for pattern, peak in _SHEETS:
        if re.search(pattern, card.name):
            if peak.tflop_s is _AMPERE and peak.gb_s == 1555 and card.memory_bytes > _LARGE_BYTES:
                return Peak(2039, _AMPERE)
            return peak
    return None
