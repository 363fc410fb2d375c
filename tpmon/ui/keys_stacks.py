"""The rows of the table of keys that belong to stacks. Knows nothing of textual."""

from __future__ import annotations

from functools import partial

from tpmon.ui import actions, ask_dump, stack_rows
from tpmon.ui import situations as when
from tpmon.ui.key_row import Ask, Effect, Key
from tpmon.ui.view import Overlay

_SECTION = "Stacks"
_FOLD = "open or close a stack"

STACK_KEYS: tuple[Key, ...] = (
    Key(
        "dump",
        ("d",),
        ("d",),
        _SECTION,
        "where every thread of the job is now; nothing is stopped for it",
        Ask(ask_dump.ask_job),
        when.ALIVE,
        "stacks",
        3,
        brief="stacks: all, of this row",
    ),
    Key(
        "dump-row",
        ("D",),
        ("D",),
        _SECTION,
        "the stacks of the process under the cursor alone, of a rank with its workers",
        Ask(ask_dump.ask_row),
        when.LIVE_ROWS,
        brief="stacks: all, of this row",
    ),
    Key(
        "stacks",
        ("6",),
        ("6",),
        _SECTION,
        "the stacks read last, again to return",
        partial(actions.action_overlay, overlay=Overlay.STACKS),
        when.STACKS,
        brief="the stacks read last",
    ),
    Key(
        "looks",
        ("m",),
        ("m",),
        _SECTION,
        f"{ask_dump.LOOKS} looks {ask_dump.LOOKS_EVERY_S:g} s apart: what moves, what is frozen",
        Ask(ask_dump.ask_looks),
        when.LIVE_STACKS,
        "3 looks",
        2,
        brief="three looks: what moves",
    ),
    Key(
        "turn-stack",
        ("enter",),
        ("enter",),
        _SECTION,
        "open or close the group under the cursor",
        stack_rows.action_fold,
        when.IN_GROUPS,
        "open",
        2,
        brief=_FOLD,
    ),
    Key(
        "open-stack",
        ("right",),
        ("right",),
        _SECTION,
        "open the group under the cursor, then go into its stack",
        partial(stack_rows.action_fold, opens=True),
        when.IN_GROUPS,
        brief=_FOLD,
    ),
    Key(
        "close-stack",
        ("left",),
        ("left",),
        _SECTION,
        "go back to the group of this line, then close it",
        partial(stack_rows.action_fold, opens=False),
        when.IN_GROUPS,
        brief=_FOLD,
    ),
    Key(
        "edit",
        ("o",),
        ("o",),
        _SECTION,
        "open $VISUAL or $EDITOR at the line under the cursor",
        Effect.EDIT,
        when.FRAMED,
        "editor",
        2,
        brief="$EDITOR at this line",
    ),
    Key(
        "copy-dump",
        ("y",),
        ("y",),
        _SECTION,
        "copy all stacks as text",
        Effect.COPY_DUMP,
        when.DUMPED,
        "copy",
        4,
        brief="copy all stacks as text",
    ),
    Key(
        "stop-and-read",
        ("R",),
        ("R",),
        _SECTION,
        "read with a stop what could not be read without; says its price, R again does it",
        Ask(ask_dump.ask_stop),
        when.STOPPABLE,
        "retry",
        1,
        brief="retry with a stop; asks first",
    ),
)
