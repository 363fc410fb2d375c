"""What several analyses of one trace share, computed once."""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.model.trace import MemoryPeak
from tpmon.model.trace_gaps import DeviceGaps
from tpmon.model.trace_tables import ProductRow
from tpmon.trace.breakdown import Activity
from tpmon.trace.columns import Ints
from tpmon.trace.gaps import HostCauses
from tpmon.trace.nesting import Nest
from tpmon.trace.operators import OperatorTimes
from tpmon.trace.products import Counted
from tpmon.trace.read import Trace
from tpmon.trace.steps import Steps


@dataclass(frozen=True, slots=True)
class Parts:
    """Hold a trace with its steps, nested operators, and what each piece of device work belongs to.

    ``launched_by`` is the call, ``launchers`` the operator of each row of device work, -1 without one.
    ``gaps`` are those of the devices that count.
    """

    trace: Trace
    steps: Steps
    ops: Nest
    times: OperatorTimes
    launched_by: Ints
    launchers: Ints
    activity: Activity
    causes: HostCauses
    counted: Counted
    gaps: tuple[DeviceGaps, ...]
    products: tuple[ProductRow, ...]
    peaks: tuple[MemoryPeak, ...]
