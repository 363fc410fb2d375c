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

from tpmon.errors import UsageError
from tpmon.model.frozen import dataclass
from tpmon.model.text.redaction import keep_random
from tpmon.model.units import clean_text
from tpmon.settings import CATALOGUE, DECIDED_LATER, SETTINGS, Value, check_value, parse_text


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


_MOST_BYTES = 256 << 10
_DEEPEST = 8
"""Tables in tables; what lies deeper is no setting."""
_BY_KEY = {setting.key: setting for setting in SETTINGS}


def config_path(environment: Mapping[str, str]) -> str:
    """Return the path of the configuration file, which need not exist.

    A relative XDG_CONFIG_HOME is ignored, as the XDG base directory specification asks.
    """
    home = environment.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(home):
        home = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "tpmon", "config.toml")


def read_file(path: str) -> dict[str, Any]:
    """Read the configuration file; one that does not exist is empty, as is that of a user without a home.

    Raises:
        UsageError: for a file that cannot be read or is not TOML.
    """
    if not os.path.isabs(path):
        return {}
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        if not os.access(os.path.dirname(path), os.X_OK):
            # A home of somebody else (sudo, setpriv): there is no file for this user.
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


def _refuse_unknown(path: str, key: str) -> UsageError:
    import difflib  # noqa: PLC0415  # only when there is an error to explain

    close = difflib.get_close_matches(key, list(_BY_KEY), 1)
    return UsageError(f"{path}: {key}: no such setting", f"write {close[0]}" if close else CATALOGUE)


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


def resolve(
    flags: Mapping[str, str | bool],
    environment: Mapping[str, str],
    path: str,
    tables: Mapping[str, Any],
    bad: list[str] | None = None,
) -> dict[str, SettingChoice]:
    """Decide every setting. ``flags`` holds the given flags by setting key, ``tables`` the file at ``path``.

    Where a list ``bad`` is given, what cannot be used is left out and named there.

    Raises:
        UsageError: naming file and key, variable, or flag of a value that cannot be used.
    """
    choices = {s.key: SettingChoice(s.default, SettingSource.DEFAULT, "default") for s in SETTINGS}
    if not locale_is_utf8(environment):
        choices["ascii"] = SettingChoice(True, SettingSource.DEFAULT, "default: the locale is not UTF-8")
    for key, value in _flatten(tables).items():
        with _kept(bad):
            if key not in _BY_KEY:
                raise _refuse_unknown(path, key)
            checked = check_value(_BY_KEY[key], value, f"{path}: {key}")
            choices[key] = SettingChoice(checked, SettingSource.FILE, path)
    for setting in SETTINGS:
        text = environment.get(setting.variable, "")
        if text:
            with _kept(bad):
                checked = parse_text(setting, text, setting.variable)
                choices[setting.key] = SettingChoice(checked, SettingSource.ENVIRONMENT, setting.variable)
        given = flags.get(setting.key)
        if given is not None:
            with _kept(bad):
                checked = given if isinstance(given, bool) else parse_text(setting, given, setting.flag)
                choices[setting.key] = SettingChoice(checked, SettingSource.FLAG, setting.flag)
    if bad is not None:
        with _kept(bad):
            _settle_output(choices)
    return choices


def _settle_output(choices: Mapping[str, SettingChoice]) -> tuple[bool, bool]:
    """Return (json, plain): of two that are on, the one from the stronger source."""
    json, plain = choices["json"], choices["plain"]
    if json.value and plain.value:
        if json.source == plain.source:
            raise UsageError(
                f"json and plain exclude each other ({json.where}, {plain.where})", "leave one of the two out"
            )
        return json.source > plain.source, plain.source > json.source
    return bool(json.value), bool(plain.value)


@dataclass(frozen=True, slots=True)
class Options:
    """Hold the settled settings of one call, typed; None where another setting decides."""

    interval_s: float
    ascii_only: bool
    once: bool
    json: bool
    plain: bool
    no_stacks: bool
    readonly: bool
    hang_after_s: float | None
    job: bool
    check: bool
    bell: bool
    diagnose_for_s: float | None
    diagnose_until: str | None
    diagnose_on_change: str | None
    diagnose_on_change_where: str
    dump_rounds: int
    dump_every_s: float
    dump_format: str
    sample_seconds: float
    sample_rate: int
    sample_only: str
    sample_format: str
    bundle_seconds: float
    demo_ranks: int | None
    demo_workers: int | None
    demo_bottleneck: str
    demo_seconds: float
    json_from: SettingSource
    dump_format_from: SettingSource
    sample_format_from: SettingSource

    @property
    def is_text(self) -> bool:
        """Tell whether text was asked for instead of the screen."""
        return self.once or self.json or self.plain


def _name_place(key: str, choices: Mapping[str, SettingChoice]) -> str:
    """Name what decided a setting, as an error does: a flag, a variable, or the file and the key in it."""
    choice = choices[key]
    return f"{choice.where}: {key}" if choice.source is SettingSource.FILE else choice.where


def settle(choices: Mapping[str, SettingChoice]) -> Options:
    """Turn choices into options, and set what every output hides.

    Raises:
        UsageError: when one source asks for json and plain.
    """
    values: dict[str, Any] = {key: choice.value for key, choice in choices.items()}
    json, plain = _settle_output(choices)
    keep_random(values["show"])
    return Options(
        interval_s=values["interval"],
        ascii_only=values["ascii"],
        once=values["once"],
        json=json,
        plain=plain,
        no_stacks=values["no-stacks"],
        readonly=values["readonly"],
        hang_after_s=values["hang-after"],
        job=values["job"],
        check=values["check"],
        bell=values["bell"],
        diagnose_for_s=values["diagnose.for"],
        diagnose_until=values["diagnose.until"],
        diagnose_on_change=values["diagnose.on-change"],
        diagnose_on_change_where=_name_place("diagnose.on-change", choices),
        dump_rounds=values["dump.rounds"],
        dump_every_s=values["dump.every"],
        dump_format=values["dump.format"],
        sample_seconds=values["sample.seconds"],
        sample_rate=values["sample.rate"],
        sample_only=values["sample.only"],
        sample_format=values["sample.format"],
        bundle_seconds=values["bundle.seconds"],
        demo_ranks=values["demo.ranks"],
        demo_workers=values["demo.workers"],
        demo_bottleneck=values["demo.bottleneck"],
        demo_seconds=values["demo.seconds"],
        json_from=choices["json"].source,
        dump_format_from=choices["dump.format"].source,
        sample_format_from=choices["sample.format"].source,
    )


def pick_format(options: Options, name: str, source: SettingSource) -> str:
    """Return the form to write in: ``name`` from ``source``, or JSON where a stronger source asks for it.

    Raises:
        UsageError: for another form beside json of the same source.
    """
    if not options.json or source > options.json_from:
        return name
    if source == options.json_from and name not in ("text", "json"):
        place = {
            SettingSource.FILE: "the configuration file",
            SettingSource.ENVIRONMENT: "the environment",
        }.get(source)
        both = f"json and format {name}, both of {place}," if place else f"--json and --format {name}"
        raise UsageError(f"{both} exclude each other", "leave one of the two out")
    return "json"


def _toml_value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        import json  # noqa: PLC0415  # a TOML basic string is written like a JSON string

        return json.dumps(value)
    return repr(value)


def describe_config(
    choices: Mapping[str, SettingChoice],
    environment: Mapping[str, str],
    path: str,
    bad: Sequence[str] = (),
) -> list[str]:
    """Write every setting as a line of TOML with a comment that says which source won, or is ``bad``."""
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
        if choice.value is DECIDED_LATER:
            lines.append(f"# {name} is not set: {setting.help}")
            continue
        text = f"{name} = {_toml_value(choice.value)}"
        lines.append(f"{text:<24} # {choice.where}")
    known = {setting.variable for setting in SETTINGS}
    strangers = sorted(name for name in environment if name.startswith("TPMON_") and name not in known)
    if strangers:
        lines += ["", f"# set, but no setting: {', '.join(strangers)}"]
    return lines
