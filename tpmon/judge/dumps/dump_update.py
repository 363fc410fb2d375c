"""Make of a dump that grows what its sinks get: the fold of what has come, then the records. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from tpmon.judge.dumps.collectives import add_collectives
from tpmon.judge.dumps.collectives_stacks import may_wait
from tpmon.judge.dumps.groups import Origin, fold_rounds
from tpmon.judge.dumps.stack_tree import build_tree, show_stacks
from tpmon.model.dump import DumpRound, DumpState
from tpmon.model.frame import Frame, TargetState
from tpmon.model.host import OutputSample
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.model.results.collectives import CollectivesReading
from tpmon.model.results.results import DumpUpdate

NOTHING_READ = Missing("nothing was read yet")


def whole_rounds(state: DumpState) -> tuple[DumpRound, ...]:
    """Return the looks to fold: those read as a whole, or a part of the first when there is no more."""
    is_part = state.running and 0 < state.answered < state.asked
    return state.rounds[:-1] if is_part and len(state.rounds) > 1 else state.rounds


def date_log(logs: Sequence[OutputSample]) -> Applicable[datetime]:
    """Return when the job wrote into its log last: what one look cannot tell, for how long it stands."""
    dated = [one.last_write for one in logs if is_known(one.last_write) and is_known(one.last_write_age_s)]
    return max(dated, default=NOT_APPLICABLE)


def fold_state(state: DumpState, frame: Frame) -> DumpUpdate:
    """Fold what a dump has read; ``frame`` tells of which job, and of its log.

    Once its last look is done and somebody may wait for others, the job's records are worth reading.
    """
    rounds = whole_rounds(state)
    if not rounds:
        return DumpUpdate(state, NOTHING_READ)
    target, pids = frame.target, state.request.pids
    not_asked = sum(row.pid not in pids for row in frame.ranks) if pids else NOT_APPLICABLE
    origin = Origin(target.pid, target.script, target.world_size, not_asked)
    dump = fold_rounds(rounds, origin, earlier=state.earlier)
    dump = replace(dump, last_write=date_log(frame.output))
    awaits = not state.running and target.state is not TargetState.ENDED and may_wait(dump.groups)
    return DumpUpdate(state, dump, show_stacks(dump.groups), build_tree(dump.groups), awaits_records=awaits)


def add_records(update: DumpUpdate, reading: CollectivesReading) -> DumpUpdate:
    """Return a finished dump with what the job recorded of its collectives."""
    dump = add_collectives(update.dump, reading) if is_known(update.dump) else update.dump
    return replace(update, dump=dump, awaits_records=False)
