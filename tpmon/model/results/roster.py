"""What the live list of jobs shows: a row a job, with its cheap figures and its newest verdict."""

from __future__ import annotations

from tpmon.model.frozen import dataclass
from tpmon.model.host import LogPace
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, Why
from tpmon.model.process import Identity
from tpmon.model.results.doctor import JobState, JobSummary
from tpmon.model.verdict import Finding

NOT_JUDGED_YET = Missing("not judged so far: jobs are judged in turn", Why.PENDING)


@dataclass(frozen=True, slots=True)
class JobReading:
    """Hold what one cheap reading tells of a job."""

    root: Identity
    summary: JobSummary
    processes: int
    cpu_cores: Known[float]
    """CPUs that its processes used since the reading before."""
    gpu_pct: Applicable[float]
    """The mean of the cards that it works on; not applicable where it is on none."""
    pace: Known[LogPace]
    log_age_s: Known[float]
    """How long ago one of its logs was written."""

    @property
    def is_stopped(self) -> bool:
        """Tell whether all of its ranks are stopped."""
        return self.summary.state is JobState.STOPPED


@dataclass(frozen=True, slots=True)
class JobsReading:
    """Hold one reading of all jobs, and how many Python processes could not be read and may be jobs too."""

    taken_ns: int
    jobs: tuple[JobReading, ...]
    unread: int = 0
    unanswered: int = 0


@dataclass(frozen=True, slots=True)
class JobRow:
    """Hold one row: a job that is there, or one that has ended while the list was open."""

    reading: JobReading
    finding: Known[Finding]
    """Its newest verdict, or why there is none."""
    judged_ns: Applicable[int] = NOT_APPLICABLE
    """When the verdict was found last."""
    is_looked_at: bool = False
    """Whether it is being judged now."""
    is_new: bool = False
    """Whether it came while the list was open, lately."""
    ended_ns: Applicable[int] = NOT_APPLICABLE


@dataclass(frozen=True, slots=True)
class Roster:
    """Hold the whole list at one moment."""

    taken_ns: int
    rows: tuple[JobRow, ...]
    unread: int = 0
    unanswered: int = 0
