"""What each tab of a trace holds, and whether it holds anything.

What the analysis has and no tab knows stands below, as a plain table of its fields.
"""

from __future__ import annotations

import dataclasses

from tpmon.model.known import Applicable, is_known
from tpmon.model.results.trace import RankTable, TraceFile
from tpmon.ui.kit.sheet import Block, plain_sheet
from tpmon.ui.traces.overview import list_gaps, list_overview
from tpmon.ui.traces.state import Tab
from tpmon.ui.traces.tables import list_kernels, list_operators, list_ranks
from tpmon.ui.traces.trace_memory import list_memory

_KNOWN: dict[str, frozenset[str]] = {
    "": frozenset(("overview", "gaps", "host_us", "operators", "kernels", "copies", "memory"))
    | {"communication", "conditions", "verdict", "lost", "patterns"}
    | {"ranges", "products", "hot_kernel", "modules", "frames", "shapes", "lines"},
    "overview": frozenset(("step_table", "breakdown_us", "overlapping_us", "gpus", "notes")),
    "memory": frozenset(("peaks", "by_operator", "curves")),
    "communication": frozenset(("collectives",)),
    "verdict": frozenset(("advice", "shares")),
}
"""What has a table of its own: of a TraceFile, and of its parts."""
_LISTS = {
    Tab.OVERVIEW: list_overview,
    Tab.GAPS: list_gaps,
    Tab.OPS: list_operators,
    Tab.KERNELS: list_kernels,
    Tab.MEMORY: list_memory,
}
"""What each tab holds of a trace by itself."""
_WORDS = (
    (Tab.MEMORY, ("memory", "alloc", "fragment", "curve")),
    (Tab.KERNELS, ("kernel", "dtype", "matmul", "copies", "bandwidth")),
    (Tab.RANKS, ("comm", "rank", "collective")),
    (Tab.GAPS, ("gap", "idle", "sync")),
)
"""Where a result goes by its name; else to the operators."""


def list_tab(file: TraceFile, ranks: Applicable[RankTable], tab: Tab) -> list[Block]:
    """Return what a tab holds of a trace."""
    blocks = _LISTS[tab](file) if tab in _LISTS else list_ranks(ranks, file)
    return [*blocks, *_list_others(file, tab)]


def has_data(file: TraceFile, ranks: Applicable[RankTable], tab: Tab) -> bool:
    """Tell whether a trace holds anything for a tab."""
    if tab is Tab.OVERVIEW:
        return True
    if tab is Tab.GAPS:
        return bool(file.gaps) or is_known(file.host_us)
    if tab is Tab.OPS:
        return bool(file.operators or file.ranges) or bool(_list_others(file, tab))
    if tab is Tab.KERNELS:
        return bool(file.kernels or file.copies)
    if tab is Tab.MEMORY:
        return bool(file.memory.peaks)
    return is_known(ranks) or is_known(file.communication)


def _is_table(value: object) -> bool:
    if isinstance(value, tuple):
        return len(value) > 0 and dataclasses.is_dataclass(value[0])
    return is_known(value) and dataclasses.is_dataclass(value)


def _tab_of(name: str) -> Tab:
    return next((tab for tab, words in _WORDS if any(word in name for word in words)), Tab.OPS)


def is_other(holder: str, name: str, value: object) -> bool:
    """Tell whether a field of a TraceFile, or of its part ``holder``, has no table of its own."""
    return holder in _KNOWN and name not in _KNOWN[holder] and _is_table(value)


def _list_others(file: TraceFile, tab: Tab) -> list[Block]:
    """Make a plain table of each result that has none of its own."""
    found: list[Block] = []
    for name in _KNOWN:
        holder = getattr(file, name) if name else file
        if not is_known(holder):
            continue
        for field in dataclasses.fields(holder):
            value = getattr(holder, field.name)
            if is_other(name, field.name, value) and _tab_of(f"{name} {field.name}") is tab:
                found += _plain_blocks(field.name.replace("_", " "), value)
    return found


def _plain_blocks(title: str, value: object) -> list[Block]:
    if isinstance(value, tuple):
        return [plain_sheet(title, value)]
    inner = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]  # type: ignore[arg-type]
    tables = [(name, one) for name, one in inner if _is_table(one)]
    if not tables:
        return [plain_sheet(title, (value,))]
    return [
        plain_sheet(f"{title}: {name.replace('_', ' ')}", one if isinstance(one, tuple) else (one,))
        for name, one in tables
    ]
