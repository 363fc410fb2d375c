"""Decide every setting: default < file < environment < flag, and remember which of them won.

Knows no terminal and no process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from tpmon.errors import TpmonError, UsageError, exclude
from tpmon.model.frozen import dataclass
from tpmon.model.units import clean_text
from tpmon.settings import BY_KEY, CATALOGUE, SETTINGS, Value, check_value, parse_text


class SettingSource(IntEnum):
    """Name the places a value can come from; the larger one wins."""

    DEFAULT = 0
    FILE = 1
    ENVIRONMENT = 2
    FLAG = 3


@dataclass(frozen=True, slots=True)
class SettingChoice:
    """Hold the value of a setting and what decided it, in words that a person can look up."""

    value: Value | None
    source: SettingSource
    where: str


FORBIDDING = ("readonly", "no-stacks")
"""Settings that forbid something: a key like one of them is never left out."""
_MOST_BYTES = 256 << 10
_DEEPEST = 8
"""Tables in tables; what lies deeper is no setting."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Hold the choice for every setting, by its key."""

    by_key: Mapping[str, SettingChoice]

    def __getitem__(self, key: str) -> SettingChoice:
        """Return what was chosen for a setting, also where another one takes its effect away."""
        return self.by_key[key]

    def read(self, key: str) -> Value | None:
        """Return the value that holds: of json and plain the stronger one; UsageError if they are equal."""
        value = self.by_key[key].value
        if key not in ("json", "plain"):
            return value
        json, plain = self.by_key["json"], self.by_key["plain"]
        if json.value and plain.value:
            if json.source == plain.source:
                raise exclude("json and plain", f" ({json.where}, {plain.where})")
            return (json.source > plain.source) == (key == "json")
        return value

    def is_flag(self, key: str) -> bool:
        """Tell whether a setting was typed."""
        return self.by_key[key].source is SettingSource.FLAG

    def name_place(self, key: str) -> str:
        """Name what decided a setting: a flag, a variable, or the file and the key in it."""
        choice = self.by_key[key]
        return f"{choice.where}: {key}" if choice.source is SettingSource.FILE else choice.where

    def pick_format(self, key: str) -> str:
        """Return the form of a setting, or JSON of a stronger source; UsageError where one asks for both."""
        name, source = str(self.by_key[key].value), self.by_key[key].source
        json_from = self.by_key["json"].source
        if not self.read("json") or source > json_from:
            return name
        if source == json_from and name not in ("text", "json"):
            place = {
                SettingSource.FILE: "the configuration file",
                SettingSource.ENVIRONMENT: "the environment",
            }.get(source)
            both = f"json and format {name}, both of {place}," if place else f"--json and --format {name}"
            raise exclude(both)
        return "json"


def config_path(environment: Mapping[str, str]) -> str:
    """Return the path of the configuration file, which need not exist.

    A relative XDG_CONFIG_HOME is ignored, as the XDG base directory specification asks.
    """
    home = environment.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(home):
        home = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "tpmon", "config.toml")


def state_folder(environment: Mapping[str, str]) -> str:
    """Return the folder for reports of crashes and for recordings, which need not exist.

    A relative XDG_STATE_HOME is ignored; "~" stays for a user without HOME and without an entry in passwd.
    """
    state = environment.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "tpmon")


def make_state_folder(environment: Mapping[str, str], try_this: str) -> str:
    """Make the folder for recordings, and return it; UsageError where that cannot be."""
    folder = state_folder(environment)
    try:
        if not os.path.isabs(folder):
            raise OSError(0, "no home folder is known", folder)
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}", try_this) from error
    return folder


def read_file(path: str) -> dict[str, Any]:
    """Read the configuration file: empty where there is none or no home; UsageError where it is no TOML."""
    if not os.path.isabs(path):
        return {}
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        # In a home of somebody else (sudo, setpriv) there is no file for this user.
        if isinstance(error, FileNotFoundError) or not os.access(os.path.dirname(path), os.X_OK):
            return {}
        raise UsageError(
            f"{path}: {error.strerror or error}", "make the file readable, or move it away"
        ) from error
    # Imported here: most people have no configuration file, and --help should not pay for one.
    import importlib  # noqa: PLC0415

    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        if len(content) > _MOST_BYTES:
            raise ValueError(f"longer than {_MOST_BYTES >> 10} KiB")
        tables: dict[str, Any] = toml.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}", "correct that line, or move the file away") from error
    return tables


def _flatten(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict) and prefix.count(".") < _DEEPEST:
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def locale_is_utf8(environment: Mapping[str, str]) -> bool:
    """Tell whether the locale writes UTF-8; no locale at all counts as UTF-8, as Python has it.

    In the C locale Python sets LC_CTYPE=C.UTF-8 for itself (PEP 538), so that value says nothing
    against a LANG that names a locale.
    """
    c_type = environment.get("LC_CTYPE", "")
    language = environment.get("LANG", "")
    if c_type == "C.UTF-8" and language:
        c_type = ""
    name = environment.get("LC_ALL") or c_type or language
    return not name or name.lower().replace("-", "").rpartition(".")[2].startswith("utf8")


@contextmanager
def _kept(bad: list[str] | None) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        if bad is None:
            raise
        bad.append(error.what)


def _find_close(key: str) -> str:
    """Return the setting whose name is most like a key, "" where none is like it."""
    import difflib  # noqa: PLC0415  # only when there is an error to explain

    return next(iter(difflib.get_close_matches(key, list(BY_KEY), 1)), "")


def resolve(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    path: str,
    tables: Mapping[str, Any],
    bad: list[str] | None = None,
    *,
    unknown: list[TpmonError] | None = None,
) -> Choices:
    """Decide every setting. ``flags`` holds the given flags by setting key, ``tables`` the file at ``path``.

    Where a list ``bad`` is given, what cannot be used is left out and named there; ``unknown`` takes keys of
    the file that are no setting, but none that is like one of ``FORBIDDING``: who wrote it counts on it.

    Raises:
        UsageError: naming file and key, variable, or flag of a value that cannot be used.
    """
    choices = {s.key: SettingChoice(s.default, SettingSource.DEFAULT, "default") for s in SETTINGS}
    if not locale_is_utf8(environment):
        choices["ascii"] = SettingChoice(True, SettingSource.DEFAULT, "default: the locale is not UTF-8")
    for key, value in _flatten(tables).items():
        with _kept(bad):
            if key not in BY_KEY:
                close = _find_close(key)
                error = UsageError(
                    f"{path}: {key}: no such setting", f"write {close}" if close else CATALOGUE
                )
                if unknown is None or close in FORBIDDING:
                    raise error
                unknown.append(error)
                continue
            checked = check_value(BY_KEY[key], value, f"{path}: {key}")
            choices[key] = SettingChoice(checked, SettingSource.FILE, path)
    for setting in SETTINGS:
        for given, source, where in (
            (environment.get(setting.variable) or None, SettingSource.ENVIRONMENT, setting.variable),
            (flags.get(setting.key), SettingSource.FLAG, setting.flag),
        ):
            if given is not None:
                with _kept(bad):
                    checked = given if isinstance(given, bool) else parse_text(setting, str(given), where)
                    choices[setting.key] = SettingChoice(checked, source, where)
    chosen = Choices(choices)
    with _kept(bad):
        chosen.read("json")
    return chosen


def describe_config(
    choices: Choices, environment: Mapping[str, str], path: str, bad: Sequence[str] = ()
) -> list[str]:
    """Write every setting as a line of TOML with a comment that says which source won, or is ``bad``."""
    import json  # noqa: PLC0415  # numbers, strings, true and false of TOML are written as in JSON

    found = "read" if os.path.isabs(path) and os.path.exists(path) else "not there"
    lines = [f"# {path} ({found})"]
    lines += [f"# cannot be used, and left out here: {clean_text(one, 1000)}" for one in bad]
    lines.append("# a flag wins over a TPMON_* variable, that over this file, that over the default")
    table = ""
    for setting in SETTINGS:
        head, _, name = setting.key.rpartition(".")
        if head != table:
            table = head
            lines += ["", f"[{head}]"]
        choice = choices[setting.key]
        if choice.value is None:
            lines.append(f"# {name} is not set: {setting.help}")
            continue
        text = f"{name} = {json.dumps(choice.value)}"
        lines.append(f"{text:<24} # {choice.where}")
    known = {setting.variable for setting in SETTINGS}
    strangers = sorted(name for name in environment if name.startswith("TPMON_") and name not in known)
    if strangers:
        lines += ["", f"# set, but no setting: {', '.join(strangers)}"]
    return lines
