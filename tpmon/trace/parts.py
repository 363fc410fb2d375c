"""What several analyses of one trace share, computed once."""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.model.results.trace import DeviceGaps, MemoryPeak
from tpmon.model.results.trace_tables import ProductRow
from tpmon.trace.figures.breakdown import Activity
from tpmon.trace.figures.gaps import HostCauses
from tpmon.trace.figures.operators import OperatorTimes
from tpmon.trace.figures.products import CountedProduct
from tpmon.trace.figures.steps import TraceSteps
from tpmon.trace.reading.columns import Ints
from tpmon.trace.reading.read import Trace
from tpmon.trace.reading.spans import Nest


@dataclass(frozen=True, slots=True)
class Parts:
    """Hold a trace with its steps, nested operators, and what each piece of device work belongs to.

    ``launched_by`` is the call, ``launchers`` the operator of each row of device work, -1 without one.
    ``gaps`` are those of the devices that count.
    """

    trace: Trace
    steps: TraceSteps
    ops: Nest
    times: OperatorTimes
    launched_by: Ints
    launchers: Ints
    activity: Activity
    causes: HostCauses
    counted: CountedProduct
    gaps: tuple[DeviceGaps, ...]
    products: tuple[ProductRow, ...]
    peaks: tuple[MemoryPeak, ...]
