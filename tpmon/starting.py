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
from tpmon.probe.background import UNGUARDED, find_silent, read_within
from tpmon.probe.process_limit import explain_limit
from tpmon.report.write import Output, complain

if TYPE_CHECKING:
    from tpmon.probe.job import Job


CONFIG_S = 1.0
"""How long the configuration file is waited for without a word."""
MOST_CONFIG_S = 10.0
"""How long it is waited for at all: a home on a dead server would hold every command."""

FILE_S = 5.0
"""How long a file may take that a command was given, to read or to make."""
_NAMED = ("against", "out", "tar", "slice_out")
_WRITE_HERE = ("bundle", "capture")


def read_tables() -> tuple[str, dict[str, Any]]:
    """Return the path of the configuration file and what it holds.

    Raises:
        UsageError: for a file that cannot be read or is not TOML, and for one that does not answer: it may
            forbid what tpmon does without it.
    """
    path = config.config_path(os.environ)
    answer = read_within(CONFIG_S, lambda: config.read_file(path))
    if isinstance(answer, Missing) and answer.reason.startswith(UNGUARDED):
        complain(f"tpmon: configuration read without a deadline: {answer.reason}")
        answer = config.read_file(path)
    elif isinstance(answer, Missing):
        complain(f"tpmon: configuration not read yet: {path}: {answer.reason}")
        answer = read_within(MOST_CONFIG_S - CONFIG_S, lambda: config.read_file(path))
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
    writes_here = given.get("command") in _WRITE_HERE and not any(given.get(key) for key in _NAMED)
    named = [*given.get("files", ()), *(given[key] for key in _NAMED if given.get(key))]
    silent = find_silent([os.curdir] if writes_here else [one for one in named if "://" not in one], FILE_S)
    if silent:
        where = "the working directory" if silent == os.curdir else silent
        raise UsageError(
            f"{where} gave no answer within {FILE_S:g} s: it is on a mount that hangs",
            "again once ls answers there, or name another place",
        )


def tell_failure(error: Exception) -> ExitCode:
    """Tell what ended a command that nobody foresaw: a bug, or a machine that lets no thread be started."""
    from tpmon.ui.terminal import report_crash  # noqa: PLC0415

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
        from tpmon.hook_file import run_hook  # noqa: PLC0415 each needs the other's modules never

        await_files({"files": arguments[2:3]})
        return run_hook(arguments[1:], output)
    from tpmon.run import run_program  # noqa: PLC0415
    from tpmon.ui.terminal import require_terminal  # noqa: PLC0415

    path, tables = read_tables()
    options = config.settle(config.resolve({}, os.environ, path, tables))
    return run_program(arguments[1:], output, require_terminal, lambda job: watch(job, options))
