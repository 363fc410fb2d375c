"""Settings and options: which source wins, how a value that cannot be used is refused, and what all commands share."""

import re
import subprocess
import sys
from dataclasses import fields

import pytest

from tests.command_line import read
from tpmon import cli, settings
from tpmon.commands.attach import AttachOptions
from tpmon.commands.bundle import BundleOptions
from tpmon.commands.capture import CaptureOptions
from tpmon.commands.command import Argument
from tpmon.commands.demo import BOTTLENECKS
from tpmon.commands.diagnose import DiagnoseOptions, parse_command
from tpmon.commands.doctor import DoctorOptions
from tpmon.commands.dump import DumpOptions
from tpmon.commands.sample import SampleOptions
from tpmon.commands.trace import TraceOptions
from tpmon.config import SettingSource, config_path, describe_config, locale_is_utf8, read_file, resolve
from tpmon.errors import UsageError
from tpmon.model.results.sample import CountedFunction
from tpmon.model.verdict import Kind as VerdictKind
from tpmon.settings import SETTINGS

PATH = "/home/usr/.config/tpmon/config.toml"


@pytest.mark.parametrize(
    ("key", "given", "value", "source"),
    [
        ("interval", ({}, {}, {}), 1.0, SettingSource.DEFAULT),
        ("interval", ({}, {}, {"interval": 2}), 2.0, SettingSource.FILE),
        ("interval", ({}, {"TPMON_INTERVAL": "3"}, {"interval": 2}), 3.0, SettingSource.ENVIRONMENT),
        ("interval", ({"interval": "4"}, {"TPMON_INTERVAL": "3"}, {"interval": 2}), 4.0, SettingSource.FLAG),
        ("interval", ({}, {"TPMON_INTERVAL": ""}, {"interval": 2}), 2.0, SettingSource.FILE),
        ("interval", ({"interval": "0.5"}, {}, {}), 0.5, SettingSource.FLAG),
        ("interval", ({"interval": "10"}, {}, {}), 10.0, SettingSource.FLAG),
        ("once", ({"once": False}, {}, {"once": True}), False, SettingSource.FLAG),
        ("diagnose.until", ({"diagnose.until": "hung, idle,ended"}, {}, {}), "hung, idle,ended", SettingSource.FLAG),
        ("no-stacks", ({}, {}, {}), False, SettingSource.DEFAULT),
        ("no-stacks", ({"no-stacks": True}, {}, {}), True, SettingSource.FLAG),
        ("no-stacks", ({}, {"TPMON_NO_STACKS": "1"}, {}), True, SettingSource.ENVIRONMENT),
        ("no-stacks", ({}, {}, {"no-stacks": True}), True, SettingSource.FILE),
        ("no-stacks", ({"no-stacks": False}, {"TPMON_NO_STACKS": "1"}, {"no-stacks": True}), False, SettingSource.FLAG),
    ],
)
def test_the_stronger_source_wins(key, given, value, source):
    flags, environment, tables = given
    choice = resolve(flags, environment, PATH, tables)[key]
    assert (choice.value, choice.source) == (value, source)


def test_of_json_and_plain_the_stronger_source_wins():
    choices = resolve({"plain": True}, {"TPMON_JSON": "1"}, PATH, {})
    assert (choices.read("json"), choices.read("plain")) == (False, True)
    choices = resolve({}, {"TPMON_JSON": "1"}, PATH, {"plain": True})
    assert (choices.read("json"), choices.read("plain")) == (True, False)


@pytest.mark.parametrize(
    ("flags", "environment", "tables", "named"),
    [
        ({"interval": "fast"}, {}, {}, "--interval: expected a number from 0.5 to 10, found 'fast'"),
        ({"interval": "0.4"}, {}, {}, "--interval: expected a number from 0.5 to 10, found '0.4'"),
        ({"interval": "nan"}, {}, {}, "--interval: expected a number"),
        ({}, {"TPMON_INTERVAL": "11"}, {}, "TPMON_INTERVAL: expected a number from 0.5 to 10, found '11'"),
        ({}, {"TPMON_ONCE": "maybe"}, {}, "TPMON_ONCE: expected true or false, found 'maybe'"),
        ({}, {"TPMON_DEMO_RANKS": "1.5"}, {}, "TPMON_DEMO_RANKS: expected a whole number from 1 to 16"),
        ({}, {"TPMON_DEMO_SECONDS": "inf"}, {}, "TPMON_DEMO_SECONDS: expected a number from 1 to 43200"),
        ({}, {}, {"interval": "2"}, f"{PATH}: interval: expected a number from 0.5 to 10, found '2'"),
        ({}, {}, {"interval": True}, f"{PATH}: interval: expected a number from 0.5 to 10, found True"),
        ({}, {}, {"once": 1}, f"{PATH}: once: expected true or false, found 1"),
        ({}, {}, {"demo": {"ranks": 0}}, f"{PATH}: demo.ranks: expected a whole number from 1 to 16, found 0"),
        ({}, {}, {"demo": {"bottleneck": ""}}, f"{PATH}: demo.bottleneck: expected a name, found ''"),
        ({"sample.format": "svg"}, {}, {}, "--format: 'svg' is no format"),
        ({"sample.only": "gpu"}, {}, {}, "--only: 'gpu' is nothing to count"),
        ({}, {"TPMON_DUMP_FORMAT": "xml"}, {}, "TPMON_DUMP_FORMAT: 'xml' is no format"),
        ({}, {"TPMON_SAMPLE_ONLY": "foo"}, {}, "TPMON_SAMPLE_ONLY: 'foo' is nothing to count"),
        ({}, {"TPMON_DIAGNOSE_UNTIL": "idle,foo"}, {}, "TPMON_DIAGNOSE_UNTIL: 'foo' is no kind of verdict"),
        ({}, {"TPMON_DIAGNOSE_UNTIL": ", ,"}, {}, "TPMON_DIAGNOSE_UNTIL: expected names with commas between"),
        ({"diagnose.until": "not-enough-evidence"}, {}, {}, "--until: 'not-enough-evidence' is no kind of verdict"),
        ({}, {"TPMON_DIAGNOSE_ON_CHANGE": "'a"}, {}, "TPMON_DIAGNOSE_ON_CHANGE: No closing quotation"),
        ({}, {"TPMON_DEMO_BOTTLENECK": "foo"}, {}, "TPMON_DEMO_BOTTLENECK: 'foo' is no bottleneck"),
        ({}, {"TPMON_DEMO_RANKS": "99"}, {}, "TPMON_DEMO_RANKS: expected a whole number from 1 to 16"),
        ({}, {}, {"dump": {"format": "xml"}}, f"{PATH}: dump.format: 'xml' is no format"),
        ({}, {}, {"diagnose": {"until": "foo"}}, f"{PATH}: diagnose.until: 'foo' is no kind of verdict"),
        ({}, {}, {"interva": 2}, f"{PATH}: interva: no such setting"),
        ({}, {}, {"demo": {"rank": 2}}, f"{PATH}: demo.rank: no such setting"),
        ({}, {}, {"interval": {"s": 2}}, f"{PATH}: interval.s: no such setting"),
        ({"plain": True, "json": True}, {}, {}, "json and plain exclude each other (--json, --plain)"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(flags, environment, tables, named):
    with pytest.raises(UsageError) as caught:
        resolve(flags, environment, PATH, tables)
    assert caught.value.what.startswith(named)
    assert caught.value.try_this
    assert caught.value.exit_code == 2


def test_the_closed_sets_are_what_the_rooms_below_know():
    by_key = {setting.key: set(setting.one_of) for setting in settings.SETTINGS}
    kinds = {kind.value for kind in VerdictKind if kind is not VerdictKind.NOT_ENOUGH_EVIDENCE}
    assert by_key["diagnose.until"] == kinds | {"ended"}
    assert by_key["sample.only"] == {one.value for one in CountedFunction}
    assert by_key["demo.bottleneck"] == {one.name for one in BOTTLENECKS}


def test_a_program_that_is_not_there_is_named_with_the_setting_that_asks_for_it():
    options = read(DiagnoseOptions, {}, {"diagnose": {"on-change": "no-such-program-anywhere x"}}, pid="1")
    with pytest.raises(UsageError, match=r"^config: diagnose.on-change: no program 'no-such-program-any"):
        parse_command(options.on_change or "", options.on_change_place)


def test_a_near_miss_is_answered_with_the_name():
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, PATH, {"demo": {"rank": 2}})
    assert caught.value.try_this == "write demo.ranks"


def test_every_setting_has_a_twin_in_file_environment_and_flag(tmp_path):
    texts = {settings.ValueKind.SWITCH: "true", settings.ValueKind.COUNT: "7", settings.ValueKind.NUMBER: "7.0"}
    texts[settings.ValueKind.DURATION] = "7m"
    for setting in settings.SETTINGS:
        text = texts.get(setting.kind) or (setting.one_of[1] if setting.one_of else "hang")
        head, _, name = setting.key.rpartition(".")
        file = tmp_path / "config.toml"
        kinds = (settings.ValueKind.SWITCH, settings.ValueKind.COUNT, settings.ValueKind.NUMBER)
        quoted = text if setting.kind in kinds else f'"{text}"'
        file.write_text((f"[{head}]\n" if head else "") + f"{name} = {quoted}\n")
        by_file = resolve({}, {}, str(file), read_file(str(file)))[setting.key]
        by_environment = resolve({}, {setting.variable: text}, PATH, {})[setting.key]
        given = True if setting.kind is settings.ValueKind.SWITCH else text
        by_flag = resolve({setting.key: given}, {}, PATH, {})[setting.key]
        assert by_file.value == by_environment.value == by_flag.value != setting.default
        assert (by_file.source, by_environment.source, by_flag.source) == (1, 2, 3)


@pytest.mark.parametrize(
    ("environment", "utf8"),
    [
        ({}, True),
        ({"LANG": "en_US.UTF-8"}, True),
        ({"LANG": "de_DE.utf8"}, True),
        ({"LANG": "en_US.ISO-8859-1"}, False),
        ({"LANG": "C"}, False),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),
        ({"LC_CTYPE": "C.UTF-8"}, True),
        ({"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, False),
        ({"LC_CTYPE": "en_US.UTF-8", "LANG": "C"}, True),
    ],
)
def test_the_locale_decides_about_ascii(environment, utf8):
    assert locale_is_utf8(environment) is utf8
    assert resolve({}, environment, PATH, {})["ascii"].value is not utf8
    assert resolve({"ascii": False}, environment, PATH, {})["ascii"].value is False


def test_the_file_is_found_by_xdg():
    assert config_path({"XDG_CONFIG_HOME": "/etc/xdg"}) == "/etc/xdg/tpmon/config.toml"
    assert config_path({"XDG_CONFIG_HOME": "relative"}).endswith("/.config/tpmon/config.toml")


def test_a_file_that_is_not_there_is_empty(tmp_path):
    assert read_file(str(tmp_path / "config.toml")) == {}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        pytest.param(b"interval = \n", ": not TOML: .*line 1", id="not TOML"),
        pytest.param(b"interval = 2 # \xff", ": not TOML: ", id="not UTF-8"),
        pytest.param(b"a = " + b"[" * 20_000, ": not TOML: ", id="nested"),
        pytest.param(b"x = '" + b"a" * 300_000 + b"'", ": not TOML: longer than 256 KiB", id="long"),
        pytest.param(b"interval = " + b"9" * 5000, ": not TOML: ", id="digits"),
        pytest.param("/dev/zero", ": not TOML: longer than 256 KiB", id="without end"),
        pytest.param("/", ": Is a directory", id="a folder"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, content, named):
    file = tmp_path / "config.toml"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.symlink_to(content)
    with pytest.raises(UsageError, match=f"^{re.escape(str(file))}{named}") as caught:
        read_file(str(file))
    assert len(caught.value.what) < 500


def test_tables_in_thousands_of_tables_are_no_setting():
    tables: dict[str, object] = {"b": 1}
    for _ in range(5000):
        tables = {"a": tables}
    with pytest.raises(UsageError, match="no such setting") as caught:
        resolve({}, {}, "config.toml", tables)
    assert len(caught.value.what) < 500


def test_print_config_is_a_file_that_gives_the_same_settings(tmp_path):
    environment = {"TPMON_INTERVAL": "2.5", "TPMON_COLOUR": "1"}
    choices = resolve({"once": True, "demo.ranks": "2"}, environment, PATH, {"plain": True})
    lines = describe_config(choices, environment, PATH)
    assert f"{'once = true':<24} # --once" in lines
    assert f"{'interval = 2.5':<24} # TPMON_INTERVAL" in lines
    assert f"{'plain = true':<24} # {PATH}" in lines
    assert lines[0] == f"# {PATH} (not there)"
    assert lines[-1] == "# set, but no setting: TPMON_COLOUR"
    copy = tmp_path / "config.toml"
    copy.write_text("\n".join(lines))
    again = resolve({}, {}, str(copy), read_file(str(copy)))
    assert {k: c.value for k, c in again.by_key.items()} == {k: c.value for k, c in choices.by_key.items()}


def test_a_home_that_may_not_be_searched_counts_as_no_file(tmp_path):
    home = tmp_path / "closed"
    home.mkdir()
    home.chmod(0)
    code = (
        "import os, sys; from tpmon.config import read_file\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "print(read_file(sys.argv[1]))"
    )
    path = str(home / "tpmon" / "config.toml")
    done = subprocess.run([sys.executable, "-c", code, path], check=False, capture_output=True, text=True)
    home.chmod(0o700)
    assert (done.stdout.strip(), done.stderr) == ("{}", "")


def test_a_hang_may_be_given_a_time_but_not_less_than_two_looks_take():
    assert read(AttachOptions, pid="1").hang_after_s is None
    assert read(AttachOptions, pid="1", hang_after="5m").hang_after_s == 300.0
    with pytest.raises(UsageError, match="10 or more"):
        read(AttachOptions, pid="1", hang_after="3s")


COMMANDS = [cli._find_command(name) for name in cli.PLACES if name not in cli.OWN_PARSERS]


def list_arguments() -> list[Argument]:
    return [field.metadata["argument"] for one in COMMANDS for field in fields(one.options)]


def test_every_setting_can_be_typed_and_show_is_of_every_command():
    typed = {one.setting.key for one in list_arguments() if one.setting is not None and one.is_typed}
    assert typed | {"show"} == {setting.key for setting in SETTINGS}


def test_options_come_from_flags_settings_and_defaults():
    options = read(DumpOptions, {"TPMON_DUMP_ROUNDS": "3"}, {"readonly": True}, pid="7", block=True, ranks=["1"])
    assert (options.pid, options.rounds, options.readonly, options.block) == (7, 3, True, True)
    assert (options.ranks, options.pids, options.native) == (("1",), (), False)


def test_what_is_no_flag_of_a_command_comes_from_variable_and_file_all_the_same():
    assert read(AttachOptions, {"TPMON_DIAGNOSE_UNTIL": "hung"}, pid="7").until == "hung"


@pytest.mark.parametrize("options", [AttachOptions, BundleOptions, CaptureOptions, DumpOptions, SampleOptions])
@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"pid": "7", "job": True}, "PID and --job exclude each other"),
        ({"pid": "train.py", "job": True}, "PID and --job exclude each other"),
        ({"pid": ""}, "a PID is a number"),
        ({"pid": "-5"}, "a PID is a number"),
        ({"pid": "9" * 5000}, "a PID is a number, found '999"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_job_is_named_once(options, flags, what):
    with pytest.raises(UsageError, match=f"^{what}"):
        read(options, **flags)


def test_a_file_may_name_the_only_job_beside_any_process():
    assert read(AttachOptions, {}, {"job": True}).pid is None
    assert read(AttachOptions, {}, {"job": True}, pid="7").pid == 7
    assert read(DoctorOptions).pid is None, "of the doctor it is the machine"


def test_a_flag_with_nothing_in_it_is_not_one_that_was_left_out():
    with pytest.raises(UsageError, match=r"^--csv takes a value, found ''$"):
        read(TraceOptions, files=["a.json"], csv="")
