"""The command ``fleet``: many nodes, one verdict, by the user's own srun, ssh or kubectl."""

from __future__ import annotations

import os
import shlex
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import tpmon
from tpmon.commands.command import VERDICT_CODES, Subcommand, flag, setting
from tpmon.errors import ExitCode, UsageError, exclude
from tpmon.model.frozen import dataclass
from tpmon.model.known import is_known
from tpmon.report.text import Output, complain
from tpmon.settings import BY_KEY, parse_names, split_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tpmon.fleet.launch import Place
    from tpmon.fleet.loop import Fleet
    from tpmon.fleet.ship import Parcel
    from tpmon.model.results.fleet import FleetReport

SHIP = "ship"
_SLURM_JOB = "SLURM_JOB_ID"


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Hold where the nodes are, how an agent is called there, and the form of what is written."""

    slurm: str = flag("--slurm", "the nodes of a job of Slurm, by srun beside it", "JOB", takes="a job")
    hosts: str = flag("--hosts", "these hosts, by ssh: a,b,c[1-64]", "LIST", takes="names")
    pods: str = flag(
        "--pods", "the running pods of a label selector, by kubectl exec", "SELECTOR", takes="one"
    )
    namespace: str = flag("-n", "the namespace of the pods", "NAMESPACE", "")
    container: str = flag("-c", "the container of each pod", "CONTAINER", "")
    exec: str = flag(
        "--exec", "reach each host by this command: 'docker exec -i {host}'", "COMMAND", takes="a command"
    )
    agent: str = flag(
        "--agent",
        "how tpmon is called on the nodes (default: tpmon); ship sends this tpmon.pyz there, once a build",
        "COMMAND",
        takes="a command",
    )
    name: str = flag("--name", "of several jobs on a node the one whose script goes by this name", "NAME")
    once: bool = setting("once", help="wait until every node has answered, print that and end")
    json: bool = setting("json")
    plain: bool = setting("plain")
    check: bool = setting("check")
    until: str = flag(
        "--until",
        "wait for one of these verdicts, such as hung,idle, and end with its exit code",
        "KINDS",
        takes="kinds of verdicts",
    )
    ascii: bool = setting("ascii")
    no_stacks: bool = setting("no-stacks")
    readonly: bool = setting("readonly")
    record: str | None = flag(
        "--record", "record each node too, in the new folder DIR (default: in $XDG_STATE_HOME/tpmon)", "DIR",
        is_file=True, may_be_bare=True,
    )  # fmt: skip
    hang_after_s: float | None = setting("hang-after")


def choose_place(options: FleetOptions, environment: Mapping[str, str]) -> Place:
    """Return where the nodes are; UsageError where that is not said, or said twice."""
    from tpmon.fleet.launch import Place, Way, parse_template

    asked = [
        name
        for name, value in (("--slurm", options.slurm), ("--hosts", options.hosts), ("--pods", options.pods))
        if value
    ]
    if len(asked) > 1:
        raise exclude(" and ".join(asked))
    if (options.namespace or options.container) and not options.pods:
        raise UsageError("-n and -c are of --pods", "tpmon fleet --pods app=train -n team")
    if options.exec:
        if not options.hosts:
            raise UsageError("--exec: which hosts?", "tpmon fleet --hosts a,b --exec 'docker exec -i {host}'")
        return Place(Way.EXEC, command=parse_template(options.exec))
    if options.pods:
        return Place(Way.PODS, namespace=options.namespace, container=options.container)
    if options.hosts:
        return Place(Way.SSH)
    job = options.slurm or environment.get(_SLURM_JOB, "")
    if not job:
        raise UsageError(
            "which nodes? This shell is in no allocation of Slurm",
            "tpmon fleet --slurm JOB, or --hosts a,b,c[1-64], or --pods SELECTOR",
        )
    return Place(Way.SLURM, job=job)


def write_agent(options: FleetOptions, place: Place, parcel: Parcel | None = None) -> tuple[str, ...]:
    """Return the words that start an agent; a step of Slurm has the files and environment of here."""
    from tpmon.fleet.launch import Way
    from tpmon.own_command import own_program

    here = shlex.split(own_program()) if place.way is Way.SLURM else ["tpmon"]
    words = split_command(options.agent, "--agent") if options.agent else tuple(here)
    words = parcel.run if parcel else words
    how = [name for name, on in (("--no-stacks", options.no_stacks), ("--readonly", options.readonly)) if on]
    if options.name:
        how += ["--name", options.name]
    if options.hang_after_s is not None:
        how += ["--hang-after", f"{options.hang_after_s:g}s"]
    return (*words, "agent", *how)


def run(options: FleetOptions) -> int:
    """Watch the job of many nodes."""
    from tpmon.fleet.launch import (
        Way,
        check_programs,
        parse_hosts,
        plan_launches,
        read_pods,
        read_slurm_nodes,
    )
    from tpmon.fleet.loop import Fleet
    from tpmon.fleet.ship import pack_parcel
    from tpmon.probe.base.worker import step_aside

    until = frozenset[str]()
    if options.until:
        until = parse_names(BY_KEY["diagnose.until"], options.until, "--until")
    for name, one in (("--once", options.once), ("--check", options.check)):
        if one and until:
            raise exclude(f"{name} and --until")
        if one and options.record is not None:
            raise exclude(f"{name} and --record")
    place = choose_place(options, os.environ)
    parcel = pack_parcel(tpmon.archive) if options.agent == SHIP else None
    agent = write_agent(options, place, parcel)
    hosts = parse_hosts(options.hosts) if options.hosts else ()
    check_programs(place)
    places = read_slurm_nodes(place.job) if place.way is Way.SLURM else ((place, hosts),)
    if place.way is Way.PODS:
        places = ((place, read_pods(options.pods, place)),)
    launches = [one for where, nodes in places for one in plan_launches(where, nodes, agent, parcel)]
    step_aside()
    may_look = not (options.readonly or options.no_stacks)
    fleet = Fleet(launches, may_look=may_look, hang_after_s=options.hang_after_s)
    if is_screen(options):
        from tpmon.commands.nodes.screen import watch_on_screen

        return watch_on_screen(
            fleet, ascii_only=options.ascii, no_stacks=options.no_stacks, record=options.record
        )
    take = Take(options, until)
    with recorded(fleet, options.record) as record:

        def take_and_record(report: FleetReport) -> bool:
            record(report)
            return take.take(report)

        fleet.run(take_and_record)
    return take.finish()


@contextmanager
def recorded(fleet: Fleet, path: str | None) -> Iterator[Callable[[FleetReport], None]]:
    """Record a fleet of a text command into a folder, and say on standard error what comes of it."""
    if path is None:
        yield lambda _report: None
        return
    from tpmon.fleet.record import FleetSwitch

    switch = FleetSwitch(fleet, lambda line, _records: complain(f"tpmon: {line}"))
    switch.open(path)
    try:
        yield switch.take
    finally:
        switch.end()


def is_screen(options: FleetOptions) -> bool:
    """Tell whether a screen is drawn: on a terminal, where no form of text was asked for."""
    from tpmon.ui.terminal_io.terminal import has_terminal

    is_text = options.once or options.json or options.plain or options.check or bool(options.until)
    return not is_text and has_terminal()


class Take:
    """Take a report a second, write it in the form that was asked for, and tell when that is enough."""

    def __init__(self, options: FleetOptions, until: frozenset[str]) -> None:
        """Hold what was asked for."""
        from tpmon.fleet.report import FleetPlain

        self._options = options
        self._until = until
        self._output = Output(1, options.ascii)
        self._begun_s = time.monotonic()
        self._plain = FleetPlain()
        self._last: FleetReport | None = None
        self._told = False
        """A node has told of the job."""

    @property
    def _at_end(self) -> bool:
        return bool(self._until) or self._options.once or self._options.check

    def take(self, report: FleetReport) -> bool:
        """Take one report."""
        from tpmon.judge.nodes import is_over

        self._last = report
        self._told = self._told or is_known(report.verdict)
        over = is_over(report.nodes)
        if not self._at_end:
            self._output.check_reader()
            self._write(report, self._plain.read)
            return over
        return over or self._is_enough(report)

    def _is_enough(self, report: FleetReport) -> bool:
        from tpmon.judge.nodes import has_settled
        from tpmon.report.plain import LOOK_S  # --once and --check wait no longer for a node that is late

        if self._until:
            return is_known(report.verdict) and report.verdict.kind.value in self._until
        looked_s = time.monotonic() - self._begun_s
        if self._options.check:
            return looked_s >= LOOK_S
        return looked_s >= LOOK_S or has_settled(report.nodes)

    def finish(self) -> int:
        """Write the last report where only that was asked for, and return the exit code."""
        from tpmon.fleet.report import pick_fleet_code, write_fleet, write_fleet_check

        if self._last is None:
            return ExitCode.OK
        if not self._at_end:  # a stream ends with the job, or has nobody to ask
            return ExitCode.OK if self._told else ExitCode.NO_TARGET
        check = self._options.check
        self._write(self._last, lambda report: [write_fleet_check(report)] if check else write_fleet(report))
        return ExitCode.OK if self._options.once and not check else pick_fleet_code(self._last)

    def _write(self, report: FleetReport, lines: Callable[[FleetReport], list[str]]) -> None:
        from tpmon.model.codec import encode_fast

        if self._options.json:
            self._output.write_json(encode_fast(report))
        elif said := lines(report):
            self._output.write_lines(*said)


COMMAND = Subcommand(
    FleetOptions,
    run,
    "fleet [--slurm JOB | --hosts LIST [--exec COMMAND] | --pods SELECTOR] [options]",
    "Watch a job on many nodes, with one verdict. Within an allocation of Slurm: its nodes.\n"
    "It starts tpmon agent on each node, which ends with it; it opens no port and asks for no password.\n"
    "Without an output flag: the screen; without a terminal a line when something changes.",
    VERDICT_CODES,
)
