"""Put together the members of one job and what is known of it as a whole."""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from functools import lru_cache, partial

from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Known, Missing, is_known
from tpmon.model.process import EnvironmentSetting, Identity, LoopThread, Role
from tpmon.model.text.redaction import HIDDEN, admit_text
from tpmon.model.text.secrets import rate_name
from tpmon.probe.base.procread import (
    PROC,
    SHOWN_NAME,
    TICKS_PER_S,
    Mapped,
    StatLine,
    boot_time_s,
    has_ended,
    read_file,
    read_status,
    started_at,
)
from tpmon.probe.base.worker import read_within
from tpmon.probe.job.process_facts import WORKER_UNREAD, Facts, read_facts_of
from tpmon.probe.job.roles import RolePart, assign_parts

NO_TORCH = Missing("no process of the job has torch mapped yet")
NAMED_WORKERS_SINCE = (2, 5)
_FILE_S = 1.0
_NAME_S = 0.5
_VERSION = re.compile(r"__version__\s*=\s*['\"]([^'\"]+)")
_NUMBERS = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Loop:
    """Name the thread of a training loop; ``said`` is the number that py-spy has for it."""

    thread: LoopThread
    said: int


@dataclass(frozen=True, slots=True)
class Member:
    """Hold one process of a job as it is known from outside; ``parent`` is its parent PID now or last."""

    identity: Identity
    parent: int
    role: Role
    rank: Applicable[int]
    local_rank: Applicable[int]
    worker: Applicable[int]
    rank_pid: Applicable[int]
    name: str
    label: str
    started: datetime
    environment: Known[tuple[EnvironmentSetting, ...]]
    loop: Applicable[Loop] = NOT_APPLICABLE  # where the training loop is not in the main thread
    is_loop_told: bool = False  # its stacks have shown which thread that is

    @property
    def loop_tid(self) -> int:
        """Return the TID of the thread that runs the training loop."""
        return self.loop.thread.tid if is_known(self.loop) else self.identity.pid


@dataclass(frozen=True, slots=True)
class Job:
    """Hold a job, its members oldest first; ``remark``: how a PID was understood that was not taken as is."""

    root: Identity
    asked_pid: int
    members: tuple[Member, ...]
    script: str
    uid: int  # of the first rank: what is above it can be root's, such as slurmstepd
    user: str
    start: datetime
    world_size: Applicable[int]
    rank_source: str
    torch_version: Known[str]
    python_version: Known[str]
    remark: str
    facts: Mapping[int, Facts] = field(repr=False, compare=False)
    """Of each process, also of shells between the members; ``Membership`` keeps it up to date."""
    parts: Mapping[int, RolePart] = field(repr=False, compare=False)

    @property
    def root_answers(self) -> bool:
        """Tell whether the exit code of the root says how the ranks ended."""
        root = self.facts.get(self.root.pid)
        return root is None or root.program.answers


def list_children(table: Mapping[int, StatLine]) -> Mapping[int, Sequence[int]]:
    """Return the children of each process, without those that have ended."""
    children: dict[int, list[int]] = {}
    for pid, stat in table.items():
        if not has_ended(stat.state, stat.threads):
            children.setdefault(stat.parent, []).append(pid)
    return children


def find_descendants(root: int, table: Mapping[int, StatLine]) -> list[int]:
    """List ``root`` and all that descends from it, parents first, without those that have ended."""
    children = list_children(table)
    found = [root] if root in table else []
    for pid in found:
        found += children.get(pid, ())
    return found


def assemble_job(
    root: int,
    asked_pid: int,
    table: Mapping[int, StatLine],
    proc: str = PROC,
    *,
    strays: Sequence[int] = (),
    remark: str = "",
    waiting: Collection[int] = (),
) -> Job:
    """Read the job of ``root`` and of ``strays``, ranks beside it with no launcher; OSError if it is gone."""
    pids = [pid for top in (root, *strays) for pid in find_descendants(top, table)]
    facts = read_facts_of((table[pid] for pid in pids), proc)
    if root not in facts:
        raise ProcessLookupError(3, "the process ended while it was read")
    torch = read_torch_version(facts.values(), proc)
    parts = assign_parts(
        facts, root, now_ticks=now_ticks(), named_workers=names_workers(torch), strays=strays, waiting=waiting
    )
    boot_s = boot_time_s()
    members = tuple(
        make_member(facts[pid], part, boot_s)
        for pid, part in sorted(parts.items(), key=lambda entry: (facts[entry[0]].stat.start_ticks, entry[0]))
    )
    stat = facts[root].stat
    uid = read_owner(root, parts, facts, proc)
    return Job(
        root=Identity(root, stat.start_ticks),
        asked_pid=asked_pid,
        members=members,
        script=find_script(parts, facts[root].program.label),
        uid=uid,
        user=user_name(uid),
        start=started_at(stat.start_ticks, boot_s),
        world_size=find_world_size(parts.values()),
        rank_source=find_rank_source(parts.values()),
        torch_version=torch,
        python_version=find_python_version(facts.values()),
        remark=remark,
        facts=facts,
        parts=parts,
    )


def make_member(fact: Facts, part: RolePart, boot_s: float) -> Member:
    """Join what a process says of itself with its part."""
    stat = fact.stat
    return Member(
        identity=Identity(stat.pid, stat.start_ticks),
        parent=stat.parent,
        role=part.role,
        rank=part.rank,
        local_rank=part.local_rank,
        worker=part.worker,
        rank_pid=part.rank_pid,
        name=stat.name,
        label=part.label,
        started=started_at(stat.start_ticks, boot_s),
        environment=pick_settings(fact.environ),
    )


def pick_settings(environ: Known[Mapping[str, str]]) -> Known[tuple[EnvironmentSetting, ...]]:
    """Pick the variables that affect training speed, by name; possible secrets are hidden."""
    if isinstance(environ, Missing):
        return environ
    return tuple(
        EnvironmentSetting(name, HIDDEN if rate_name(name) else admit_text(value))
        for name, value in sorted(environ.items())
        if SHOWN_NAME.fullmatch(name)
    )


def find_script(parts: Mapping[int, RolePart], default: str) -> str:
    """Name what is trained: the script of the first rank, else ``default``."""
    return next((part.label for part in parts.values() if part.role is Role.RANK), default)


def find_world_size(parts: Iterable[RolePart]) -> Applicable[int]:
    """Return the largest world size among the ranks."""
    sizes = [part.world_size for part in parts if part.role is Role.RANK]
    known = [size for size in sizes if is_known(size)]
    if known:
        return max(known)
    return sizes[0] if sizes else Missing("no rank yet")


def find_rank_source(parts: Iterable[RolePart]) -> str:
    """Say how the ranks were recognised, each way once."""
    sources = dict.fromkeys(part.source for part in parts if part.role is Role.RANK)
    return ", ".join(sources) or "no rank yet"


def find_python_version(facts: Iterable[Facts]) -> Known[str]:
    """Return the Python version of the first process with torch, else of the first with Python."""
    mapped = [fact.mapped for fact in facts if isinstance(fact.mapped, Mapped) and fact.mapped.python]
    mapped.sort(key=lambda each: not each.torch)
    return mapped[0].python if mapped else Missing("no Python library or program file is mapped")


def read_torch_version(facts: Iterable[Facts], proc: str = PROC) -> Known[str]:
    """Read the version of the mapped torch from version.py beside it, else from dist-info; import nothing."""
    facts = list(facts)
    for fact in facts:
        if isinstance(fact.mapped, Mapped) and fact.mapped.torch:
            if fact.mapped.replaced:
                return Missing("torch was replaced on disk since the start")
            if not fact.mapped.torch.endswith("/torch/lib"):
                return Missing("the mapped torch does not lie in a Python package")
            package = os.path.dirname(fact.mapped.torch)
            answer = read_within(_FILE_S, partial(_read_version, f"{proc}/{fact.stat.pid}/root{package}"))
            return answer if isinstance(answer, Missing) else admit_text(answer, 64)
    unread = [fact.mapped for fact in facts if fact.python and isinstance(fact.mapped, Missing)]
    return next((why for why in unread if why != WORKER_UNREAD), NO_TORCH)


def names_workers(version: Known[str]) -> bool:
    """Tell whether this torch names its loader workers; an unknown version counts as recent."""
    numbers = _NUMBERS.match(version) if isinstance(version, str) else None
    return numbers is None or tuple(map(int, numbers.groups())) >= NAMED_WORKERS_SINCE


def read_owner(root: int, parts: Mapping[int, RolePart], facts: Mapping[int, Facts], proc: str = PROC) -> int:
    """Return whose job it is: the user of its first rank that is Python with torch, else of its root."""
    ranks = [pid for pid, part in parts.items() if part.role is Role.RANK]
    first = next((pid for pid in ranks if facts[pid].python and facts[pid].torch), root)
    try:
        return read_status(first, proc).uid
    except OSError:
        return read_status(root, proc).uid  # the rank ended meanwhile


@lru_cache(maxsize=256)
def user_name(uid: int) -> str:
    """Return the name of a user, or the number where there is none or no answer."""
    try:
        entry = read_within(_NAME_S, partial(pwd.getpwuid, uid))
    except KeyError:
        return str(uid)
    return str(uid) if isinstance(entry, Missing) else admit_text(entry.pw_name, 64)


def now_ticks() -> int:
    """Return clock ticks since boot, the clock of field 22 of /proc/PID/stat."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S)


def _read_version(package: str) -> str:
    try:
        found = _VERSION.search(
            read_file(f"{package}/version.py", 1 << 16, os.O_NONBLOCK).decode(errors="replace")
        )
    except FileNotFoundError:
        found = None
    if found:
        return found.group(1)
    for name in os.listdir(os.path.dirname(package)):
        if name.startswith("torch-") and name.endswith(".dist-info"):
            return name[len("torch-") : -len(".dist-info")]
    raise FileNotFoundError(2, "no version.py and no dist-info beside the mapped torch")


def pids_of(members: Sequence[Member], *roles: Role) -> tuple[int, ...]:
    """Return the PIDs of the members that have one of these roles, in their order."""
    return tuple(one.identity.pid for one in members if one.role in roles)
