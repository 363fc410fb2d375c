"""The closed table of settings: flags, ``TPMON_*`` variables and keys of the file come from it.

What a setting may hold is checked here too, wherever its value comes from. No I/O.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple, Union

from tpmon.errors import UsageError

CATALOGUE = "tpmon --print-config lists every setting and its value"
_HUGE = 10**18
_TIME_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_YES = frozenset(("1", "true", "yes", "on"))
_NO = frozenset(("0", "false", "no", "off"))
INTERVAL_LOW_S = 0.5
INTERVAL_HIGH_S = 10.0

Value = Union[bool, int, float, str]


class ValueKind(Enum):
    """Name what a setting holds."""

    SWITCH = "true or false"
    COUNT = "a whole number"
    NUMBER = "a number"
    NAME = "a name"
    NAMES = "names with commas between"
    COMMAND = "a program and its arguments"
    DURATION = "a duration such as 10s, 5m or 8h"


class Setting(NamedTuple):
    """Describe one setting. ``key`` is its name in the file; a dot means a table of the file."""

    key: str
    kind: ValueKind
    default: Value | None
    """None where it is not there, or where another one decides: the bottleneck of the demo its ranks."""
    help: str
    metavar: str = ""
    low: float = -math.inf
    high: float = math.inf
    words: str = ""
    """The closed set of names, with spaces between; "" where any will do."""
    refusal: str = ""
    """What is said of a name that is none of them."""

    @property
    def one_of(self) -> tuple[str, ...]:
        """Return the closed set of names; none where any will do."""
        return tuple(self.words.split())

    @property
    def variable(self) -> str:
        """Name the environment variable: ``demo.ranks`` is TPMON_DEMO_RANKS."""
        return "TPMON_" + self.key.upper().replace(".", "_").replace("-", "_")

    @property
    def flag(self) -> str:
        """Name the long flag: ``demo.ranks`` is --ranks, of ``tpmon demo`` alone."""
        return "--" + self.key.rpartition(".")[2]


SWITCH, COUNT, NUMBER, NAME, NAMES, COMMAND, DURATION = ValueKind


def _switch(key: str, help_line: str) -> Setting:
    return Setting(key, SWITCH, False, help_line)


MOST_DEMO_RANKS = 16
MOST_DEMO_WORKERS = 32
MOST_DEMO_SECONDS = 12 * 3600.0
HANG_AFTER_LOW_S = 10.0
"""Below that the two looks that a hang takes, 5 s apart, do not fit."""
STACK_FORMATS = ("text", "json", "collapsed", "speedscope")
ENDED = "ended"
"""The one word of --until that is no kind of verdict: the job is gone."""
_DUMP_FORMAT = Setting(
    "dump.format",
    NAME,
    "text",
    "text, json, collapsed or speedscope (default: text)",
    "FORMAT",
    words=" ".join(STACK_FORMATS),
    refusal="is no format",
)

SETTINGS = (
    _switch("once", "read twice, one interval apart, print the second reading and end"),
    _switch("json", "print JSON, one object a line (docs/json.md)"),
    _switch("plain", "print a line when something changes, without box drawing"),
    _switch("ascii", "draw with ASCII only (default: when the locale is not UTF-8)"),
    Setting(
        "interval",
        NUMBER,
        1.0,
        f"seconds between readings, {INTERVAL_LOW_S:g} to {INTERVAL_HIGH_S:g} (default: 1)",
        "SECONDS",
        INTERVAL_LOW_S,
        INTERVAL_HIGH_S,
    ),
    # Named by its negative, which is what one asks for; its opposite is --stacks.
    _switch("no-stacks", "do not sample the ranks' Python stacks (py-spy, which never stops them)"),
    _switch("readonly", "only read: no dumps of all stacks unasked, and nothing stops, signals or writes"),
    Setting(
        "hang-after",
        DURATION,
        None,
        "how long nothing may move before it is a hang (default: twice the longest pause seen, 30s to 10min)",
        "TIME",
        HANG_AFTER_LOW_S,
    ),
    Setting("log", NAME, None, "log to FILE what tpmon itself does, for a report of a bug in it", "FILE"),
    _switch("show", "keep long random words readable (hashes), where no name hides them"),
    _switch("job", "attach to your only training job on this machine"),
    _switch("check", "print the verdict in one line and end with its exit code (docs/verdicts.md)"),
    _switch("bell", "ring the terminal bell when the verdict turns bad"),
    Setting(
        "attach.every",
        DURATION,
        None,
        "write JSON or words so often, up to 1h, with all that happened in between (default: each reading)",
        "TIME",
        INTERVAL_LOW_S,
        3600,
    ),
    Setting(
        "diagnose.for",
        DURATION,
        None,
        "how long to watch (default: 15s, without limit when waiting)",
        "TIME",
        1,
    ),
    Setting(
        "diagnose.until",
        NAMES,
        None,
        "wait for one of these verdicts, such as hung,idle,ended, and end with its exit code; also for a"
        " program that just starts",
        "KINDS",
        words="balanced comms-bound compute-bound cpu-throttled data-bound failed gpu-throttled"
        " gpu-unhealthy hung idle launch-bound limits memory-pressure oversubscribed paused python-bound"
        f" starting sync-bound {ENDED}",
        refusal="is no kind of verdict",
    ),
    Setting(
        "diagnose.on-change",
        COMMAND,
        None,
        "program and arguments to start at each new verdict, without a shell; the verdict as JSON on stdin",
        "COMMAND",
    ),
    # Stopping a process is no setting: nobody shall do it because of a file that was forgotten.
    Setting("dump.rounds", COUNT, 1, "dump so often, to see what moves (default: 1)", "N", 1, 100),
    Setting("dump.every", NUMBER, 5.0, "seconds between dumps (default: 5)", "SECONDS", 0, 3600),
    _DUMP_FORMAT,
    # Whose stacks are sampled, and the file to write, are no settings: they belong to one call.
    Setting("sample.seconds", NUMBER, 10.0, "how long to sample (default: 10)", "SECONDS", 1, 3600),
    Setting("sample.rate", COUNT, 20, "samples a second, 5 to 50 (default: 20)", "HZ", 5, 50),
    Setting(
        "sample.only",
        NAME,
        "all",
        "count only samples in which a thread was running, or held the gil (default: all)",
        "WHICH",
        words="all running gil",
        refusal="is nothing to count",
    ),
    _DUMP_FORMAT._replace(key="sample.format"),
    # Where the bundle goes is no setting: it belongs to one call.
    Setting("bundle.seconds", NUMBER, 15.0, "how long to watch (default: 15)", "SECONDS", 2, 600),
    Setting(
        "demo.ranks", COUNT, None, "ranks (default: as many as the bottleneck needs)", "N", 1, MOST_DEMO_RANKS
    ),
    Setting(
        "demo.workers", COUNT, None, "DataLoader workers of each rank (default: 2)", "N", 0, MOST_DEMO_WORKERS
    ),
    Setting(
        "demo.bottleneck",
        NAME,
        "slow-storage",
        "what is wrong with the training (default: slow-storage)",
        "NAME",
        words="none slow-transform no-workers slow-storage oversubscribed straggler python-bound memory-leak"
        " hang",
        refusal="is no bottleneck",
    ),
    Setting(
        "demo.seconds",
        NUMBER,
        900.0,
        "end the training after so long (default: 900)",
        "S",
        1,
        MOST_DEMO_SECONDS,
    ),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}


def _refuse(setting: Setting, where: str, found: object) -> UsageError:
    expected = setting.kind.value
    if setting.high < math.inf:
        expected = f"{expected} from {setting.low:g} to {setting.high:g}"
    elif setting.low > -math.inf:
        expected = f"{expected}, {setting.low:g} or more"
    return UsageError(f"{where}: expected {expected}, found {found!r}", CATALOGUE)


def check_value(setting: Setting, value: object, where: str, found: str | None = None) -> Value:
    """Return ``value`` in the type of ``setting``; ``found`` is the text it was read from, if any.

    Raises:
        UsageError: naming ``where``, for another type or a number out of range.
    """
    kind = setting.kind
    if kind is SWITCH:
        if isinstance(value, bool):
            return value
    elif kind in (NAME, NAMES, COMMAND):
        if isinstance(value, str) and value:
            if kind is NAMES:
                parse_names(setting, value, where)
            elif kind is COMMAND:
                split_command(value, where)
            elif setting.one_of and value not in setting.one_of:
                raise _refuse_name(setting, value, where)
            return value
    elif kind is DURATION and isinstance(value, str):
        seconds = parse_duration(value.strip())
        if seconds is not None:
            return check_value(setting, seconds, where, found if found is not None else value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        whole = kind is COUNT
        if (
            -_HUGE < value < _HUGE  # no NaN either
            and setting.low <= value <= setting.high
            and (not whole or isinstance(value, int))
        ):
            return value if whole else float(value)
    raise _refuse(setting, where, value if found is None else found)


def _refuse_name(setting: Setting, name: str, where: str) -> UsageError:
    return UsageError(f"{where}: {name!r} {setting.refusal}", f"one of: {', '.join(setting.one_of)}")


def parse_names(setting: Setting, text: str, where: str) -> frozenset[str]:
    """Read names with commas between; UsageError, naming ``where``, for none or one not of the closed set."""
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise _refuse(setting, where, text)
    for name in sorted(names):
        if name not in setting.one_of:
            raise _refuse_name(setting, name, where)
    return names


def split_command(text: str, where: str) -> tuple[str, ...]:
    """Split a program and its arguments as a shell would; UsageError, naming ``where``, if it cannot be."""
    import shlex  # noqa: PLC0415  # --help does without it

    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{where}: {error}", "quote the command as for a shell") from error
    if not words:
        raise UsageError(f"{where}: no program in {text!r}", "give a program and its arguments")
    return words


def parse_duration(text: str) -> float | None:
    """Read "90", "90s", "5m", "8h" or "2d" as seconds; None for anything else."""
    factor = _TIME_UNITS.get(text[-1:].lower(), 0)
    number = text[:-1] if factor else text
    try:
        return float(number) * (factor or 1)
    except ValueError:
        return None


def parse_text(setting: Setting, text: str, where: str) -> Value:
    """Read a value from a flag or an environment variable; UsageError, naming ``where``, if it is none."""
    kind, word = setting.kind, text.strip()
    value: object = word
    if kind is SWITCH and word.lower() in (*_YES, *_NO):
        value = word.lower() in _YES
    elif kind is DURATION:
        value = parse_duration(word)
    elif kind in (COUNT, NUMBER):
        try:
            value = int(word) if kind is COUNT else float(word)
        except ValueError:
            raise _refuse(setting, where, text) from None
    return check_value(setting, value, where, None if kind in (NAME, NAMES, COMMAND) else text)
