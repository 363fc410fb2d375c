"""What all commands share: a place in the table, options that are settings or flags, and a job that is named."""

from dataclasses import fields

import pytest

from tests.command_line import read
from tpmon import cli
from tpmon.commands.attach import AttachOptions
from tpmon.commands.bundle import BundleOptions
from tpmon.commands.capture import CaptureOptions
from tpmon.commands.command import Argument
from tpmon.commands.doctor import DoctorOptions
from tpmon.commands.dump import DumpOptions
from tpmon.commands.sample import SampleOptions
from tpmon.commands.trace import TraceOptions
from tpmon.errors import UsageError
from tpmon.settings import SETTINGS

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
        ({}, "which job. PID is missing"),
        ({"pid": "7", "job": True}, "PID and --job exclude each other"),
        ({"pid": "x"}, "a PID is a number"),
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
