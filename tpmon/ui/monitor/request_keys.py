"""The rows of the table of keys that ask for stacks, samples and captures."""

from __future__ import annotations

from functools import partial

from tpmon.model.results.capture import (
    STEP_CHOICES,
    Change,
    fewer_steps,
    more_steps,
    next_kind,
    other_ranks,
)
from tpmon.ui.kit.keys import Effect
from tpmon.ui.monitor import key_conditions as when
from tpmon.ui.monitor import requests as ask_capture
from tpmon.ui.monitor import requests as ask_dump
from tpmon.ui.monitor import requests as ask_sample
from tpmon.ui.monitor import state as actions
from tpmon.ui.monitor.key_conditions import Demand, LiveKey
from tpmon.ui.monitor.panes import stack_rows
from tpmon.ui.monitor.state import Overlay

_capture = partial(LiveKey, "Capture")
_copying = partial(LiveKey, "Copying")


def _change(change: Change) -> Demand:
    return Demand(partial(ask_capture.ask_change, change=change))


CAPTURE_KEYS: tuple[LiveKey, ...] = (
    _copying(
        "capture",
        "t",
        "plan a capture of some steps; asks nothing of the run yet",
        Demand(ask_capture.ask_plan),
        when.CAPTURABLE,
        brief="a capture; asks first",
    ),
    _copying(
        "capture-cancel",
        "t",
        "cancel the capture that is under way; no file is left",
        Demand(ask_capture.ask_end),
        when.CAPTURE_ACTS,
        ("cancel capture", 1),
        brief="cancel the capture",
    ),
    _copying(
        "open-trace",
        "o",
        "open the trace captured last; q returns here",
        Effect.OPEN_TRACE,
        when.CAPTURED,
        ("open trace", 2),
        brief="open the captured trace",
    ),
    _capture(
        "capture-go",
        "t enter",
        "agree: one step is profiled for the price of a trace; once more at that price: it is recorded",
        Demand(ask_capture.ask_go),
        when.CAPTURE_ASKS,
        ("go on", 1),
        brief="go on at this price",
    ),
    _capture(
        "capture-kind",
        "c",
        "what to capture: a trace, a snapshot of the CUDA allocator, a range for nsys",
        _change(next_kind),
        when.CAPTURE_KINDS,
        ("other kind", 4),
        brief="trace, snapshot, nsys range",
    ),
    _capture(
        "capture-more",
        "+",
        f"more steps, at most {STEP_CHOICES[-1]:,}; after the price: back to the plan",
        _change(more_steps),
        when.CAPTURE_MORE,
        ("more steps", 2),
        brief="more steps, fewer",
    ),
    _capture(
        "capture-fewer",
        "-",
        "fewer steps",
        _change(fewer_steps),
        when.CAPTURE_FEWER,
        ("fewer", 2),
        brief="more steps, fewer",
    ),
    _capture(
        "capture-ranks",
        "a",
        "the same steps of all ranks on this machine, or of this one alone",
        _change(other_ranks),
        when.CAPTURE_RANKS,
        ("all ranks or one", 3),
        brief="all ranks, or this one",
    ),
    _capture(
        "capture-leave",
        "esc",
        "leave the price, or cancel the capture under way",
        Demand(ask_capture.ask_end),
        when.CAPTURE_OPEN,
        ("leave, cancel", 1),
        brief="leave or cancel the capture",
    ),
)


_stacks = partial(LiveKey, "Stacks")
_FOLD = "open or close a stack"
_DEEPER = "3 dumps, C frames, locals"

STACK_KEYS: tuple[LiveKey, ...] = (
    _stacks(
        "dump",
        "d",
        "where every thread of the job is now; nothing is stopped for it",
        Demand(ask_dump.ask_job),
        when.ALIVE,
        ("stacks", 3),
        brief="stacks: all, of this row",
    ),
    _stacks(
        "dump-row",
        "D",
        "the stacks of the process under the cursor alone, of a rank with its workers",
        Demand(ask_dump.ask_row),
        when.LIVE_ROWS,
        brief="stacks: all, of this row",
    ),
    _stacks(
        "sample",
        "f",
        "the price of hot functions of the rank under the cursor and its workers, else of the lowest rank",
        Demand(ask_sample.open_price),
        when.UNSAMPLED,
        ("hot functions", 5),
        brief="hot functions: a rank, all",
    ),
    _stacks(
        "sample-all",
        "F",
        "the price of hot functions of the whole job",
        Demand(ask_sample.price_whole_job),
        when.UNSAMPLING,
        brief="hot functions: a rank, all",
    ),
    _stacks(
        "sample-start",
        "f",
        "start sampling; the functions appear meanwhile",
        Demand(ask_sample.start_sample),
        when.PRICED,
        ("start", 1),
        brief="start to sample",
    ),
    _stacks(
        "sample-end",
        "f",
        "end sampling early and keep the result",
        Demand(ask_sample.end_sample),
        when.SAMPLING,
        ("end", 1),
        brief="end it early, keep it",
    ),
    _stacks(
        "sample-write",
        "w",
        "write all samples into new files here, for speedscope and as folded stacks for a flame graph",
        Demand(ask_sample.write_samples),
        when.WRITABLE,
        ("write", 2),
        brief="files for other tools",
    ),
    _stacks(
        "stacks",
        "6",
        "the stacks read last, again to return",
        partial(actions.action_overlay, overlay=Overlay.STACKS),
        when.OVERVIEWS,
        brief="what was read last",
    ),
    _stacks(
        "hot",
        "7",
        "the hot functions sampled last, again to return",
        partial(actions.action_overlay, overlay=Overlay.SAMPLE),
        when.OVERVIEWS,
        brief="what was read last",
    ),
    _stacks(
        "capture-shown",
        "8",
        "the capture asked for last, again to return; what is under way goes on",
        partial(actions.action_overlay, overlay=Overlay.CAPTURE),
        when.OVERVIEWS,
        brief="what was read last",
    ),
    _stacks(
        "looks",
        "m",
        f"{ask_dump.LOOKS} dumps {ask_dump.LOOKS_EVERY_S:g} s apart: what moves, what is frozen",
        Demand(ask_dump.ask_looks),
        when.LIVE_STACKS,
        ("3 dumps", 2),
        brief=_DEEPER,
    ),
    _stacks(
        "native",
        "N",
        "read the C frames too; stops every process shown; shows the price, N again does it",
        Demand(ask_dump.ask_native),
        when.STOPPING_STACKS,
        brief=_DEEPER,
    ),
    _stacks(
        "variables",
        "L",
        "read the variables of your own frames too; nothing is stopped; shows the price, L again does it",
        Demand(ask_dump.ask_variables),
        when.LIVE_STACKS,
        brief=_DEEPER,
    ),
    _stacks(
        "turn-stack",
        "enter",
        "open or close the group under the cursor",
        stack_rows.action_fold,
        when.IN_GROUPS,
        ("open", 2),
        brief=_FOLD,
    ),
    _stacks(
        "open-stack",
        "right",
        "open the group under the cursor, then go into its stack",
        partial(stack_rows.action_fold, opens=True),
        when.IN_GROUPS,
        brief=_FOLD,
    ),
    _stacks(
        "close-stack",
        "left",
        "go back to the group of this line, then close it",
        partial(stack_rows.action_fold, opens=False),
        when.IN_GROUPS,
        brief=_FOLD,
    ),
    _stacks(
        "tree",
        "T",
        "merge the stacks of all threads into a tree, and back",
        stack_rows.action_tree,
        when.DUMPED_STACKS,
        ("tree", 6),
        brief="as a tree, with all frames",
    ),
    _stacks(
        "whole",
        "w",
        "every frame of a stack, also those of libraries, and back",
        stack_rows.action_whole,
        when.DUMPED_STACKS,
        ("all frames", 6),
        brief="as a tree, with all frames",
    ),
    _stacks(
        "edit",
        "o",
        "open $VISUAL or $EDITOR at the line under the cursor",
        Effect.EDIT,
        when.FRAMED,
        ("editor", 2),
        brief="$EDITOR at this line",
    ),
    _stacks(
        "copy-dump",
        "y",
        "copy all stacks, all hot functions, or the result of a capture, as text",
        Effect.COPY_RESULT,
        when.DUMPED,
        ("copy", 4),
        brief="copy all of it as text",
    ),
    _stacks(
        "stop-and-read",
        "R",
        "read with a stop what could not be read without; shows the price, R again does it",
        Demand(ask_dump.ask_stop),
        when.STOPPABLE,
        ("retry", 1),
        brief="retry with a stop; asks first",
    ),
)
