"""Ask NCCL's RAS service (since 2.24, on by default) which ranks lag, are silent or are dead.

Every NCCL process tries to listen on one port of the loopback, of IPv4 or of IPv6, and one of a host gets
it. It is asked only where a process of this job has the port. NCCL's own RAS threads gather the answer over
their own connections; the training is not touched.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.results.collectives import RasProcess, RasRank, RasReport
from tpmon.model.text.redaction import admit_text
from tpmon.probe.base.socket import LOOPBACK, Conversation

PORT = 28028
ADDRESS_VARIABLE, ENABLE_VARIABLE = "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE"
GATHER_S = 2
"""How long NCCL waits for its other processes; it says which did not answer."""
ANSWER_S = GATHER_S + 2.0
MOST_BYTES = 4 << 20
MOST_RANKS = 1024
_MOST_ERRORS = 16
_LINE_BYTES = 4096
_OF_EVERYWHERE = {"0.0.0.0": LOOPBACK, "::": "::1"}  # noqa: S104  # compared, not bound
_PROTOCOL = 2

_VERSION = re.compile(r"NCCL version (\S+)")
_TOTAL = re.compile(r"\s*\d{1,9}(?:\s+\d{1,9}){4}\s*")
_COMMUNICATOR = re.compile(r"#\d+-\d+ \(([0-9a-f]+)\) ([A-Z]+)")
_COUNTS = re.compile(r"different (\w+) operation counts")
_LAUNCHED = re.compile(r"launched up to operation (\d{1,18})\b")
_STATUS = re.compile(r"have status (\w+)|has status (\w+)")
_REPORTED = re.compile(r"reported (.+?)(?: -- |$)")
_RANK = re.compile(r"\s*Rank (\d{1,9})\b")
_MANAGED = re.compile(r"managed by process (\d{1,10}) on node (\S+)")
_DEAD = re.compile(r"\s*(\d{1,9}) job process(?:es)? (?:is|are) considered dead")
_SILENT = re.compile(r"Missing communicator data from (\d{1,9}) job process")
_PROCESS = re.compile(r"\s*Process (\d{1,10}) on node (\S+)")
_MISSING_RANKS = re.compile(r"\s*The missing ranks?: ([\d, -]+)")
_PROBLEMS = {"INCOMPLETE": "no answer", "DEAD": "dead"}
_ROW = re.compile(r"\s*\d+\s+\d+\s+\d+\s+\S+\s+\d+\s+\d+\s+[A-Z]+\s+([A-Z,]+)\s*")


def find_port(environments: Sequence[Mapping[str, str]]) -> Known[int]:
    """Return the port that the ranks were told to use, or why there is none."""
    if any(one.get(ENABLE_VARIABLE) == "0" for one in environments):
        return Missing(f"{ENABLE_VARIABLE}=0 turned it off")
    told = next((one[ADDRESS_VARIABLE] for one in environments if one.get(ADDRESS_VARIABLE)), "")
    port = told.rpartition(":")[2]
    return int(port) if port.isdecimal() and len(port) < 6 and 0 < int(port) < 1 << 16 else PORT


def read_ras(port: int, seconds: float = ANSWER_S, address: str = LOOPBACK) -> RasReport:
    """Ask the service on a port of this host, at most for ``seconds``; ``address`` is where it listens.

    Raises:
        OSError: when nobody answers in time, or not as NCCL does.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as link:
        talk = Conversation(link, seconds)
        talk.connect((_OF_EVERYWHERE.get(address, address), port))
        talk.send(f"CLIENT PROTOCOL {_PROTOCOL}\n".encode())
        if not talk.read_line(_LINE_BYTES).startswith(b"SERVER PROTOCOL"):
            raise OSError("what listens there is no NCCL")
        talk.send(f"TIMEOUT {GATHER_S}\n".encode())
        if talk.read_line(_LINE_BYTES).strip() != b"OK":
            raise OSError("it does not take a time limit")
        talk.send(b"VERBOSE STATUS\n")
        return parse_ras(talk.read_all(MOST_BYTES).decode("utf-8", "replace"))


@dataclass(slots=True)
class _Place:
    """Hold where in the report a line stands: of which communicator, about what, and after which count."""

    communicator: str = ""
    problem: str = ""
    operation: Applicable[str] = NOT_APPLICABLE
    launched: Applicable[int] = NOT_APPLICABLE
    status: str = ""


@dataclass(slots=True)
class _Found:
    """Collect what a report says."""

    version: str = ""
    processes: Known[int] = field(default_factory=lambda: Missing("not in the report"))
    gpus: Known[int] = field(default_factory=lambda: Missing("not in the report"))
    errors: list[str] = field(default_factory=list)
    ranks: list[RasRank] = field(default_factory=list)
    most: dict[tuple[str, str], int] = field(default_factory=dict)
    dead: int = 0
    silent: int = 0
    lost: list[RasProcess] = field(default_factory=list)


def parse_ras(text: str) -> RasReport:
    """Parse the answer to VERBOSE STATUS: only what is wrong is listed rank by rank.

    Raises:
        OSError: when it is no such report.
    """
    found = _Found()
    place = _Place()
    for line in text.splitlines():
        _read_head(line, found)
        place = _move(line, place, found)
        if (rank := _RANK.match(line)) and place.communicator and len(found.ranks) < MOST_RANKS:
            found.ranks.append(_read_rank(line, int(rank[1]), place, found))
        elif (numbers := _MISSING_RANKS.match(line)) and place.communicator:
            room = MOST_RANKS - len(found.ranks)
            found.ranks += [_lose_rank(place, one) for one in _list_numbers(numbers[1], room)]
        elif (
            (process := _PROCESS.match(line)) and place.problem in _PROBLEMS and len(found.lost) < MOST_RANKS
        ):
            node, problem = admit_text(process[2], 80), _PROBLEMS[place.problem]
            found.lost.append(RasProcess(int(process[1]), node, problem))
    if not found.version:
        raise OSError("its answer is no report of NCCL")
    return RasReport(
        version=found.version,
        processes=found.processes,
        gpus=found.gpus,
        errors=tuple(dict.fromkeys(found.errors))[:_MOST_ERRORS],
        ranks=tuple(_add_most(one, found.most) for one in _name_processes(found)),
        dead=found.dead,
        silent=found.silent,
        lost=tuple(dict.fromkeys(found.lost)),
    )


def _list_numbers(text: str, most: int) -> list[int]:
    """List the first ``most`` numbers of "21, 24-26"."""
    numbers: list[int] = []
    for found in re.finditer(r"(\d{1,9})(?:-(\d{1,9}))?", text):
        room = most - len(numbers)
        if room <= 0:
            break
        numbers += range(int(found[1]), int(found[2] or found[1]) + 1)[:room]
    return numbers


def _lose_rank(place: _Place, rank: int) -> RasRank:
    unknown = NOT_APPLICABLE
    return RasRank(place.communicator, rank, "no answer", unknown, unknown, unknown, unknown, unknown)


def _name_processes(found: _Found) -> list[RasRank]:
    """Give missing ranks their processes, where the report names them elsewhere or there is but one."""
    known = {(one.communicator, one.rank): one for one in found.ranks if is_known(one.process)}
    missing = {one.rank for one in found.ranks if not is_known(one.process) and one.problem == "no answer"}
    lost = {(one.process, one.node) for one in found.lost}

    def name(one: RasRank) -> RasRank:
        if is_known(one.process) or one.problem != "no answer":
            return one
        if other := known.get((one.communicator, one.rank)):
            return replace(one, process=other.process, node=other.node)
        if len(lost) == len(missing) == 1:
            process, node = next(iter(lost))
            return replace(one, process=process, node=node)
        return one

    return [name(one) for one in found.ranks]


def _read_head(line: str, found: _Found) -> None:
    if not found.version and (version := _VERSION.match(line)):
        found.version = admit_text(version[1], 40)
    if not is_known(found.gpus) and _TOTAL.fullmatch(line):
        numbers = [int(word) for word in line.split()]
        found.processes, found.gpus = numbers[3], numbers[4]
    if (row := _ROW.fullmatch(line)) and row[1] != "OK":
        found.errors += row[1].split(",")
    if dead := _DEAD.match(line):
        found.dead = int(dead[1])
    if silent := _SILENT.search(line):
        found.silent = int(silent[1])


def _move(line: str, place: _Place, found: _Found) -> _Place:
    """Return where the lines after this one stand."""
    if head := _COMMUNICATOR.match(line):
        return _Place(head[1], head[2])
    if line and not line[0].isspace():
        return _Place(problem=line.strip())  # another part of the report
    if _RANK.match(line) or not place.communicator:
        return place
    if counts := _COUNTS.search(line):
        return _Place(place.communicator, place.problem, counts[1])
    launched: Applicable[int] = place.launched
    if count := _LAUNCHED.search(line):
        launched = int(count[1])
    elif "not launched any operations" in line:
        launched = 0
    if is_known(launched) and is_known(place.operation):
        key = (place.communicator, place.operation)
        found.most[key] = max(found.most.get(key, 0), launched)
    status = _STATUS.search(line)
    return _Place(
        place.communicator, place.problem, place.operation, launched, status[1] or status[2] if status else ""
    )


def _read_rank(line: str, rank: int, place: _Place, found: _Found) -> RasRank:
    launched = place.launched
    if is_known(place.operation):
        if count := _LAUNCHED.search(line):
            launched = int(count[1])
        elif "not launched any operations" in line:
            launched = 0
        if is_known(launched):
            key = (place.communicator, place.operation)
            found.most[key] = max(found.most.get(key, 0), launched)
    managed = _MANAGED.search(line)
    return RasRank(
        communicator=place.communicator,
        rank=rank,
        problem=_say_problem(line, place),
        operation=place.operation,
        launched=launched,
        most_launched=NOT_APPLICABLE,
        process=int(managed[1]) if managed else NOT_APPLICABLE,
        node=admit_text(managed[2], 80) if managed else NOT_APPLICABLE,
    )


def _say_problem(line: str, place: _Place) -> str:
    if is_known(place.operation):
        return "launched"
    if status := _STATUS.search(line):
        return f"status {status[1] or status[2]}"
    if place.status:
        return f"status {place.status}"
    if reported := _REPORTED.search(line):
        return admit_text(f"reported {reported[1]}", 80)
    return "no answer" if place.problem == "INCOMPLETE" else place.problem.lower()


def _add_most(one: RasRank, most: Mapping[tuple[str, str], int]) -> RasRank:
    if not is_known(one.operation) or not is_known(one.launched):
        return one
    count = most.get((one.communicator, one.operation), one.launched)
    behind = (
        "behind" if one.launched < count else "ahead of the rest" if one.launched == count else one.problem
    )
    return RasRank(
        one.communicator, one.rank, behind, one.operation, one.launched, count, one.process, one.node
    )
