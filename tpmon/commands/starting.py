"""What comes before a command: the configuration, and the wiring of ``run`` and ``hook``.

These two parse their own arguments: what follows is a program's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpmon import config
from tpmon.config import Options
from tpmon.errors import ExitCode, UsageError
from tpmon.model.known import Missing
from tpmon.probe.base.deadline import UNGUARDED, find_silent, read_within
from tpmon.probe.base.limits import explain_limit
from tpmon.report.text import Output, complain

if TYPE_CHECKING:
    from tpmon.probe.job.job import Job


FILE_S = 10.0
"""How long a file may take that a command was given, and the configuration; ctrl-c ends the wait."""
_NAMED = ("against", "out", "tar", "slice_out")
_WRITE_HERE = ("bundle", "capture")


def read_tables() -> tuple[str, dict[str, Any]]:
    """Return the path of the configuration file and what it holds.

    Raises:
        UsageError: for a file that cannot be read or is not TOML, and for one that does not answer: it may
            forbid what tpmon does without it.
    """
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
    return path, answer


def await_files(given: Mapping[str, Any]) -> None:
    """Wait until the files that were named answer: no command begins on a mount that hangs.

    Raises:
        UsageError: naming the one that does not.
    """
    named = [*given.get("files", ()), *(given[key] for key in _NAMED if given.get(key))]
    if not named and given.get("command") in _WRITE_HERE:
        named = [os.curdir]
    silent = find_silent((one for one in named if "://" not in one), FILE_S)
    if silent:
        where = "the working directory" if silent == os.curdir else silent
        raise UsageError(
            f"{where} gave no answer within {FILE_S:g} s: it is on a mount that hangs",
            "again once ls answers there, or name another place",
        )


def tell_failure(error: Exception) -> ExitCode:
    """Tell what ended a command that nobody foresaw: a bug, or a machine that lets no thread be started."""
    from tpmon.ui.terminal_io.terminal import report_crash  # noqa: PLC0415

    limit = explain_limit(error)
    complain(f"tpmon: {limit.what}\nTry: {limit.try_this}" if limit else report_crash(error))
    return limit.exit_code if limit else ExitCode.BUG


def start_with_hook(arguments: Sequence[str], watch: Callable[[Job, Options], int]) -> int:
    """Start a program with the hook in it, or write the hook to a file; the first argument says which.

    Args:
        arguments: ``run`` or ``hook``, and what follows it.
        watch: shows a job on the screen until it ends or is left.
    """
    output = Output(1, ascii_only=False)
    if arguments[0] == "hook":
        from tpmon.commands.hook import run_hook  # noqa: PLC0415 each needs the other's modules never

        await_files({"files": arguments[2:3]})
        return run_hook(arguments[1:], output)
    from tpmon.commands.run import run_program  # noqa: PLC0415
    from tpmon.ui.terminal_io.terminal import require_terminal  # noqa: PLC0415

    path, tables = read_tables()
    options = config.settle(config.resolve({}, os.environ, path, tables))
    return run_program(arguments[1:], output, require_terminal, lambda job: watch(job, options))
