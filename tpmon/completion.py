"""The command ``completion``: what lets a shell complete commands and flags, made of the parser of all."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from tpmon.commands.command import CommandParser
from tpmon.errors import ExitCode, UsageError
from tpmon.own_command import find_lack
from tpmon.report.text import Output

SHELLS = ("bash", "zsh", "fish")
HELP = """\
usage: tpmon completion SHELL

Print what lets bash, zsh or fish complete the commands and flags of tpmon. An installed tpmon has it under
share/ of its environment, beside the manual page tpmon(1).

  source <(tpmon completion bash)                                      # in ~/.bashrc
  tpmon completion zsh > ~/.zfunc/_tpmon                               # with ~/.zfunc in fpath
  tpmon completion fish > ~/.config/fish/completions/tpmon.fish

options:
  -h, --help  show this help and end"""
_FILES = ("FILE", "OUT", "BEFORE")
"""Placeholders for which a path stands."""
_FOLDERS = ("DIR", "FOLDER")


def run(arguments: Sequence[str], parser: CommandParser) -> int:
    """Print the completion of one shell for ``parser``; UsageError for a shell that it cannot be made for."""
    output = Output(1, ascii_only=False)
    if {"-h", "--help"} & set(arguments) or not arguments:
        output.write_lines(HELP)
        return ExitCode.OK if arguments else ExitCode.USAGE
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise UsageError(f"tpmon completion takes one of {', '.join(SHELLS)}", "tpmon completion bash")
    if refused := find_lack("tpmon completion", {"shtab": "shtab"}):
        raise refused
    output.write_lines(write_completion(parser, arguments[0]).rstrip("\n"))
    return ExitCode.OK


def write_completion(parser: CommandParser, shell: str) -> str:
    """Write the completion of a shell; ``parser`` may be used for no other."""
    import shtab  # noqa: PLC0415  # no other command pays for it

    for one in list_parsers(parser):
        for action in one._actions:
            if action.metavar in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # which is how shtab is told
            elif action.metavar in _FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def list_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Return a parser and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from list_parsers(one)


def add_written(
    commands: argparse._SubParsersAction[CommandParser], name: str, text: str, summary: str
) -> CommandParser:
    """Add the parser of a command whose help is written by hand: its options are the lines that begin so."""
    usage, _, rest = text.partition("\n")
    description, _, options = rest.partition("\noptions:\n")
    options, _, after = options.partition("\n\n")
    parser = commands.add_parser(
        name,
        usage=usage.removeprefix("usage: "),
        description=description.strip(),
        epilog=after.strip() or None,
        add_help=False,
        help=summary,
    )
    written: list[tuple[str, list[str]]] = []
    for line in options.split("\n"):
        if line.startswith("  -"):
            head, _, words = line.strip().partition("  ")
            written.append((head, [words.strip()]))
        elif written:
            written[-1][1].append(line.strip())
    for head, lines in written:
        flags = [one.split() for one in head.split(", ")]
        how: dict[str, Any] = {"metavar": flags[-1][1]} if flags[-1][1:] else {"action": "store_true"}
        parser.add_argument(*(one[0] for one in flags), help=" ".join(lines).replace("%", "%%"), **how)
    return parser
