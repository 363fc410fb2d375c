"""Find what a job itself recorded of its collectives, and read it.

For each rank first its debug server (now), else the file of its FlightRecorder (at the last timeout); NCCL's
RAS once a host. Nothing is opened in the job, and only the job's own servers are asked. Pipes of the job are
written to only when a person asks for it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar

from tpmon.model.frozen import dataclass
from tpmon.model.known import Known, Missing, is_known, known_or
from tpmon.model.process import Role
from tpmon.model.results.collectives import (
    CollectivesReading,
    RankRecord,
    RasReport,
    RecordSource,
    SourceNote,
)
from tpmon.model.text.redaction import admit_text
from tpmon.model.text.unpickle import PlainError
from tpmon.probe.base.procread import read_thread_names
from tpmon.probe.base.worker import read_all, read_within
from tpmon.probe.host.network import ListeningSocket, read_all_listeners, read_listeners
from tpmon.probe.job.job import Job
from tpmon.probe.records.flight_recorder import (
    WRITTEN_S,
    RecordError,
    ask_pipe,
    parse_pickle,
    read_environment,
    read_record_file,
    wait_for_record,
)
from tpmon.probe.records.servers import RAS_S, ask_records, find_door, find_port, read_ras

PIPE_PRICE = (
    "--fr-pipe: a byte is written into the pipe of each rank, and its NCCL watchdog writes its record into a"
    " file of up to some MB; for the Python lines in it the watchdog waits for the GIL"
)
NCCL_THREAD = "pt_nccl_watchdg"  # torch's name for NCCL's watchdog thread (comm is cut at 15 characters)
SERVERS_S = 6.0  # for all servers together; one answers within 5 ms
FILES_S = 15.0  # for all files together; one of 2,000 calls takes 0.3 s of CPU
MOST_AT_ONCE = 16
_READ_S = 2.0
_REASON_CHARS = 200
_TOO_LATE = Missing("no answer in time")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Rank:
    """Hold one rank with what its start environment says of its records."""

    pid: int
    number: int
    started: datetime
    told: Known[dict[str, str]]

    @property
    def environment(self) -> dict[str, str]:
        if isinstance(self.told, Missing):
            raise OSError(f"its environment: {self.told.reason}")
        return self.told


def read_collectives(job: Job, *, someone_waits: bool, ask_pipes: bool = False) -> CollectivesReading:
    """Read the records of every rank of this host, and NCCL's RAS report.

    NCCL's recorder is asked only if ``someone_waits``: its answer queries CUDA events, which would kill a
    rank that is capturing a CUDA graph. ``ask_pipes`` first writes into the ranks' pipes: only when a person
    asks for it.
    """
    host = os.uname().nodename
    ranks = _find_ranks(job)
    if not ranks:
        return CollectivesReading((), (), ())
    try:
        listening: Known[tuple[ListeningSocket, ...]] = read_all_listeners()
    except (OSError, ValueError) as error:
        listening = Missing(f"the kernel does not tell who listens: {error}")
    servers = _read_each(
        ranks, partial(_read_server, host=host, listening=listening, ask_nccl=someone_waits), SERVERS_S
    )
    rest = [one for one in ranks if not is_known(servers[one.number])]
    files = _read_each(rest, partial(_read_file, host=host, ask=ask_pipes), FILES_S + WRITTEN_S * ask_pipes)
    ras = _try(partial(_read_ras, ranks, listening))
    records = {number: answer for number, answer in (servers | files).items() if is_known(answer)}
    by_source = (
        (RecordSource.SERVER, list(servers.values())),
        (RecordSource.PIPE if ask_pipes else RecordSource.FILE, list(files.values())),
        (RecordSource.RAS, [ras]),
    )
    return CollectivesReading(
        records=tuple(records[number] for number in sorted(records)),
        ras=(ras,) if is_known(ras) else (),
        notes=tuple(
            SourceNote(host, source, _describe_missed(these)) for source, these in by_source if these
        ),
    )


def _find_ranks(job: Job) -> list[_Rank]:
    """Return the ranks of this host; none where there is no other anywhere."""
    members = [one for one in job.members if one.role is Role.RANK]
    if len(members) < 2 and not (is_known(job.world_size) and job.world_size > 1):
        return []  # a lone process waits for nobody
    return [
        _Rank(pid, one.rank, one.started, read_within(_READ_S, partial(read_environment, pid)))
        for one in members
        if is_known(one.rank) and (pid := one.identity.pid)
    ]


def _read_each(ranks: Sequence[_Rank], read: Callable[[_Rank], T], seconds: float) -> dict[int, Known[T]]:
    """Read of every rank, several at once; one that blocks costs only its own answer."""
    reads = [(partial(_try, partial(read, one)), seconds) for one in ranks]
    answers = read_all("records", reads, MOST_AT_ONCE)
    found = zip(ranks, answers, strict=True)
    return {one.number: _TOO_LATE if answer is None else answer for one, answer in found}


def _try(read: Callable[[], Known[T]]) -> Known[T]:
    """Read one record; a broken one must hide neither the others nor the dump that it belongs to."""
    try:
        return read()
    except (OSError, PlainError, RecordError) as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Missing(admit_text(words or type(error).__name__, _REASON_CHARS))
    except Exception as error:  # noqa: BLE001  # the reason takes the record's place
        return Missing(admit_text(f"not understood: {type(error).__name__}: {error}", _REASON_CHARS))


def _read_server(
    one: _Rank, *, host: str, listening: Known[tuple[ListeningSocket, ...]], ask_nccl: bool
) -> RankRecord:
    door = find_door(one.pid, one.environment, known_or(listening, ()))
    if isinstance(door, Missing):
        raise OSError(door.reason)
    now = datetime.now().astimezone()
    origin = RankRecord(host, one.pid, one.number, RecordSource.SERVER, now, from_start=False, groups=())
    return ask_records(door, origin, with_nccl=ask_nccl and NCCL_THREAD in read_thread_names(one.pid))


def _read_file(one: _Rank, *, host: str, ask: bool) -> RankRecord:
    pid, environment = one.pid, one.environment
    if ask:
        asked = datetime.now().astimezone()
        ask_pipe(pid, one.number, environment)
        file = wait_for_record(pid, one.number, environment, asked)
    else:
        file = read_record_file(pid, one.number, environment, one.started)
    source = RecordSource.PIPE if ask else RecordSource.FILE
    origin = RankRecord(host, one.pid, one.number, source, file.written, from_start=False, groups=())
    return parse_pickle(file.data, origin)


def _read_ras(ranks: Sequence[_Rank], listening: Known[tuple[ListeningSocket, ...]]) -> Known[RasReport]:
    with_nccl = [one for one in ranks if NCCL_THREAD in read_thread_names(one.pid)]
    if not with_nccl:
        return Missing("no rank uses NCCL")
    if isinstance(listening, Missing):
        return listening
    port = find_port([one.told for one in with_nccl if is_known(one.told)])
    if isinstance(port, Missing):
        return port
    for one in with_nccl:
        mine = read_listeners(one.pid, listening)
        if isinstance(mine, Missing):
            return mine
        address = next((listener.address for listener in mine if listener.port == port), "")
        if address:
            return read_within(RAS_S + 1.0, partial(read_ras, port, address=address))
    return Missing(f"no rank of this job listens on port {port}: another job has it, or NCCL is before 2.24")


def _describe_missed(answers: Sequence[Known[object]]) -> str:
    """Say why answers are missing, by the commonest reason, and of how many; "" for none."""
    reasons = Counter(one.reason for one in answers if isinstance(one, Missing))
    if not reasons:
        return ""
    reason, _ = reasons.most_common(1)[0]
    count = reasons.total()
    return reason if count == len(answers) else f"{count} of {len(answers)}: {reason}"
