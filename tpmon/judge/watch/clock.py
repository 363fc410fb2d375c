"""Tell for how long nothing of a job has moved: as tpmon saw it, and by signs from before it came. Pure.

A sign is the last moment at which the job was alive: no hang is older. Log, connections and hook give signs
again and again, so their silence counts; what is written or started now and then only makes a hang younger.
"""

from __future__ import annotations

from tpmon.judge.watch.tracker import WatchedTime, age_ns, event_age_s, log_age_s
from tpmon.model.figures import Origin
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.model.process import Role

OWN_S = 4.0
"""How long tpmon itself must have seen nothing move, whatever older signs say."""
OUTSIDE_S = 240.0
"""Age above which the last line of the log and the last data of connections count as signs."""
OLD_S = 1800.0
"""Age above which an older sign alone shows that a slow wait has lasted too long."""

LAST_STEP = "last step by the hook"
LAST_WRITE = "last log write"
LAST_DATA = "last data on its connections"
LAST_FILE = "last write of an open file"
LAST_START = "start of its youngest worker"
ORIGIN_OF_SIGN = {
    LAST_WRITE: Origin.LOG,
    LAST_STEP: Origin.HOOK,
    LAST_DATA: Origin.NETWORK,
    LAST_FILE: Origin.FILES,
    LAST_START: Origin.PROC,
}


@dataclass(frozen=True, slots=True)
class Quiet:
    """Hold how long nothing moved: as tpmon saw it, by older signs, and by connections; 0: not known."""

    own_s: float
    cornered_s: float
    outside_s: float
    sign: str
    idle_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the longest time that is known."""
        return max(self.own_s, self.outside_s if self.own_s >= OWN_S else 0.0)

    def slow_s(self, *, logs: bool, awaits: bool) -> float:
        """Return for how long, at least, a wait that may last minutes has lasted.

        Logs are old in runs that write seldom, and people attach to runs that pause; connections and hook
        report every step. ``logs``: rank 0 runs here, as the others' logs are always old. ``awaits``: it was
        long seen to wait, with rank 0, for a rank elsewhere: a rank that waits saves nothing, its log counts.
        """
        exact = self.sign in (LAST_STEP, LAST_DATA) or (logs and (awaits or self.outside_s >= OLD_S))
        outside_s = self.outside_s if exact else min(self.outside_s, self.idle_s)
        return max(self.own_s, outside_s if self.own_s >= OWN_S else 0.0)


def connections_age_s(frame: Frame) -> float | None:
    """Return how long ago a connection of the job last sent or received data, None where there is none."""
    sockets = frame.sockets
    if not is_known(sockets) or sockets.connections == 0:
        return None
    ages = [one for one in (sockets.last_send_s, sockets.last_receive_s) if is_known(one)]
    return min(ages) if ages else None


def see_quiet(watch: WatchedTime, frame: Frame) -> Quiet:
    """Say for how long nothing has moved."""
    own_s = (frame.taken_ns - watch.still_ns) / 1e9 if watch.still_ns else 0.0
    cornered_s = (frame.taken_ns - watch.cornered_ns) / 1e9 if watch.cornered_ns else 0.0
    written, talked = log_age_s(frame), connections_age_s(frame)
    outside_s, sign = 0.0, ""
    if written is not None:
        outside_s, sign = written, LAST_WRITE
    elif talked is not None:
        outside_s, sign = talked, LAST_DATA
    # A file alone is no sign of silence, not even a journal: many get a line an epoch, and a slow batch would
    # be a hang after seconds. It dates a hang that tpmon saw long enough by itself.
    for later_s, later in ((file_age_s(frame), LAST_FILE), (find_youngest_s(frame), LAST_START)):
        if sign and later_s is not None and later_s < outside_s:
            outside_s, sign = later_s, later
    if outside_s < OUTSIDE_S:
        outside_s, sign = 0.0, ""
    event_s = event_age_s(frame)
    # A log is written seldom; the hook reports each part of a step, so its time counts as it is.
    if event_s is not None and (written is None or event_s <= written):
        outside_s, sign = event_s, LAST_STEP
    # A job that was seen to get on since then was alive: older signs are for the time before tpmon.
    if watch.moved_ns and watch.moved_ns > frame.taken_ns - age_ns(outside_s):
        outside_s, sign = 0.0, ""
    return Quiet(max(own_s, 0.0), max(cornered_s, 0.0), outside_s, sign, talked or 0.0)


def file_age_s(frame: Frame) -> float | None:
    """Return how long ago a rank last wrote to another file that it holds open, None where none is known.

    The job was alive then. If others write the file, too (a console log, wandb), a hang seems younger than it
    is, never older. Silence since then shows nothing: many files are written once and kept open.
    """
    written = frame.written
    return max(0.0, (frame.taken - written.last_write).total_seconds()) if is_known(written) else None


def keeps_journal(frame: Frame) -> bool:
    """Tell whether a rank writes an open file besides its log throughout a run, which may date a hang."""
    return is_known(frame.written) and frame.written.journal


def find_youngest_s(frame: Frame) -> float | None:
    """Return how long ago the youngest loader worker was started, None where there is none.

    Its rank was alive then: no hang is older. Old workers show nothing, as they live for an epoch or a whole
    run. A pool's thread may replace a dead worker in a hang, which then seems younger.
    """
    started = [one.started for one in frame.processes if one.role is Role.WORKER]
    return max(0.0, (frame.taken - max(started)).total_seconds()) if started else None
