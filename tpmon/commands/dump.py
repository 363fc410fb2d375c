"""The commands ``dump`` and ``fold``: look, fold, and write in the form that was asked for."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tpmon.commands.command import (
    EXIT_CODES,
    Subcommand,
    Wanted,
    check_ranks,
    file_arguments,
    find_job,
    flag,
    parse_number,
    pid_argument,
    setting,
)
from tpmon.errors import ExitCode, UsageError
from tpmon.model.frozen import dataclass
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.report.text import Output, complain

if TYPE_CHECKING:
    from datetime import datetime

    from tpmon.model.dump import Dump, DumpRound
    from tpmon.probe.job.job import Job, Member

BLOCK_PRICE = "--block: a process that cannot be read otherwise is stopped, mostly for less than 5 ms"
NATIVE_PRICE = (
    "--native: every process is stopped while its C stack is read: a loader worker for 0.03 to 0.1 s, a rank"
    " for up to 1 s; py-spy takes 0.1 to 1 s of CPU and up to 0.6 GB of memory for each, two at a time"
)
LOCALS_PRICE = (
    "--locals: nothing is stopped, py-spy needs up to twice the CPU; values are cut, what looks like a secret"
    " is hidden, but read the output before you pass it on"
)
LOG_S = 0.5
"""How long the log may take to tell its time: it may lie on a dead server."""
_RANK_DIGITS = 7
_TREE_HELP = "merge the stacks of all threads into a tree"


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """Hold which processes are looked at, how often and how deep, and how that is written."""

    pid: Wanted = pid_argument()
    ranks: tuple[str, ...] = flag(
        "--rank", "only these ranks and their workers: 3, or 0,2, or 0-3", "K", many=True
    )
    pids: tuple[str, ...] = flag("--pid", "only this process of the job", "P", many=True)
    block: bool = flag(
        "--block", "stop a process that cannot be read otherwise, for some milliseconds; the time is printed"
    )
    native: bool = flag(
        "--native", "with frames of C and C++; stops each process for 0.03 to 1 s; the time is printed"
    )
    locals: bool = flag("--locals", "with the variables of your own frames; nothing is stopped")
    fr_pipe: bool = flag(
        "--fr-pipe", "make NCCL write its record of collectives now (TORCH_NCCL_DEBUG_INFO_PIPE_FILE)"
    )
    job: bool = setting("job")
    rounds: int = setting("dump.rounds")
    every_s: float = setting("dump.every")
    form: str = setting("dump.format", choose=lambda choices, key: choices.pick_format(key))
    readonly: bool = setting("readonly")
    tree: bool = flag("--tree", _TREE_HELP)
    json: bool = setting("json")
    ascii: bool = setting("ascii")


@dataclass(frozen=True, slots=True)
class FoldOptions:
    """Hold which dumps are folded, and how the fold is written."""

    files: tuple[str, ...] = file_arguments("one dump a line, as JSON; - is standard input")
    form: str = setting("dump.format", choose=lambda choices, key: choices.pick_format(key))
    tree: bool = flag("--tree", _TREE_HELP)
    json: bool = setting("json")
    ascii: bool = setting("ascii")


def check_options(options: DumpOptions) -> None:
    """Raise UsageError for a form, rank or process that cannot be, and a stop that --readonly forbids."""
    check_tree(options.form, tree=options.tree)
    for flag_name, asked, does in (
        ("--block", options.block, "stops processes of the job"),
        ("--native", options.native, "stops processes of the job"),
        ("--fr-pipe", options.fr_pipe, "has the job write files"),
    ):
        if asked and options.readonly:
            raise UsageError(f"{flag_name} {does}, and --readonly forbids that", "leave one of the two out")
    for word in options.ranks:
        _parse_numbers(word)
    for word in options.pids:
        parse_number(word, 0, 1 << 32, "--pid: a PID is a number", "tpmon dump PID --pid 4711")


def check_tree(form: str, *, tree: bool) -> None:
    """Refuse a tree in a form that has none; UsageError for another form than text."""
    if tree and form != "text":
        raise UsageError(f"--tree is text, and {form} was asked for", "leave one of the two out")


def _parse_numbers(word: str) -> frozenset[int]:
    """Parse "3", "0,2" or "0-3,6"; UsageError for anything else."""
    found: set[int] = set()
    for part in word.split(","):
        first, dash, last = part.partition("-")
        numbers = (first, last) if dash else (first,)
        plain = all(one.isdecimal() and len(one) < _RANK_DIGITS for one in numbers)
        if not plain or int(first) > int(numbers[-1]):
            raise UsageError(f"--rank: {word!r} is no rank", "tpmon dump PID --rank 3, or 0,2, or 0-3")
        found.update(range(int(first), int(numbers[-1]) + 1))
    return frozenset(found)


def choose_members(job: Job, options: DumpOptions) -> tuple[Member, ...]:
    """Return the processes to look at: all worth it, or ranks with what they started, or single ones.

    Raises:
        UsageError: for a rank or a process that is not of this job on this machine.
    """
    from tpmon.probe.spy.dump import dumpable

    every = dumpable(job)
    if not options.ranks and not options.pids:
        return every
    wanted = frozenset(rank for word in options.ranks for rank in _parse_numbers(word))
    check_ranks(wanted, every)
    pids = tuple(map(int, options.pids))
    members = {one.identity.pid: one for one in job.members}
    for pid in sorted(pids):
        if pid not in members:
            raise UsageError(
                f"--pid: process {pid} is not of this job",
                f"tpmon dump {job.root.pid} shows its processes; tpmon ps the other jobs",
            )
        if not job.facts[pid].python:
            raise UsageError(
                f"--pid: process {pid} ({members[pid].label}) runs no Python", "name another one"
            )
    chosen = tuple(one for one in every if one.rank in wanted or one.identity.pid in pids)
    # A launcher has no part in a hang, and is looked at only where it is named.
    named = (one for one in job.members if one.identity.pid in pids and one not in chosen)
    return (*chosen, *named)


def run(options: DumpOptions) -> int:
    """Look at a job as often as asked, write the fold, and return the exit code."""
    from tpmon.judge.dumps.collective_words import may_wait
    from tpmon.judge.dumps.collectives import add_collectives
    from tpmon.judge.folds.groups import DumpOrigin, fold_rounds
    from tpmon.model.dump import Asker, DumpRequest
    from tpmon.model.process import Role
    from tpmon.model.units import count_of
    from tpmon.probe.records.collectives import PIPE_PRICE, read_collectives
    from tpmon.probe.spy.dump import NATIVE_ROUND_S, ROUND_S, Dumper, dumpable

    check_options(options)
    job = find_job(options.pid)
    members = choose_members(job, options)
    for asked, price in (
        (options.block, BLOCK_PRICE),
        (options.native, NATIVE_PRICE),
        (options.locals, LOCALS_PRICE),
        (options.fr_pipe, PIPE_PRICE),
    ):
        if asked:
            complain(f"tpmon: {price} ({count_of(len(members), 'process', 'processes')})")
    how = DumpRequest(Asker.KEY, block=options.block, native=options.native, variables=options.locals)
    dumper = Dumper(members, how, others=job.members)
    rounds: list[DumpRound] = []
    due_s = time.monotonic()
    for number in range(options.rounds):
        if number:
            time.sleep(max(0.0, due_s - time.monotonic()))
        due_s = time.monotonic() + options.every_s
        rounds.append(dumper.read_round(NATIVE_ROUND_S if options.native else ROUND_S))
    left_out = sum(one.role is Role.RANK and one not in members for one in job.members)
    not_asked = NOT_APPLICABLE if len(members) >= len(dumpable(job)) else left_out
    origin = DumpOrigin(job.root.pid, job.script, job.world_size, not_asked)
    dump = replace(fold_rounds(rounds, origin), last_write=_read_last_write(job))
    reading = read_collectives(job, someone_waits=may_wait(dump.groups), ask_pipes=options.fr_pipe)
    dump = add_collectives(dump, reading)
    _write(dump, options.form, Output(1, options.ascii), tree=options.tree)
    return pick_exit_code(dump)


def _read_last_write(job: Job) -> Applicable[datetime]:
    """Read when the job wrote into its log last."""
    from tpmon.judge.folds.hot import date_log
    from tpmon.model.process import Role
    from tpmon.probe.base.worker import read_within
    from tpmon.probe.host.output import OutputReader

    pids = [one.identity.pid for one in job.members if one.role in (Role.LAUNCHER, Role.RANK)]
    logs = read_within(LOG_S, lambda: OutputReader().read(pids))
    return logs if isinstance(logs, Missing) else date_log(logs)


def run_fold(options: FoldOptions) -> int:
    """Fold the Dumps of files ("-": standard input) and write the result; UsageError for what is no dump."""
    from tpmon.judge.dumps.collectives import fold_collectives
    from tpmon.judge.folds.groups import find_clash, fold_dumps
    from tpmon.probe.records.dump_files import read_dumps

    check_tree(options.form, tree=options.tree)
    left_out: list[str] = []
    dumps = read_dumps(options.files, left_out.append)
    if clash := find_clash(dumps):
        raise UsageError(
            f"these dumps are of two machines of one name: {clash}",
            "give each machine a name of its own (hostname) and dump again; one of them can be folded alone",
        )
    for line in left_out:
        complain(f"tpmon: not folded: {line}")
    dump = replace(fold_collectives(fold_dumps(dumps), dumps), left_out=tuple(left_out))
    _write(dump, options.form, Output(1, options.ascii), tree=options.tree)
    return pick_exit_code(dump)


def _write(dump: Dump, form: str, output: Output, *, tree: bool) -> None:
    from tpmon.judge.dumps.describe import shorten_stack
    from tpmon.judge.folds.hot import build_tree
    from tpmon.model.codec import encode
    from tpmon.report.formats import write_collapsed, write_speedscope
    from tpmon.report.stacks import write_dump, write_dump_tree

    if form == "json":
        output.write_json(encode(dump))
    elif form == "speedscope":
        output.write_json(write_speedscope(dump))
    elif form == "collapsed":
        output.write_lines(*write_collapsed(dump))
    elif tree:
        output.write_lines(*write_dump_tree(dump, build_tree(dump.groups)))
    else:
        output.write_lines(*write_dump(dump, shorten_stack))


def pick_exit_code(dump: Dump) -> int:
    """Return 0 where at least one stack was read, else why none was: 4, 3, or 2 for all else."""
    from tpmon.model.dump import ErrorKind

    if any(is_known(group.frames) for group in dump.groups):
        return ExitCode.OK
    kinds = {error.kind for error in dump.errors}
    if ErrorKind.DENIED in kinds:
        return ExitCode.NOT_PERMITTED
    if kinds <= {ErrorKind.GONE}:
        return ExitCode.NO_TARGET
    return ExitCode.USAGE


COMMAND = Subcommand(
    DumpOptions,
    run,
    "dump [PID | NAME] [options]",
    "Show where every rank, loader worker and thread of a job is right now: equal stacks together,\n"
    "first the one that is not where the others are. Only --block and --native stop processes.\n"
    "It says first what an option costs.",
    EXIT_CODES,
)
FOLD = Subcommand(
    FoldOptions,
    run_fold,
    "fold FILE... | - [options]",
    "Join the dumps that tpmon dump made as JSON on several hosts.\n"
    "Several dumps of one host count as one after the other.",
    EXIT_CODES,
)
