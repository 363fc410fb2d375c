"""Read which cards the kernel's driver has, without NVML: /proc/driver/nvidia/gpus/BUS/information.

Such a file names a card also while NVML does not answer. Reading it goes into the driver, which may
block: never in the tick. In a container it may list fewer cards, in a Slurm step more than NVML does.
"""

from __future__ import annotations

import os

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known
from tpmon.model.units import clean_text

MAX_CARDS = 64
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class DriverCard:
    """Hold a card as the kernel's driver names it; ``uuid`` is "" for one that never came up."""

    minor: int
    uuid: str = ""
    name: str = "unknown card"


Listed = Known[tuple[DriverCard, ...]]
"""The cards of the kernel's driver in the order of their PCI addresses, which is that of NVML."""


def parse_information(text: str) -> tuple[DriverCard, ...]:
    """Parse the file of one card; nothing for one that the driver leaves out, or without a number."""
    pairs = (line.partition(":") for line in text.splitlines())
    told = {key.strip(): clean_text(value.strip(), 96) for key, _, value in pairs}
    minor, uuid = told.get("Device Minor", ""), told.get("GPU UUID", "")
    if not minor.isdecimal() or told.get("GPU Excluded") == "Yes":
        return ()
    return (DriverCard(int(minor), "" if "?" in uuid else uuid, told.get("Model", "unknown card")),)


def read_driver_cards(proc: str = "/proc") -> tuple[DriverCard, ...]:
    """Read the cards of the kernel's driver; raises OSError where it lists none."""
    root = f"{proc}/driver/nvidia/gpus"
    found: list[DriverCard] = []
    for bus in sorted(os.listdir(root))[:MAX_CARDS]:
        with open(f"{root}/{bus}/information", encoding="utf-8", errors="replace") as file:
            found += parse_information(file.read(_MAX_BYTES))
    return tuple(found)
