"""Say for how long nothing has moved: as tpmon saw it, and as signs from before it came tell. Pure.

A sign is the last moment at which the job was alive, so that no hang is older; how much younger one may be
depends on how often the job gives that sign. The log of a job, its connections and its hook tell of it again
and again, and their silence counts. What is written or started now and then only makes a hang younger.
"""

from __future__ import annotations

from tpmon.judge.watch.hook_progress import HOOK, event_age_s
from tpmon.judge.watch.tracker import Watch, age_ns, log_age_s
from tpmon.model.frame import Frame
from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.model.process import Role

OWN_S = 4.0
"""How long tpmon itself must have seen nothing move, whatever older signs say."""
OUTSIDE_S = 240.0
"""How old the last line of the log and the last data of the job's connections must be to count as signs."""
OLD_S = 1800.0
"""Age from which an older sign alone tells that what may last minutes has lasted too long."""

LAST_STEP = "last step by the hook"
LAST_WRITE = "last log write"
LAST_DATA = "last data on its connections"
LAST_FILE = "last write of an open file"
LAST_START = "start of its youngest worker"
SOURCE_OF_SIGN = {
    LAST_WRITE: "log",
    LAST_STEP: HOOK,
    LAST_DATA: "connections",
    LAST_FILE: "files",
    LAST_START: "processes",
}


@dataclass(frozen=True, slots=True)
class Quiet:
    """Hold for how long nothing moved: as tpmon saw it, and as older signs tell (0: none tells).

    ``idle_s`` is what the connections of the job tell of it, 0 where there are none.
    """

    own_s: float
    cornered_s: float
    outside_s: float
    sign: str
    idle_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the longest time that is known."""
        return max(self.own_s, self.outside_s if self.own_s >= OWN_S else 0.0)

    def meant_s(self, *, logs: bool, awaits: bool) -> float:
        """Return for how long at least what may last minutes has lasted.

        Its log is old in any run that writes seldom, and one that pauses is looked at because of that. Its
        connections and its hook tell of every step.

        Args:
            logs: whether rank 0 runs here; the others' logs are old in every run.
            awaits: whether it was seen to wait for long, with rank 0, for a rank elsewhere. Who waits saves
                nothing alone, so that its log counts.
        """
        exact = self.sign in (LAST_STEP, LAST_DATA) or (logs and (awaits or self.outside_s >= OLD_S))
        outside_s = self.outside_s if exact else min(self.outside_s, self.idle_s)
        return max(self.own_s, outside_s if self.own_s >= OWN_S else 0.0)


def connections_age_s(frame: Frame) -> float | None:
    """Return how long ago any connection of the job sent or received data, None where there is none."""
    sockets = frame.sockets
    if not is_known(sockets) or sockets.connections == 0:
        return None
    ages = [one for one in (sockets.last_send_s, sockets.last_receive_s) if is_known(one)]
    return min(ages) if ages else None


def see_quiet(watch: Watch, frame: Frame) -> Quiet:
    """Say for how long nothing has moved."""
    own_s = (frame.taken_ns - watch.still_ns) / 1e9 if watch.still_ns else 0.0
    cornered_s = (frame.taken_ns - watch.cornered_ns) / 1e9 if watch.cornered_ns else 0.0
    written, talked = log_age_s(frame), connections_age_s(frame)
    filed, youngest = file_age_s(frame), find_youngest_s(frame)
    outside_s, sign = 0.0, ""
    if written is not None:
        outside_s, sign = written, LAST_WRITE
    elif talked is not None:
        outside_s, sign = talked, LAST_DATA
    # A file alone is no sign of silence, not even a journal: many get a line an epoch, and a slow batch in
    # such a run would be a hang after seconds. It dates a hang that tpmon saw long enough by itself.
    if sign and filed is not None and filed < outside_s:
        outside_s, sign = filed, LAST_FILE
    if sign and youngest is not None and youngest < outside_s:
        outside_s, sign = youngest, LAST_START
    if outside_s < OUTSIDE_S:
        outside_s, sign = 0.0, ""
    event_s = event_age_s(frame)
    # A log is written seldom, a step tells of each of its parts: its time counts as it is.
    if event_s is not None and (written is None or event_s <= written):
        outside_s, sign = event_s, LAST_STEP
    # Who was seen to get on since then was alive, however seldom it writes: older signs are for
    # the time before tpmon came.
    if watch.moved_ns and watch.moved_ns > frame.taken_ns - age_ns(outside_s):
        outside_s, sign = 0.0, ""
    return Quiet(max(own_s, 0.0), max(cornered_s, 0.0), outside_s, sign, talked or 0.0)


def file_age_s(frame: Frame) -> float | None:
    """Return how long ago a rank last wrote into another file that it holds open, None where none is known.

    It tells that the job was alive then. Others may write the same file, a console log or one of wandb: then
    the hang is said to be younger than it is, and still no older. Of the silence since then it tells nothing:
    many files are written once and kept open, a lock, a cache, a data base.
    """
    written = frame.written
    return max(0.0, (frame.taken - written.last_write).total_seconds()) if is_known(written) else None


def keeps_journal(frame: Frame) -> bool:
    """Tell whether a rank holds a file open that is written piece by piece through a run, besides its log.

    The last write of such a file dates a hang where there is neither a log nor a connection.
    """
    return is_known(frame.written) and frame.written.journal


def find_youngest_s(frame: Frame) -> float | None:
    """Return how long ago the youngest loader worker was started, None where there is none.

    A rank starts its workers itself, so that it was alive then: no hang of it is older. That there are none
    younger tells nothing, as they live for an epoch, or for the whole run. A pool that replaces a dead worker
    does so from a thread, which lives on beside a hang: then that is said to be younger than it is, no older.
    """
    started = [one.started for one in frame.processes if one.role is Role.WORKER]
    return max(0.0, (frame.taken - max(started)).total_seconds()) if started else None
