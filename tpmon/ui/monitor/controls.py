"""What the screen is given: options, and what it may ask of others."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Union

from tpmon.model.dump import DumpRequest
from tpmon.model.frozen import dataclass
from tpmon.model.known import Applicable
from tpmon.model.results.capture import CaptureAnswer, CaptureChoice, CaptureRequest, CaptureUpdate
from tpmon.model.results.results import DumpUpdate, SampleUpdate
from tpmon.model.sample import SampleRequest
from tpmon.ui.monitor.state import ViewState


class Errand(Enum):
    """Name what the screen may ask for without saying more."""

    END_SAMPLING = "end the sampling early, and keep what it has"
    WRITE_SAMPLES = "write what was sampled into files for other tools"
    WRITE_BUNDLE = "write a bundle for a ticket"


@dataclass(frozen=True, slots=True)
class Notice:
    """Say in one line what became of an errand; it is printed again when the screen ends.

    What is ``passing`` tells how far the errand is, and is not printed again. ``trace`` is the one that
    was written, "" for none.
    """

    text: str
    passing: bool = False
    trace: str = ""


Order = Union[DumpRequest, SampleRequest, CaptureRequest, CaptureChoice, CaptureAnswer, Errand]
"""What a key may ask of the session."""
Reading = Union[DumpUpdate, SampleUpdate, CaptureUpdate]
"""What is read for an order, also while it grows."""
Result = Union[Reading, Notice]
"""What comes of an order."""
Asked = tuple[ViewState, Applicable[Order]]
"""The picture that follows a key, and what to ask the session for, if anything."""


@dataclass(frozen=True, slots=True)
class ScreenOptions:
    """Hold what the command line decides about the screen."""

    interval_s: float
    ascii_only: bool
    bell: bool = False
    """Ring the terminal bell when the verdict turns bad."""
    readonly: bool = False
    """Offer no key that stops a process of the job."""
    no_stacks: bool = False
    """Offer no sampling of stacks, and write bundles without them."""


@dataclass(frozen=True, slots=True)
class Controls:
    """Hold what the screen may ask of others; no call may block."""

    set_interval: Callable[[float], None]
    stop: Callable[[], None]
    ask: Callable[[Order], None]
    write: Callable[[Reading], str]
    """Write what was read as text, to be pasted into a ticket."""
    trace_command: Callable[[str], tuple[str, ...]]
    """Return the command that shows a trace on the terminal until it is left."""
