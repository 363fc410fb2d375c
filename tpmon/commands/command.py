"""What a command is made of: options that are its flags too, its help, the job it is for, its run.

A command's file is imported for its help alone, too: what only its run needs, it imports there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, fields
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Union

from tpmon.errors import ExitCode, TpmonError, UsageError, exclude
from tpmon.model.frozen import dataclass
from tpmon.report.text import Output, complain
from tpmon.settings import BY_KEY, Setting, ValueKind

if TYPE_CHECKING:
    from tpmon.config import Choices
    from tpmon.model.known import Applicable
    from tpmon.model.results.doctor import Update
    from tpmon.model.results.recording import Subject
    from tpmon.probe.job.job import Job, Member
    from tpmon.session import DumpSink, SampleSink, Session
    from tpmon.ui.terminal_io.terminal import ScreenResult

Asked = TypeVar("Asked")

EXIT_CODES = """\
exit codes:
  0 ended well, also when the job ended    3 no training job there
  1 a bug in tpmon, report file named      4 not permitted to read it
  2 wrong arguments or configuration       5 no terminal for the screen
  129 hang-up, 130 interrupt, 143 terminate"""

VERDICT_CODES = f"""\
{EXIT_CODES}
diagnose, and attach with check, end with the verdict (docs/verdicts.md):
  0 nothing is wrong    10 something holds it back    11 not enough evidence    12 hung
  of a job that ended: 0 exit 0, 10 it failed, 11 its exit status is not known"""

PROMISE = """\
Secrets are hidden in every output by name, form and randomness; one that looks like an ordinary word
stays readable: read what you send before you send it."""

FILE_S = 10.0
"""How long a file may take that a command was given, and the configuration; ctrl-c ends the wait."""
_PID_DIGITS = 10
_ALIKE = 0.7
"""How like a flag a misspelt one is: --onse is like --once, --on is not."""
_MOST_DIGITS = 18


class Argument(NamedTuple):
    """Describe how an option is typed, or which setting it is."""

    names: tuple[str, ...] = ()
    how: Mapping[str, Any] = {}
    setting: Setting | None = None
    is_typed: bool = True
    read: Callable[[Any], Any] = lambda word: word
    choose: Callable[[Choices, str], Any] = lambda choices, key: choices.read(key)
    is_file: bool = False
    takes: str = ""
    """What a flag takes that may not be typed with nothing in it."""
    takes_minus: bool = False
    """Its value may begin with a minus sign, as -10m does."""


def _declare(default: object, argument: Argument) -> Any:
    return field(default=default, metadata={"argument": argument})


def setting(
    key: str,
    *,
    typed: bool = True,
    help: str = "",  # noqa: A002  # the word of argparse
    choose: Callable[[Choices, str], Any] | None = None,
) -> Any:
    """Declare an option that is a setting; one that is not ``typed`` comes from file and environment alone.

    ``choose`` takes something else of the choice than its value.
    """
    there = BY_KEY[key]._replace(help=help or BY_KEY[key].help)
    argument = Argument(setting=there, is_typed=typed)
    return _declare(there.default, argument._replace(choose=choose) if choose else argument)


def flag(
    name: str,
    help: str,  # noqa: A002
    metavar: str = "",
    default: object = None,
    *,
    many: bool = False,
    is_file: bool = False,
    takes: str = "",
    may_be_bare: bool = False,
    takes_minus: bool = False,
) -> Any:
    """Declare an option of one call; without ``metavar`` it is a switch.

    One that ``may_be_bare`` is "" where nothing follows it.
    """
    how: dict[str, Any] = {"help": help, "action": "append" if many else "store", "metavar": metavar}
    if may_be_bare:
        how |= {"nargs": "?", "const": ""}
    if not metavar:
        how, default = {"help": help, "action": "store_true"}, False
    argument = Argument((name,), how, is_file=is_file, takes=takes, takes_minus=takes_minus)
    return _declare(() if many else default, argument)


def file_argument(help: str, *, may_be_left_out: bool = False) -> Any:  # noqa: A002
    """Declare the one file that a command is for."""
    how = {"metavar": "FILE", "help": help} | ({"nargs": "?"} if may_be_left_out else {})
    return _declare("", Argument((), how, is_file=True))


def file_arguments(help: str) -> Any:  # noqa: A002
    """Declare the files that a command is for."""
    return _declare((), Argument((), {"metavar": "FILE", "nargs": "+", "help": help}, is_file=True))


Wanted = Union[int, str, None]
"""The job that a command is for: a PID, the name of its script, or the only one."""


def parse_wanted(text: str) -> int | str:
    """Read a PID, or else the name of a job; UsageError for what is neither."""
    if text and not text.isdecimal() and not text.startswith("-"):
        return text
    return parse_number(text, 0, 10**_PID_DIGITS - 1, "a PID is a number", "tpmon ps lists the training jobs")


def parse_number(text: str, low: int, high: int, expected: str, try_this: str) -> int:
    """Read a whole number that was typed; UsageError, with what was ``expected``, for anything else."""
    if not text.isdecimal() or len(text) > _MOST_DIGITS or not low <= int(text) <= high:
        raise UsageError(f"{expected}, found {text[:40]!r}", try_this)
    return int(text)


def check_ranks(wanted: Collection[int], members: Iterable[Member]) -> None:
    """Raise UsageError, naming the ranks that are here, for those that are not among the members."""
    from tpmon.model.known import is_known
    from tpmon.model.process import Role
    from tpmon.model.text.dump_words import list_numbers

    here = {one.rank for one in members if one.role is Role.RANK and is_known(one.rank)}
    if absent := set(wanted) - here:
        said = f"ranks {list_numbers(absent)} are" if len(absent) > 1 else f"rank {list_numbers(absent)} is"
        hint = f"here: {list_numbers(here) or 'no numbered rank'}"
        raise UsageError(f"--rank: {said} not on this machine", hint)


def find_own_rank(job: Job) -> tuple[int, ...]:
    """Return the PID of the rank that the process asked for is, or belongs to; none for any other."""
    from tpmon.model.known import is_known
    from tpmon.model.process import Role

    asked = next((one for one in job.members if one.identity.pid == job.asked_pid), None)
    pid = asked.rank_pid if asked is not None and is_known(asked.rank_pid) else job.asked_pid
    return tuple(pid for one in job.members if one.role is Role.RANK and one.identity.pid == pid)


def ask_at_terminal(question: str) -> bool:
    """Ask a question that y answers, where a person sits at a terminal; False without one."""
    if not (os.isatty(0) and os.isatty(2)):
        return False
    complain(f"tpmon: {question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def agree_to_hook(said: Sequence[str], *, yes: bool) -> None:
    """Say plan and price of a hook, and ask at the terminal; UsageError where nobody says yes."""
    for line in said:
        complain(f"tpmon: {line}")
    if not yes and not ask_at_terminal("put it in?"):
        raise UsageError("nothing was written: nobody agreed", "the same with --yes")


def choose_ranks(job: Job, rank: Applicable[int], *, every: bool) -> tuple[Member, ...]:
    """Return the ranks that are meant: all, the one named, else that of the PID, else the lowest here.

    Raises:
        UsageError: for a rank that is not on this machine, or a job without one.
    """
    from tpmon.model.known import is_known
    from tpmon.model.process import Role

    ranks = [one for one in job.members if one.role is Role.RANK]
    ranks.sort(key=lambda one: (one.rank if is_known(one.rank) else 1 << 30, one.identity.pid))
    if not ranks:
        raise UsageError(
            f"the job of pid {job.asked_pid} has no rank on this machine", "tpmon ps lists the jobs"
        )
    if every:
        return tuple(ranks)
    if is_known(rank):
        check_ranks((rank,), ranks)
        return tuple(one for one in ranks if one.rank == rank)
    mine = find_own_rank(job)
    return tuple(one for one in ranks if one.identity.pid in mine) or (ranks[0],)


def pid_argument(without: str = "the only job") -> Any:
    """Declare the process or the job that a command is for; ``without`` it, what is meant."""
    said = f"a process of the job, or the name of its script; without one: {without}; tpmon ps lists jobs"
    return _declare(None, Argument((), {"metavar": "PID", "nargs": "?", "help": said}, read=parse_wanted))


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Hold how a job is watched."""

    ascii: bool = setting("ascii")
    interval_s: float = setting("interval")
    no_stacks: bool = setting("no-stacks")
    readonly: bool = setting("readonly")
    hang_after_s: float | None = setting("hang-after")
    bell: bool = setting("bell", typed=False)
    log: str | None = setting("log")


class CommandParser(argparse.ArgumentParser):
    """Parse arguments, refuse them in the manner of every other error, write help unbuffered."""

    def __init__(self, **options: Any) -> None:
        """Take no short form of a flag; what was not given is not in what was parsed."""
        plain = argparse.RawDescriptionHelpFormatter
        super().__init__(
            formatter_class=plain, allow_abbrev=False, argument_default=argparse.SUPPRESS, **options
        )
        self._take_minus: set[str] = set()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, which takes -10m for a flag, also behind one that takes a value."""
        words: list[str] = []
        for word in args or ():
            if words and words[-1] in self._take_minus and word[1:2].isdecimal():
                words[-1] += f"={word}"
            else:
                words.append(word)
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> Any:
        """Refuse the arguments; UsageError always."""
        raise UsageError(message, f"{self.prog} --help")

    def print_help(self, file: Any = None) -> None:
        """Write the help to ``file``, by default to standard output without a buffer."""
        if file is not None:
            super().print_help(file)
            return
        Output(1, ascii_only=False).write_lines(self.format_help().rstrip("\n"))

    def list_flags(self) -> list[str]:
        """Return every flag in its long form."""
        return [one for one in self._option_string_actions if one.startswith("--")]

    def add_setting(self, one: Setting) -> None:
        """Add the flag of a setting."""
        how: dict[str, Any] = {"dest": one.key, "help": one.help}
        if one.key == "no-stacks":
            self.add_argument(one.flag, action="store_true", **how)
            self.add_argument("--stacks", action="store_false", **{**how, "help": "sample them (default)"})
        elif one.kind is ValueKind.SWITCH:
            self.add_argument(one.flag, action=argparse.BooleanOptionalAction, **how)
        else:
            short = ("-i",) if one.key == "interval" else ()
            self.add_argument(*short, one.flag, metavar=one.metavar, **how)

    def add_print_config(self) -> None:
        """Add the flag that every command has."""
        said = "print every setting and which source won, and end"
        self.add_argument("--print-config", action="store_true", help=said)

    def add_options(self, options: type) -> None:
        """Add the flags of a class of options: its own before those that it inherits."""
        declared = _list_arguments(options)
        names = dict.fromkeys(name for one in options.__mro__ for name in get_annotations(one))
        for name in names:
            argument = declared[name]
            if argument.setting is None:
                own: dict[str, Any] = {"dest": name} if argument.names else {}
                self.add_argument(*(argument.names or (name,)), **own, **argument.how)
                self._take_minus.update(argument.names if argument.takes_minus else ())
            elif argument.is_typed:
                self.add_setting(argument.setting)


def find_near_flag(flag: str, flags: Iterable[str]) -> str:
    """Return the flag that a misspelt one is most like, "" where none is like it."""
    from difflib import get_close_matches  # needed for a mistake alone

    near = get_close_matches(flag.lstrip("-"), [one.lstrip("-") for one in flags], 1, _ALIKE)
    return f"--{near[0]}" if near and flag.startswith("--") else ""


def _list_arguments(options: type) -> dict[str, Argument]:
    return {one.name: one.metadata["argument"] for one in fields(options)}


def _took_pid(argument: Argument, word: object) -> bool:
    """Tell whether an option that may be bare was followed by what must be the PID."""
    may_be_bare = argument.names and argument.how.get("nargs") == "?"
    return bool(may_be_bare) and isinstance(word, str) and word.isdecimal()


def read_options(wanted: type[Asked], flags: Mapping[str, object], choices: Choices) -> Asked:
    """Read the options of a command from the flags that were typed and the settings that were chosen.

    Raises:
        UsageError: for one that cannot be, and where two jobs are named.
    """
    found: dict[str, Any] = {}
    declared = _list_arguments(wanted)
    for name, argument in declared.items():
        if argument.setting is not None:
            found[name] = argument.choose(choices, argument.setting.key)
        elif name in flags:
            word = flags[name]
            if argument.takes and not word:
                (typed,) = argument.names
                raise UsageError(f"{typed} takes {argument.takes}, found ''", f"leave {typed} out")
            found[name] = tuple(word) if isinstance(word, list) else argument.read(word)
    if found.get("job") and "pid" in found and choices.is_flag("job"):
        raise exclude("PID and --job")
    taken = [one.names[0] for name, one in declared.items() if _took_pid(one, flags.get(name))]
    if taken and found.get("job") is False and "pid" not in found:
        raise UsageError("which job? PID is missing", f"the PID before {taken[0]}")
    return wanted(**found)


@dataclass(frozen=True, slots=True)
class Subcommand(Generic[Asked]):
    """Describe a command: what can be typed, what it does, what its help says."""

    options: type[Asked]
    work: Callable[[Asked], int]
    usage: str
    description: str
    epilog: str = ""
    writes_here: bool = False
    """It needs the working directory where no place is named."""

    def add_to(
        self, commands: argparse._SubParsersAction[CommandParser], name: str, summary: str = argparse.SUPPRESS
    ) -> None:
        """Add the parser of this command to that of all; ``summary`` stands for it in a list of them."""
        parser = commands.add_parser(
            name, usage=f"tpmon {self.usage}", description=self.description, epilog=self.epilog, help=summary
        )
        parser.add_options(self.options)
        parser.add_print_config()
        parser.add_setting(BY_KEY["show"])

    def run(self, flags: Mapping[str, object], choices: Choices) -> int:
        """Read the options, wait for the files that they name, run, and return the exit code."""
        options = read_options(self.options, flags, choices)
        named: list[str] = []
        for name, argument in _list_arguments(self.options).items():
            if argument.is_file and (value := getattr(options, name)):
                named += [value] if isinstance(value, str) else value
        await_files(named or ([os.curdir] if self.writes_here else []))
        return self.work(options)


def write_result(output: Output, result: object, lines: Callable[[], Iterable[str]], *, json: bool) -> None:
    """Write what came of a command as JSON, or as ``lines``."""
    from tpmon.model.codec import encode

    if json:
        output.write_json(encode(result))
    else:
        output.write_lines(*lines())


def write_ending(result: ScreenResult, output: Output) -> int:
    """Write what a screen that has ended leaves behind, and return its exit code."""
    if result.complaint:
        complain(result.complaint)
    if result.text:
        output.write_lines(result.text)
    return result.exit_code


def await_files(named: Sequence[str]) -> None:
    """Wait until the files that were named answer; UsageError for one on a mount that hangs."""
    from tpmon.probe.base.worker import find_silent

    silent = find_silent((one for one in named if "://" not in one), FILE_S)
    if silent:
        where = "the working directory" if silent == os.curdir else silent
        raise UsageError(
            f"{where} gave no answer within {FILE_S:g} s: it is on a mount that hangs",
            "again once ls answers there, or name another place",
        )


def read_choices(flags: Mapping[str, object], bad: list[str] | None = None) -> tuple[str, Choices]:
    """Return the path of the configuration file and what was chosen; set what every output hides.

    Raises:
        UsageError: for a file that cannot be read or is not TOML, and for one that does not answer: it may
            forbid what tpmon does without it. For a setting that cannot be used, unless ``bad`` takes it; a
            key that is no setting is told in a line, unless it is like one that forbids something.
    """
    from tpmon import config
    from tpmon.model.known import Missing
    from tpmon.model.text.redaction import keep_random
    from tpmon.probe.base.worker import UNGUARDED, read_within

    path = config.config_path(os.environ)
    answer = read_within(FILE_S, lambda: config.read_file(path))
    if isinstance(answer, Missing) and answer.reason.startswith(UNGUARDED):
        complain(f"tpmon: configuration read without a deadline: {answer.reason}")
        answer = config.read_file(path)
    if isinstance(answer, Missing):
        raise UsageError(
            f"the configuration {path} was not read: {answer.reason}",
            "XDG_CONFIG_HOME=/run tpmon ...  # leaves it out, with what it forbids",
        )
    unknown: list[TpmonError] = []
    choices = config.resolve(flags, os.environ, path, answer, bad, unknown=unknown if bad is None else None)
    for error in unknown:
        complain(f"tpmon: {error.what}, and is left out; {error.try_this}")
    keep_random(bool(choices.read("show")))
    return path, choices


def find_pid(wanted: int | str) -> int:
    """Return a PID as it was typed, or the root of the job that goes by a name; TpmonError for none."""
    from tpmon.probe.job.resolve import find_named

    return wanted if isinstance(wanted, int) else find_named(wanted)


def find_job(wanted: Wanted, await_s: float = 0.0) -> Job:
    """Find the job that is wanted, or the only one; wait for one that just starts. Say what is odd about it.

    Raises:
        TpmonError: where there is none.
    """
    from tpmon.probe.base.worker import step_aside
    from tpmon.probe.job.resolve import await_job, find_only_job
    from tpmon.probe.job.resolve import find_job as find

    step_aside()
    job = await_job(
        lambda: find_only_job() if wanted is None else find(find_pid(wanted)),
        lambda said: complain(f"tpmon: {said}"),
        await_s,
    )
    if job.remark:
        complain(f"tpmon: {job.remark}")
    return job


def open_session(
    job: Job,
    options: WatchOptions,
    *sinks: Callable[[Update], None],
    dump_sinks: Sequence[DumpSink] = (),
    sample_sinks: Sequence[SampleSink] = (),
) -> Session:
    """Start the probes; nothing is collected yet."""
    from tpmon.probe.collect.collector import Collector
    from tpmon.record.crash import Watched, note_watched
    from tpmon.session import Session, collect_rarely

    collect_rarely()
    if options.log:
        from tpmon.report.own_log import OwnLog  # for a report of a bug alone

        sinks = (*sinks, OwnLog(options.log).receive)
    on_screen = bool(sample_sinks)  # a screen shows what comes first
    session = Session(
        Collector(job, options.interval_s, stacks=not options.no_stacks, threads_later=on_screen),
        sinks,
        options.interval_s,
        dump_sinks,
        sample_sinks,
        hang_after_s=options.hang_after_s,
        may_look=not (options.readonly or options.no_stacks),
        glance=on_screen,
    )
    note_watched(Watched(lambda: describe_subject(job, options), session.recall))
    return session


def describe_failure(error: BaseException) -> tuple[str, ExitCode]:
    """Describe what ended a command: what it refused, a machine that lets no thread be started, or a bug."""
    if not isinstance(error, TpmonError):
        from tpmon.probe.base.worker import explain_limit
        from tpmon.ui.terminal_io.terminal import report_crash

        limit = explain_limit(error)
        if limit is None:
            return report_crash(error), ExitCode.BUG
        error = limit
    return tell(error), error.exit_code


def tell(error: TpmonError) -> str:
    """Tell what was refused, and what to try: as it is typed where a tpmon.pyz runs."""
    from tpmon.own_command import as_typed

    return f"tpmon: {error.what}\nTry: {as_typed(error.try_this)}"


def describe_subject(
    job: Job, options: WatchOptions, *, every_s: float = 0.0, log_lines: bool = True
) -> Subject:
    """Describe a job, and how it is watched, for a recording."""
    from tpmon import __version__
    from tpmon.model.known import NOT_APPLICABLE
    from tpmon.model.results.recording import Subject
    from tpmon.probe.base.procread import read_boot_id

    return Subject(
        os.uname().nodename,
        job.user,
        job.script,
        job.root.pid,
        job.root.start_ticks,
        read_boot_id(),
        __version__,
        options.interval_s,
        every_s,
        NOT_APPLICABLE if options.hang_after_s is None else options.hang_after_s,
        not (options.readonly or options.no_stacks),
        log_lines,
    )
