"""The command line: the table of commands, signals, exit codes.

Only the file of the command that is called is imported, and what it needs when it runs; so ``--help``
costs argparse alone, and the text outputs never import the screen.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

import tpmon
from tpmon import __version__
from tpmon.commands.command import (
    VERDICT_CODES,
    CommandParser,
    Subcommand,
    describe_failure,
    find_near_flag,
    read_choices,
)
from tpmon.errors import ExitCode, TpmonError, UsageError, find_behind
from tpmon.report.text import Output, ReaderGone, complain
from tpmon.settings import BY_KEY

COMMANDS = """\
  ps             list the training jobs of this machine; tpmon alone: the same, live, to choose from
  attach [PID]   watch the job around a process, or that of a script: attach train.py
  diagnose PID   watch for a while and print the verdict: what holds the run back, what to do
  dump PID       where every rank, worker and thread is right now, and which one is elsewhere
  fold FILE...   join the dumps of several hosts
  sample PID     hot functions of a rank and its workers over some seconds
  capture PID    a profile of some steps of a run with the hook; its price first
  record PID     the same second by second in a file, also in the background, for replay
  replay FILE    a recording on the same screen, or one second of it as text
  fleet          a job on many nodes, one verdict: by srun, ssh or kubectl, with tpmon on each node
  agent          what fleet starts on each node; not typed by hand
  bundle PID     evidence for a ticket in a folder or tar file: stacks, Frames, verdict, logs, versions
  doctor [PID]   what may be read of a job and what not, why, and the command that changes it
  run -- PROGRAM start a training with the hook in it: exact steps; --attach watches it
  hook PID       put the hook into a running training that has none; hook export FILE: as one file
  trace FILE...  what a profiler trace shows: steps, idle gaps and their causes, operators, kernels
  demo           start a small real training and watch it
  completion S   what lets the shell S complete commands and flags: bash, zsh, fish
"""
"""The table: a line a command, as the help shows it."""
_SUMMARY_AT = 17
"""Where in a line the words begin that say what the command does."""
PLACES = {line.split()[0]: f"{line.split()[0]}.COMMAND" for line in COMMANDS.splitlines()} | {
    "fold": "dump.FOLD",
    "fleet": "nodes.fleet.COMMAND",
    "agent": "nodes.agent.COMMAND",
    "record": "recordings.record.COMMAND",
    "replay": "recordings.replay.COMMAND",
}
"""Where each command stands below ``tpmon.commands``: its file, and the name in it."""
OWN_PARSERS = ("run", "completion")
"""What follows these is a program's, or nearly nothing."""
DESCRIPTION = "A live monitor that attaches to a running PyTorch training job and changes nothing in it."
SEE = """\
tpmon COMMAND --help has the options of a command.
Settings: flags, then TPMON_* variables, then tpmon/config.toml, see --print-config."""

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GARBAGE_THRESHOLD = 50_000
"""New containers between two looks for cycles, as in a session."""


class Ended(BaseException):
    """Unwind the stack because a signal asked for the end. No Exception, so that nothing keeps it."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(code)
        self.code = code


@contextmanager
def _signals_end() -> Iterator[None]:
    """Turn ^C, SIGTERM and SIGHUP into ``Ended``; one that was ignored (nohup) stays ignored.

    A second one changes nothing: the end is under way, and it is bounded.
    """
    before = {number: signal.getsignal(number) for number in _ENDING}

    def on_signal(number: int, _frame: FrameType | None) -> None:
        for other in _ENDING:
            signal.signal(other, signal.SIG_IGN)
        raise Ended(ExitCode(128 + number))

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        yield
    except Exception as error:
        if (end := find_behind(error, Ended)) is not None:
            raise end from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _find_command(name: str) -> Subcommand[Any]:
    file, _, constant = PLACES[name].rpartition(".")
    found: Subcommand[Any] = getattr(import_module(f"tpmon.commands.{file}"), constant)
    return found


def _name_archive() -> str:
    """Say what stands for ``tpmon`` in the help where a tpmon.pyz runs that is not called so."""
    if not tpmon.archive:
        return ""
    from tpmon.own_command import typed_program

    called = typed_program()
    return "" if called == "tpmon" else f"\ntpmon here is: {called}"


def _build_parser() -> CommandParser:
    parser = CommandParser(
        prog="tpmon",
        usage="tpmon [COMMAND] [PID | FILE...] [options]",
        description=f"{DESCRIPTION}\n\ncommands:\n{COMMANDS}\n{SEE}{_name_archive()}",
        epilog=VERDICT_CODES,
    )
    parser.add_argument("-V", "--version", action="store_true", help="print the version and end")
    parser.add_setting(BY_KEY["json"])
    parser.add_print_config()
    return parser


def build_whole_parser() -> CommandParser:
    """Return the parser of all commands at once, of which completions and pages are made."""
    from tpmon import completion

    parser = _build_parser()
    parser.description = DESCRIPTION
    commands = parser.add_subparsers(title="commands", prog="tpmon", dest="command", metavar="COMMAND")
    for line in COMMANDS.splitlines():
        name, summary = line.split()[0], line[_SUMMARY_AT:]
        if name not in OWN_PARSERS:
            _find_command(name).add_to(commands, name, summary)
            continue
        room = completion if name == "completion" else import_module(f"tpmon.commands.{name}")
        written = completion.add_written(commands, name, room.HELP, summary)
        if name == "completion":
            written.add_argument("shell", choices=completion.SHELLS)
    return parser


def _run(arguments: Sequence[str]) -> int:
    words = [*arguments[1:2], "--help"] if list(arguments[:1]) == ["help"] else list(arguments)
    if words[:1] == ["completion"]:
        from tpmon.completion import run

        return run(words[1:], build_whole_parser())
    if words and words[0] in OWN_PARSERS:
        own = import_module(f"tpmon.commands.{words[0]}")
        return int(own.run(words[1:]))
    name = next((word for word in words if not word.startswith("-")), "ps")
    if name in OWN_PARSERS or name not in PLACES:
        raise _refuse_command(name, words)
    command, parser = _find_command(name), _build_parser()
    # Its help is that of all commands, and no other is imported.
    commands = parser.add_subparsers(prog="tpmon", dest="command", metavar="COMMAND", help=argparse.SUPPRESS)
    command.add_to(commands, name)
    given, unknown = parser.parse_known_args(words)
    flags = vars(given)
    if unknown:
        raise _refuse_flags(unknown, flags.get("command") or "", commands.choices.get(name, parser), words)
    if "version" in flags:
        Output(1, ascii_only=False).write_lines(f"tpmon {__version__}")
        return ExitCode.OK
    if "print_config" in flags:
        return _print_config(flags)
    choices = read_choices(flags)[1]
    if flags.get("command") is None and not choices.read("json") and _has_terminal():
        from tpmon.commands.attach import browse_jobs
        from tpmon.commands.command import WatchOptions, read_options

        return browse_jobs(read_options(WatchOptions, flags, choices))
    return command.run(flags, choices)


def _has_terminal() -> bool:
    from tpmon.ui.terminal_io.terminal import has_terminal

    return has_terminal()


def _print_config(flags: Mapping[str, object]) -> int:
    """Print every setting and which source won; what cannot be used is named, and left out."""
    from tpmon.config import describe_config

    bad: list[str] = []
    path, choices = read_choices(flags, bad)
    output = Output(1, bool(choices["ascii"].value))
    output.write_lines(*describe_config(choices, os.environ, path, bad))
    return ExitCode.USAGE if bad else ExitCode.OK


def _refuse_command(word: str, words: Sequence[str]) -> UsageError:
    """Refuse a word that is no command, and name what may be meant."""
    import shlex  # these two are needed for a mistake alone
    from difflib import get_close_matches

    rest = [one for one in words if one is not word]
    near = (
        ["attach", word] if word.isdecimal() or word.endswith(".py") else get_close_matches(word, PLACES, 1)
    )
    try_this = shlex.join(("tpmon", *near, *rest)) if near else "tpmon --help"
    return UsageError(f"{word} is no command", try_this)


def _refuse_flags(
    unknown: Sequence[str], called: str, parser: CommandParser, words: Sequence[str]
) -> UsageError:
    """Refuse what a command has not, and name the flag that may be meant."""
    import shlex  # needed for a mistake alone

    what, flag = f"{called or 'tpmon'} has no {' '.join(unknown)}", unknown[0].partition("=")[0]
    near = find_near_flag(flag, parser.list_flags())
    if not near:
        return UsageError(what, " ".join(f"tpmon {called} --help".split()))
    mended = [near + word[len(flag) :] if word.partition("=")[0] == flag else word for word in words]
    return UsageError(
        f"{called or 'tpmon'} has no {flag}; did you mean {near}?", f"tpmon {shlex.join(mended)}"
    )


def tell_failure(error: Exception) -> ExitCode:
    """Tell what ended a command, and return its exit code."""
    said, code = describe_failure(error)
    complain(said)
    return code


def main(arguments: Sequence[str] | None = None, refused: TpmonError | None = None) -> int:
    """Run one command, unless it was ``refused`` already, and return its exit status (see ``ExitCode``)."""
    # What imports make stays: looking for cycles in it 700 containers at a time is a tenth of a start.
    gc.set_threshold(_GARBAGE_THRESHOLD)
    try:
        if refused is not None:
            raise refused
        with _signals_end():
            return _run(sys.argv[1:] if arguments is None else arguments)
    except Ended as end:
        return end.code
    except ReaderGone:
        return ExitCode.OK
    except Exception as error:  # noqa: BLE001  # a bug is told in a report file, never as a bare traceback
        return tell_failure(error)
