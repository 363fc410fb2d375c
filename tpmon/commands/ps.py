"""The command ``ps``: list the training jobs of this machine."""

from __future__ import annotations

from functools import partial

from tpmon.commands.command import Subcommand, setting, write_result
from tpmon.errors import ExitCode
from tpmon.model.frozen import dataclass
from tpmon.report.text import Output


@dataclass(frozen=True, slots=True)
class PsOptions:
    """Hold the form of the list."""

    json: bool = setting("json")
    ascii: bool = setting("ascii", typed=False)


def run(options: PsOptions) -> int:
    """List the jobs."""
    from tpmon.own_command import call_as_root
    from tpmon.probe.job.discovery import list_jobs
    from tpmon.report.jobs import write_jobs

    jobs, output = list_jobs(), Output(1, options.ascii)
    text = partial(write_jobs, jobs, output.width, call_as_root("ps"))
    write_result(output, jobs, text, json=options.json)
    return ExitCode.OK


COMMAND = Subcommand(PsOptions, run, "ps [options]", "List the training jobs of this machine.")
