"""The command ``agent``: what ``tpmon fleet`` starts on each node."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tpmon.commands.command import EXIT_CODES, Subcommand, WatchOptions, flag, open_session, setting
from tpmon.errors import ExitCode
from tpmon.model.frozen import dataclass

if TYPE_CHECKING:
    from tpmon.probe.job.job import Job
    from tpmon.session import DumpSink, SampleSink, Session, Sink

READ_S = 1.0
"""How often a node is read, whatever its configuration says: a node that says nothing for 5 s is late."""


@dataclass(frozen=True, slots=True)
class AgentOptions(WatchOptions):
    """Hold how an agent names its node, and how it watches the job there."""

    interval_s: float = setting("interval", typed=False, choose=lambda *_: READ_S)
    node: str = flag(
        "--node", "what fleet calls this node (default: as Slurm does, or its host name)", "NAME"
    )
    name: str = flag("--name", "of several jobs the one whose script goes by this name", "NAME")


def run(options: AgentOptions) -> int:
    """Watch the only job of this user here until the head is gone."""
    from tpmon.fleet.agent import Agent, Lines, read_node_name
    from tpmon.probe.base.worker import step_aside
    from tpmon.probe.job.resolve import find_job, find_named, find_only_job

    def start(job: Job, sink: Sink, dump_sink: DumpSink, sample_sink: SampleSink) -> Session:
        return open_session(job, options, sink, dump_sinks=(dump_sink,), sample_sinks=(sample_sink,))

    step_aside()
    node = options.node or read_node_name()
    find = partial(find_only_job, may_be_of_other_slurm_job=False)
    if options.name:
        find = partial(lambda name: find_job(find_named(name)), options.name)
    Agent(Lines(1, node), node, find, start).run()
    return ExitCode.OK


COMMAND = Subcommand(
    AgentOptions,
    run,
    "agent [options]",
    "Watch the training job of this node for tpmon fleet, which starts this command and reads its output.\n"
    "It ends 10 s after nobody asks it for anything.",
    EXIT_CODES,
)
