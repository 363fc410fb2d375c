"""How an agent is started on each node: by Slurm, ssh, kubectl, or a user's command. ``read_`` asks them.

Each way is a row of a table. No connection is tpmon's own: the user's ssh configuration, agent, jump hosts
and multiplexing hold, and whoever may not log in is refused by ssh, never asked for a password.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum

from tpmon.errors import NoTargetError, UsageError
from tpmon.fleet.ship import Parcel
from tpmon.model.frozen import dataclass
from tpmon.model.text.dump_words import write_step
from tpmon.model.units import clean_text

MOST_CONNECTIONS = 256
"""Each ssh or kubectl takes 8 MB and 55 ms of CPU here to connect."""
MOST_NODES = 4096
TRIES = 10
"""How often a connection that was lost is made again: for five minutes."""
ASK_S = 20.0
"""How long squeue, scontrol and kubectl may take to list the nodes."""
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_:][A-Za-z0-9_.:%-]{0,127}")
_JOB_ID = re.compile(r"[0-9]{1,12}(?:[_+][0-9]{1,9})?")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./=!,() -]{0,400}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
HOST = "{host}"
_SAID_CHARS = 200
_SQUEUE_WORDS = 4
_MOST_NAMED = 4
_CLUSTER = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
"""Where Slurm is, and who asks."""


class Way(Enum):
    """Name how agents are started."""

    SLURM = "slurm"
    SSH = "ssh"
    PODS = "pods"
    EXEC = "exec"


@dataclass(frozen=True, slots=True)
class Place:
    """Hold where the nodes are: a job of Slurm, a namespace and container of pods, a command of the user.

    ``group`` is the part of a heterogeneous job, which has nodes, and a step, of its own.
    """

    way: Way
    job: str = ""
    group: str = ""
    namespace: str = ""
    container: str = ""
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentLaunch:
    """Hold one process to start, and the nodes whose agents speak through it.

    ``first`` is a process before it, which reads the file ``sends``, where tpmon is sent to the nodes. One
    that had answered is started again so many ``tries`` at most: a step of Slurm that ends is mostly the
    end of the job, and a connection that ends may come back. ``again`` is how some of its nodes are started
    by a process of their own, None where there is one node. Environment variables that begin with ``drops``
    are not for it.
    """

    argv: tuple[str, ...]
    nodes: tuple[str, ...]
    first: tuple[str, ...] = ()
    sends: str = ""
    tries: int = TRIES
    drops: str = ""
    again: Callable[[tuple[str, ...]], AgentLaunch] | None = field(default=None, compare=False, repr=False)


def keep_environment(environment: Mapping[str, str], drops: str) -> dict[str, str]:
    """Return the environment without what the allocation around would add to a step of another one.

    It may label lines, write them to a file, or ask for cards: srun takes each option from a variable, too.
    """
    return {
        name: value
        for name, value in environment.items()
        if not drops or name in _CLUSTER or not name.startswith(drops)
    }


def _write_srun(place: Place, nodes: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
    """Write one step beside those of the job; never --unbuffered, which cuts lines anywhere."""
    step = write_step(place.job, str(len(nodes))).split()
    group = (f"--het-group={place.group}",) if place.group else ()
    more = (
        *group,
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
        "--mem=0",
        "--mpi=none",
        "--input=all",
    )
    return (*step, *more, "--kill-on-bad-exit=0", "--wait=0", "--no-kill", *command)


def _write_ssh(_: Place, nodes: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
    (node,) = nodes
    name, colon, port = node.rpartition(":")
    is_port = port.isdecimal() and bool(colon) and ":" not in name  # else it is an IPv6 address
    where = ("-p", port, "--", name) if is_port else ("--", node)
    return ("ssh", "-T", "-o", "BatchMode=yes", *where, " ".join(map(_quote, command)))


def _quote(word: str) -> str:
    """Quote a word for a shell, which is to put its user's home for "~/"."""
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)


def _write_kubectl(place: Place, nodes: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
    (node,) = nodes
    space = ("-n", place.namespace) if place.namespace else ()
    container = ("-c", place.container) if place.container else ()
    return ("kubectl", "exec", "-i", node, *space, *container, "--", *command)


def _write_exec(place: Place, nodes: Sequence[str], command: Sequence[str]) -> tuple[str, ...]:
    (node,) = nodes
    words = tuple(word.replace(HOST, node) for word in place.command)
    return (*words, *command)


@dataclass(frozen=True, slots=True)
class Transport:
    """Describe one way: how its command is written, whether one process serves all nodes, what it needs.

    ``most`` nodes, so many ``tries`` to start an agent again, and the variables that it ``drops``.
    """

    write: Callable[[Place, Sequence[str], Sequence[str]], tuple[str, ...]]
    shared: bool
    most: int
    tries: int
    programs: tuple[str, ...]
    drops: str = ""


TRANSPORTS: Mapping[Way, Transport] = {
    Way.SLURM: Transport(_write_srun, True, MOST_NODES, 1, ("srun", "squeue", "scontrol"), "SLURM_"),
    Way.SSH: Transport(_write_ssh, False, MOST_CONNECTIONS, TRIES, ("ssh",)),
    Way.PODS: Transport(_write_kubectl, False, MOST_CONNECTIONS, TRIES, ("kubectl",)),
    Way.EXEC: Transport(_write_exec, False, MOST_CONNECTIONS, TRIES, ()),
}


def plan_launches(
    place: Place, nodes: Sequence[str], agent: Sequence[str], parcel: Parcel | None = None
) -> tuple[AgentLaunch, ...]:
    """Return the processes to start, each after one that sends the ``parcel``, if there is one.

    UsageError for no node, for too many, and for a name that is none.
    """
    way = TRANSPORTS[place.way]
    if not nodes:
        raise UsageError("no node to watch", "tpmon fleet --hosts a,b,c[1-64]")
    if len(nodes) > way.most:
        raise UsageError(
            f"{len(nodes)} nodes, and {place.way.value} serves at most {way.most}: each takes a process here",
            "fewer hosts, or --slurm JOB, which takes one process for all",
        )
    for node in nodes:
        check_host(node)
    parts = [tuple(nodes)] if way.shared else [(node,) for node in nodes]

    def plan(part: tuple[str, ...]) -> AgentLaunch:
        named = agent if way.shared else (*agent, "--node", part[0])
        first = way.write(place, part, parcel.put) if parcel else ()
        sends = parcel.path if parcel else ""
        again = plan if way.shared else None
        return AgentLaunch(way.write(place, part, named), part, first, sends, way.tries, way.drops, again)

    return tuple(map(plan, parts))


def check_host(node: str) -> str:
    """Return the name of a host; UsageError for one that a program would take for something else."""
    if not _HOST.fullmatch(node):
        raise UsageError(f"{clean_text(node, 80)!r} is no name of a host", "tpmon fleet --hosts a,b,c[1-64]")
    return node


def parse_hosts(text: str) -> tuple[str, ...]:
    """Read "a,b,c[1-3,07]" as names, each once; UsageError for anything else."""
    words = re.split(r",(?![^\[\]]*\])", text)  # not within brackets
    names = dict.fromkeys(name for word in words if word.strip() for name in _expand(word.strip()))
    return tuple(check_host(name) for name in names)


def _expand(word: str) -> list[str]:
    """Write out the sets of numbers in a name."""
    head, bracket, rest = word.partition("[")
    if not bracket:
        return [word]
    inner, closed, tail = rest.partition("]")
    ends, found = _expand(tail), list[str]()
    for one in inner.split(","):
        numbers = _RANGE.fullmatch(one.strip())
        first, last = (numbers[1], numbers[2] or numbers[1]) if numbers else ("1", "0")
        count = int(last) - int(first) + 1
        if not closed or count < 1:
            said = f"--hosts: {clean_text(word, 80)!r} is no set of hosts"
            raise UsageError(said, "tpmon fleet --hosts 'a,b,c[1-64]'")
        many = len(found) + count * len(ends)
        if many > MOST_NODES:
            said = f"--hosts: {many} hosts in {clean_text(word, 80)!r}; {MOST_NODES} are the most"
            raise UsageError(said, "fewer hosts")
        for number in range(int(first), int(last) + 1):
            found += [f"{head}{str(number).zfill(len(first))}{end}" for end in ends]
    return found


def parse_template(text: str) -> tuple[str, ...]:
    """Read the command of --exec, started without a shell; UsageError for one that no host is put into."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--exec: {error}", "quote the command as for a shell") from error
    if not any(HOST in word for word in words):
        raise UsageError(f"--exec: no {HOST} in {clean_text(text, 80)!r}", "--exec 'docker exec -i {host}'")
    return words


def check_programs(place: Place, which: Callable[[str], str | None] = shutil.which) -> None:
    """Raise UsageError for a program that is needed and not here."""
    needed = TRANSPORTS[place.way].programs or place.command[:1]
    for name in needed:
        if which(name) is None:
            raise UsageError(
                f"no program {clean_text(name, 80)!r} here", "run it where your jobs are started"
            )


@dataclass(frozen=True, slots=True)
class SlurmPart:
    """Hold a set of nodes of a job: all of them, or those of one part of a heterogeneous job."""

    job: str
    group: str
    nodes: str


def parse_squeue(text: str, job: str) -> tuple[SlurmPart, ...]:
    """Return the parts of a job, as squeue prints them; NoTargetError for none that runs, or several."""
    rows = [line.split() for line in text.splitlines() if line.strip()]
    running = [row for row in rows if row[0] == "RUNNING" and len(row) == _SQUEUE_WORDS]
    parts = [_read_part(name, raw, nodes) for _, name, raw, nodes in running]
    if len({one.job for one in parts}) > 1:
        names = ", ".join(row[1] for row in running[:_MOST_NAMED])
        raise NoTargetError(f"job {job} is several that run: {names}", f"tpmon fleet --slurm {running[0][1]}")
    if not parts:
        said = f"is {rows[0][0].lower()}" if rows else "is not in the queue: it has ended, or never was"
        raise NoTargetError(f"job {job} {said}", "squeue --me lists the jobs that run")
    return tuple(parts)


def _read_part(name: str, raw: str, nodes: str) -> SlurmPart:
    """Read "7+1" as a part of job 7; srun knows a task of an array, "7_2", by its number alone."""
    leader, plus, group = name.partition("+")
    return SlurmPart(leader, group, nodes) if plus else SlurmPart(raw, "", nodes)


def read_slurm_nodes(job: str) -> tuple[tuple[Place, tuple[str, ...]], ...]:
    """Return the nodes of a job of Slurm by what a step there needs; a TpmonError where it does not run."""
    if not _JOB_ID.fullmatch(job):
        raise UsageError(f"--slurm: {clean_text(job, 40)!r} is no job", "squeue --me lists the jobs that run")
    text = read_output("squeue", "--noheader", f"--jobs={job}", "--format=%T %i %A %N")
    found, seen = [], set[str]()
    for part in parse_squeue(text, job):
        names = read_output("scontrol", "show", "hostnames", part.nodes).split()
        if nodes := tuple(name for name in names if name not in seen):  # parts may share a node
            found.append((Place(Way.SLURM, job=part.job, group=part.group), nodes))
        seen.update(nodes)
    return tuple(found)


def parse_pods(text: str, selector: str) -> tuple[str, ...]:
    """Return the names of pods from what kubectl prints; NoTargetError where it names none."""
    names = tuple(line.removeprefix("pod/") for line in text.split())
    if not names:
        raise NoTargetError(f"no running pod has {selector!r}", "kubectl get pods --show-labels")
    return names


def read_pods(selector: str, place: Place) -> tuple[str, ...]:
    """Return the running pods that a selector names; a TpmonError where there is none."""
    for flag, text, pattern in (
        ("--pods", selector, _LABEL),
        ("-n", place.namespace or "default", _NAME),
        ("-c", place.container or "default", _NAME),
    ):
        if not pattern.fullmatch(text):
            said = f"{flag}: {clean_text(text, 80)!r} is no name"
            raise UsageError(said, "tpmon fleet --pods app=train -n team")
    space = ("-n", place.namespace) if place.namespace else ()
    running = "--field-selector=status.phase=Running"
    return parse_pods(
        read_output("kubectl", "get", "pods", *space, "-l", selector, running, "-o", "name"), selector
    )


def read_output(*argv: str) -> str:
    """Run a program that lists nodes and return what it prints; NoTargetError with its words if it fails."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoTargetError(f"{argv[0]} gave no answer within {ASK_S:g} s", f"{shlex.join(argv)}") from None
    except OSError as error:
        raise UsageError(
            f"{argv[0]}: {error.strerror or error}", "run it where your jobs are started"
        ) from error
    if done.returncode:
        said = clean_text(done.stderr.strip().rpartition("\n")[2], _SAID_CHARS)
        raise NoTargetError(f"{argv[0]}: {said or f'exit {done.returncode}'}", shlex.join(argv))
    return done.stdout
