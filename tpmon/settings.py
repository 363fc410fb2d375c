"""The closed table of settings: flags, ``TPMON_*`` variables and keys of the file come from it. No I/O."""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple, Union

INTERVAL_LOW_S = 0.5
INTERVAL_HIGH_S = 10.0

Value = Union[bool, int, float, str]

DECIDED_LATER = None
"""The default of a setting that is not there, or that another one decides: the ranks of the demo follow its
bottleneck, the time of a diagnosis whether it waits for something."""


class Kind(Enum):
    """Name what a setting holds."""

    SWITCH = "true or false"
    COUNT = "a whole number"
    NUMBER = "a number"
    NAME = "a name"
    DURATION = "a duration such as 10s, 5m or 8h"


class Setting(NamedTuple):
    """Describe one setting. ``key`` is its name in the file; a dot means a table of the file.

    No dataclass: ``--help`` would import dataclasses for it, and with them inspect, for 13 ms.
    """

    key: str
    kind: Kind
    default: Value | None
    help: str
    metavar: str = ""
    low: float = -math.inf
    high: float = math.inf

    @property
    def variable(self) -> str:
        """Name the environment variable: ``demo.ranks`` is TPMON_DEMO_RANKS."""
        return "TPMON_" + self.key.upper().replace(".", "_").replace("-", "_")

    @property
    def flag(self) -> str:
        """Name the long flag: ``demo.ranks`` is --ranks, of ``tpmon demo`` alone."""
        return "--" + self.key.rpartition(".")[2]


OUTPUT_SETTINGS = (
    Setting("once", Kind.SWITCH, False, "read twice, one interval apart, print the second reading and end"),
    Setting("json", Kind.SWITCH, False, "print JSON, one object a line (docs/json.md)"),
    Setting("plain", Kind.SWITCH, False, "print a line when something changes, in words alone"),
    Setting("ascii", Kind.SWITCH, False, "draw with ASCII alone (default: when the locale is not UTF-8)"),
    Setting(
        "interval",
        Kind.NUMBER,
        1.0,
        f"seconds between readings, {INTERVAL_LOW_S:g} to {INTERVAL_HIGH_S:g} (default: 1)",
        metavar="SECONDS",
        low=INTERVAL_LOW_S,
        high=INTERVAL_HIGH_S,
    ),
)

STACKS_SETTING = Setting(
    "no-stacks",
    Kind.SWITCH,
    False,
    "do not look at the ranks' Python stacks (py-spy, which never stops them)",
)
"""Named by its negative, which is what one asks for; its opposite is --stacks."""

HANG_AFTER_LOW_S = 10.0
"""Below that the two looks that a hang takes, 5 s apart, do not fit."""

READONLY_SETTING = Setting(
    "readonly",
    Kind.SWITCH,
    False,
    "look only: no stacks of all ranks are read by itself, and no key stops, signals or writes",
)
HANG_AFTER_SETTING = Setting(
    "hang-after",
    Kind.DURATION,
    DECIDED_LATER,
    "how long nothing may move before it is a hang (default: longer than any pause seen, else 30s)",
    "TIME",
    HANG_AFTER_LOW_S,
)
WATCH_SETTINGS = (READONLY_SETTING, HANG_AFTER_SETTING)
"""What a session that judges may do, and when it takes a run for hung."""

JOB_SETTING = Setting("job", Kind.SWITCH, False, "attach to your only training job on this machine")

LOOK_SETTINGS = tuple(setting for setting in OUTPUT_SETTINGS if setting.key not in ("once", "plain"))
"""What a diagnosis has in common with the other commands: it prints once, and in words anyway."""

DEMO_SETTINGS = (
    Setting(
        "demo.ranks", Kind.COUNT, DECIDED_LATER, "ranks (default: as many as the bottleneck needs)", "N", 1
    ),
    Setting(
        "demo.workers", Kind.COUNT, DECIDED_LATER, "DataLoader workers of each rank (default: 2)", "N", 0
    ),
    Setting("demo.bottleneck", Kind.NAME, "none", "what is wrong with the training (default: none)", "NAME"),
    Setting("demo.seconds", Kind.NUMBER, 900.0, "end the training after so long (default: 900)", "S", 1),
)

CHECK_SETTING = Setting(
    "check", Kind.SWITCH, False, "print the verdict in one line and end with its exit code (docs/verdicts.md)"
)
BELL_SETTING = Setting("bell", Kind.SWITCH, False, "ring the terminal bell when the verdict turns bad")

DIAGNOSE_SETTINGS = (
    Setting(
        "diagnose.for",
        Kind.DURATION,
        DECIDED_LATER,
        "how long to look (default: 15s, or for ever when waiting)",
        "TIME",
        1,
    ),
    Setting(
        "diagnose.until",
        Kind.NAME,
        DECIDED_LATER,
        "wait for one of these verdicts, such as hung,idle,ended, and end with its exit code; also of a"
        " program that just starts",
        "KINDS",
    ),
    Setting(
        "diagnose.on-change",
        Kind.NAME,
        DECIDED_LATER,
        "program and arguments to start at each new verdict, without a shell; the verdict as JSON on stdin",
        "COMMAND",
    ),
)

DUMP_FORMAT_SETTING = Setting(
    "dump.format", Kind.NAME, "text", "text, json, collapsed or speedscope (default: text)", "FORMAT"
)
DUMP_SETTINGS = (
    Setting("dump.rounds", Kind.COUNT, 1, "look so often, to tell what moves (default: 1)", "N", 1, 100),
    Setting("dump.every", Kind.NUMBER, 5.0, "seconds between looks (default: 5)", "SECONDS", 0, 3600),
    DUMP_FORMAT_SETTING,
)
"""Stopping a process is no setting: nobody shall do it because of a file that was forgotten."""

SAMPLE_SETTINGS = (
    Setting("sample.seconds", Kind.NUMBER, 10.0, "how long to sample (default: 10)", "SECONDS", 1, 3600),
    Setting("sample.rate", Kind.COUNT, 20, "samples in a second, 5 to 50 (default: 20)", "HZ", 5, 50),
    Setting(
        "sample.only",
        Kind.NAME,
        "all",
        "count only samples in which a thread was running, or held the gil (default: all)",
        "WHICH",
    ),
    Setting(
        "sample.format", Kind.NAME, "text", "text, json, collapsed or speedscope (default: text)", "FORMAT"
    ),
)
"""Whose stacks are sampled, and the file to write, are no settings: they belong to one call."""

BUNDLE_SETTINGS = (
    Setting("bundle.seconds", Kind.NUMBER, 15.0, "how long to watch (default: 15)", "SECONDS", 2, 600),
)
"""Where the bundle goes is no setting: it belongs to one call."""

SETTINGS = (
    *OUTPUT_SETTINGS,
    STACKS_SETTING,
    *WATCH_SETTINGS,
    JOB_SETTING,
    CHECK_SETTING,
    BELL_SETTING,
    *DIAGNOSE_SETTINGS,
    *DUMP_SETTINGS,
    *SAMPLE_SETTINGS,
    *BUNDLE_SETTINGS,
    *DEMO_SETTINGS,
)
