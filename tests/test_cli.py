"""The command line as a person calls it: exit codes, help, streams, signals, closed pipes."""

import itertools
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command_line import ONE_FILE, SECONDS, as_said, call, start, start_training
from tests.frames import make_finding, make_frame
from tests.trace.reading.test_trace_read import small_trace
from tpmon import __version__, cli
from tpmon.commands import attach
from tpmon.commands.demo import BOTTLENECKS
from tpmon.errors import ExitCode, find_behind
from tpmon.model.codec import decode
from tpmon.model.frame import EventKind, Frame
from tpmon.model.results.doctor import JobList
from tpmon.model.verdict import Kind
from tpmon.settings import BY_KEY

pytestmark = pytest.mark.usefixtures("small_environment")

TEXT = "json ascii"
WATCH = f"{TEXT} interval no-stacks readonly hang-after log"
OWN_FLAGS = {
    "sample": {"--rank", "--all", "--out"},
    "dump": {"--block", "--native", "--locals", "--rank", "--pid", "--fr-pipe", "--tree"},
    "fold": {"--tree"},
    "bundle": {"--out", "--tar"},
    "attach": {"--record"},
    "demo": {"--recorded"},
    "fleet": {"--slurm", "--hosts", "--pods", "--exec", "--agent", "--name", "--until", "--record"},
    "agent": {"--node", "--name"},
}
"""Flags that belong to one call and are no settings."""


# help and refusals


def test_help_names_each_command_and_each_exit_code():
    done = call("--help", code=0)
    assert done.stderr == ""
    for command in cli.PLACES:
        assert f"\n  {command} " in done.stdout
    for code in ExitCode:
        assert f" {code.value} " in done.stdout


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("ps", "json"),
        ("attach", f"{WATCH} once plain job check bell attach.every"),
        ("diagnose", f"{WATCH} job diagnose.for diagnose.until diagnose.on-change"),
        ("dump", f"{TEXT} job readonly dump.rounds dump.every dump.format"),
        ("fold", f"{TEXT} dump.format"),
        ("sample", f"{TEXT} job no-stacks sample.seconds sample.rate sample.only sample.format"),
        ("doctor", f"{TEXT} no-stacks"),
        ("fleet", f"{TEXT} once plain check no-stacks readonly hang-after"),
        ("agent", "ascii log no-stacks readonly hang-after"),
        ("bundle", "ascii interval job log no-stacks bundle.seconds"),
        ("demo", f"{WATCH} once plain demo.ranks demo.workers demo.bottleneck demo.seconds"),
    ],
)
def test_help_of_a_command_names_its_flags_and_no_other(command, keys):
    done = call(command, "--help", code=0)
    flags = {word.strip(",[]") for word in done.stdout.split() if word.startswith(("--", "[--"))}
    positive = {flag for flag in flags if not flag.startswith("--no-") or flag == "--no-workers"}
    named = {BY_KEY[key].flag.replace("--no-stacks", "--stacks") for key in keys.split()}
    assert ("--no-stacks" in flags) == ("--stacks" in flags)
    assert positive == named | {"--help", "--print-config", "--show"} | OWN_FLAGS.get(command, set())


def test_help_of_demo_names_each_bottleneck():
    text = call("demo", "--help").stdout
    for bottleneck in BOTTLENECKS:
        assert f"\n  {bottleneck.name} " in text
        assert bottleneck.summary in text


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(flag):
    assert call(flag).stdout == f"tpmon {__version__}\n"


def test_help_is_also_a_word():
    assert call("help").stdout == call("--help").stdout
    assert call("help", "dump").stdout == call("dump", "--help").stdout
    assert call("help", "run").stdout == call("run", "--help").stdout != ""


@pytest.mark.long
def test_a_file_that_does_not_answer_holds_no_command(tmp_path):
    file = tmp_path / "config" / "tpmon" / "config.toml"
    file.parent.mkdir(parents=True)
    os.mkfifo(file)  # nobody ever writes to it: it opens as a file of a dead server does
    done = call("attach", "--print-config", "--once", code=2)  # it may forbid what would be done without it
    said = done.stderr.splitlines()
    assert said[0] == f"tpmon: the configuration {file} was not read: no answer within 10 s"
    assert said[1].startswith("Try: XDG_CONFIG_HOME=/run tpmon")


def test_the_file_is_read_and_print_config_says_so(tmp_path):
    file = tmp_path / "config" / "tpmon" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("interval = 5\n")
    lines = call("attach", "--print-config", "--once").stdout.splitlines()
    assert lines[0] == f"# {file} (read)"
    assert f"{'interval = 5.0':<24} # {file}" in lines
    assert f"{'once = true':<24} # --once" in lines
    file.write_text("interval = 50\n")
    done = call("ps", code=2)
    assert done.stderr.startswith(f"tpmon: {file}: interval: expected a number from 0.5 to 10, found 50")
    assert as_said("Try: tpmon --print-config") in done.stderr
    file.write_text("interval = 50\nintervall = 3\nbell = true\njson = true\nplain = true\n")
    done = call("--print-config", env={**os.environ, "TPMON_READONLY": "perhaps"})
    assert (done.returncode, done.stderr) == (2, "")
    lines = done.stdout.splitlines()
    for number, what in enumerate(
        (
            f"{file}: interval: expected a number from 0.5 to 10, found 50",
            f"{file}: intervall: no such setting",
            "TPMON_READONLY: expected true or false, found 'perhaps'",
            f"json and plain exclude each other ({file}, {file})",
        ),
        start=1,
    ):
        assert lines[number] == f"# cannot be used, and left out here: {what}"
    assert f"{'interval = 1.0':<24} # default" in lines
    assert f"{'bell = true':<24} # {file}" in lines


def test_a_key_that_is_no_setting_is_told_and_left_out_unless_it_may_forbid_something(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "tpmon" / "config.toml"
    file.parent.mkdir()
    file.write_text("intervall = 3\nzzz = 1\n")
    told = call("ps").stderr.splitlines()
    assert told == [
        f"tpmon: {file}: intervall: no such setting, and is left out; write interval",
        f"tpmon: {file}: zzz: no such setting, and is left out; tpmon --print-config lists every setting and its value",
    ]
    file.write_text("read-only = true\n")
    assert call("ps", code=2).stderr == f"tpmon: {file}: read-only: no such setting\nTry: write readonly\n"


CALLS = [
    (["frobnicate"], {}, "frobnicate is no command", "tpmon --help"),
    (["atach", "1"], {}, "atach is no command", "tpmon attach 1"),
    (["help", "diagnos"], {}, "diagnos is no command", "tpmon diagnose --help"),
    (["hok", "export", "f"], {}, "hok is no command", "tpmon hook export f"),
    (["48213"], {}, "48213 is no command", "tpmon attach 48213"),
    (["--frobnicate"], {}, "tpmon has no --frobnicate", "tpmon --help"),
    (["ps"], {"TPMON_JSON": "perhaps"}, "TPMON_JSON: expected true or false", "tpmon"),
    (["diagnose", "1", "--plain"], {}, "diagnose has no --plain", "tpmon diagnose --help"),
    (["dump", "1", "--rounds"], {}, "argument --rounds: expected one", "tpmon dump --help"),
    (["train.py"], {}, "train.py is no command", "tpmon attach train.py"),
    (["attach", "-5"], {}, "a PID is a number, found '-5'", "tpmon ps"),
    (["attach", "1", "--on"], {}, "attach has no --on", "tpmon attach --help"),
    (["attach", "1", "--onse"], {}, "attach has no --onse; did you mean --once?", "tpmon attach 1 --once"),
    (
        ["diagnose", "1", "--unitl=hung"],
        {},
        "diagnose has no --unitl; did you mean --until?",
        "tpmon diagnose 1 --until=h",
    ),
    (["run", "--atach", "--", "x"], {}, "tpmon run has no option --atach; did you mean --attach?", "tpmon run --help"),
    (["attach", "1", "-i", "0.1"], {}, "--interval: expected a number from 0.5 to 10", "tpmon"),
    (["attach", "1", "--json", "--plain"], {}, "json and plain exclude each other", "leave one"),
    (["attach", "1", "--json", "--every", "0.5"], {}, "--every: 0.5 s is less than the interval, 1 s", "--every 1"),
    (["attach", "1", "--plain", "-i", "9"], {"TPMON_ATTACH_EVERY": "5s"}, "--every: 5 s is less", "--every 9"),
    (["attach", "1", "--json", "--every", "2h"], {}, "--every: expected a duration such as 10s", "tpmon"),
    (["bundle", "1", "--seconds", "1"], {}, "--seconds: expected a number from 2 to 600", "tpmon"),
    (["demo", "--bottleneck", "gremlins"], {}, "--bottleneck: 'gremlins' is no bottleneck", "one of: none, slow"),
    (["dump", "1", "--rounds", "0"], {}, "--rounds: expected a whole number from 1 to 100", "tpmon"),
    (["dump", "1", "--format", "svg"], {}, "--format: 'svg' is no format", "one of: text, json"),
    (["dump", "1", "--json", "--format", "collapsed"], {}, "--json and --format collapsed", "leave"),
    (["dump", "1", "--pid", "9" * 5000], {}, "--pid: a PID is a number, found '999", "tpmon dump PID"),
    (["dump", "1", "--tree", "--json"], {}, "--tree is text, and json was asked for", "leave one"),
    (["fold", "-", "--tree", "--format", "collapsed"], {}, "--tree is text, and collapsed", "leave one"),
    (["dump", "1", "--rank", "x"], {}, "--rank: 'x' is no rank", "tpmon dump PID --rank 3"),
    (["dump", "1", "--rank", "3-1"], {}, "--rank: '3-1' is no rank", "tpmon dump PID --rank 3"),
    (["dump", "1", "--rank", "0-99999999"], {}, "--rank: '0-99999999' is no rank", "tpmon dump"),
    (["dump", "1", "--pid", "train"], {}, "--pid: a PID is a number", "tpmon dump PID --pid"),
    (["dump", "1", "--block", "--readonly"], {}, "--block stops processes of the job", "leave one"),
    (["dump", "1", "--native"], {"TPMON_READONLY": "1"}, "--native stops processes", "leave one"),
    (["fold"], {}, "the following arguments are required: FILE", "tpmon fold --help"),
    (["fold", "/no/such/file"], {}, "/no/such/file: No such file or directory", "tpmon dump PID --json"),
    (["fold", "-"], {}, "standard input: no dump in it", "tpmon dump PID --json"),
    (["sample", "1", "--seconds", "0"], {}, "--seconds: expected a number from 1 to 3600", "tpmon"),
    (["sample", "1", "--rate", "51"], {}, "--rate: expected a whole number from 5 to 50", "tpmon"),
    (["sample", "1", "--no-stacks"], {}, "no-stacks is set, and sample", "tpmon sample --stacks"),
    (["sample", "1"], {"TPMON_NO_STACKS": "1"}, "no-stacks is set, and sample", "tpmon sample --stacks"),
    (["sample", "1", "--rank", "x"], {}, "--rank: a rank is a number", "tpmon sample PID --rank 0"),
    (["sample", "1", "--seconds", "9" * 4000], {}, "--seconds: expected a number from 1", "tpmon"),
    (["sample", "1", "--rate", "9" * 4000], {}, "--rate: expected a whole number from 5", "tpmon"),
    (["sample", "1", "--rank", "0", "--all"], {}, "--rank and --all exclude", "leave one"),
    (["sample", "1", "--out", "/"], {}, "--out: / is there already", "name a file"),
    (["sample", "1", "--json", "--format", "collapsed"], {}, "--json and --format", "leave"),
    (["doctor", "1", "2"], {}, "doctor has no 2", "tpmon"),
    (["doctor", "--job"], {}, "doctor has no --job", "tpmon"),
]
JOBLESS = [
    (["attach", "--once", "--every", "0.5"], {}),
    (["dump", "--json"], {"TPMON_DUMP_FORMAT": "collapsed"}),
    (["dump", "--format", "collapsed"], {"TPMON_JSON": "1"}),
    (["dump"], {"TPMON_DUMP_BLOCK": "1"}),
    (["sample", "--stacks"], {"TPMON_NO_STACKS": "1"}),
]
GONE = [
    (["attach", "99999999"], {}, "no process 99999999", "tpmon ps"),
    (["attach", "99999999", "--json", "--once"], {}, "no process 99999999", "tpmon ps"),
    (["doctor", "99999999"], {}, "no process 99999999", "tpmon ps"),
    (["dump", "99999999"], {}, "no process 99999999", "tpmon ps"),
]


@pytest.mark.parametrize(
    ("codes", "arguments", "environment", "what", "hint"),
    [*(((2,), *row) for row in CALLS), *(((3,), *row) for row in GONE)],
)
def test_wrong_calls_say_what_and_what_to_try(codes, arguments, environment, what, hint):
    done = call(*arguments, env={**os.environ, **environment})
    assert done.returncode in codes
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first.startswith(f"tpmon: {what}")
    assert second.startswith(f"Try: {as_said(hint)}")


@pytest.mark.parametrize(("arguments", "environment"), JOBLESS)
def test_settings_agree_and_a_process_that_is_no_training_is_refused(arguments, environment):
    with subprocess.Popen(["sleep", "120"]) as asleep:
        done = call(*arguments, str(asleep.pid), env={**os.environ, **environment})
        asleep.kill()
    assert (done.returncode, done.stdout) == (3, "")
    first, second = done.stderr.splitlines()
    assert first.startswith(f"tpmon: process {asleep.pid}")
    assert second.startswith("Try: ")


def test_no_standard_input_is_an_empty_one():
    tpmon = f"exec {sys.executable} -m tpmon fold - <&-"
    done = subprocess.run(["sh", "-c", tpmon], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tpmon: standard input: no dump in it\nTry: ")


def test_output_that_nobody_reads_or_takes():
    command = f"{sys.executable} -m tpmon --help"
    full = subprocess.run(["sh", "-c", f"{command} >/dev/full"], check=False, capture_output=True)
    assert full.returncode == 2
    assert b"No space left on device" in full.stderr
    closed = subprocess.run(["sh", "-c", f"{command} >&-"], check=False, capture_output=True)
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_a_bug_is_told_in_a_report_file(monkeypatch, tmp_path, capfd):
    def fail(_):
        raise RuntimeError("an invariant does not hold")

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["ps"]) == 1
    (report,) = (tmp_path / "state" / "tpmon").iterdir()
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    assert "RuntimeError: an invariant does not hold" in report.read_text()
    error = capfd.readouterr().err
    assert str(report) in error
    assert "Traceback" not in error


def test_signal_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main(["--version"]) == 0
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_is_the_end_also_where_it_is_raised_as_another_error(monkeypatch):
    def run(_arguments):
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException as error:
            raise RuntimeError("Error calling __set_name__") from error

    monkeypatch.setattr("tpmon.cli._run", run)
    assert cli.main([]) == 143


def test_what_an_error_was_made_of_is_found_and_a_ring_of_errors_ends():
    errors = [RuntimeError(), OSError(), SystemExit(143)]
    errors[0].__context__, errors[1].__cause__ = errors[1], errors[2]
    assert find_behind(errors[0], SystemExit) is errors[2]
    errors[1].__cause__ = errors[0]
    assert find_behind(errors[0], SystemExit) is None


def test_an_inherited_trap_of_sigchld_does_not_keep_the_end_of_children_from_tpmon():
    """Else the kernel would reap them, the process that works among them, and its exit code were lost."""
    call("--bogus", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN), code=2)
    code = "from tpmon.supervisor import supervise; supervise(); import signal; print(repr(signal.getsignal(17)))"
    ignored = ["/bin/sh", "-c", "trap '' CHLD; exec \"$@\"", "sh", sys.executable, "-c", code]
    assert b"SIG_DFL" in subprocess.check_output(ignored, cwd=Path(__file__).parents[1])


# a real job


@pytest.mark.torch
def test_one_reading_in_each_form(job):
    done = call("attach", str(job), "--json", "--once", "-i", "0.5", code=0)
    frame = decode(Frame, done.stdout)
    assert (frame.target.pid, frame.target.asked_pid) == (job, job)
    assert isinstance(frame.cpu.used_cores, float), "the second reading has rates"
    assert done.stderr == ""

    done = call("attach", str(job), "--once", "-i", "0.5", "--ascii", code=0)
    assert done.stdout.startswith("verdict  ")
    assert f"\njob      {job} " in done.stdout
    assert done.stdout.isascii()
    where = f"tpmon: no verdict after two readings; {as_said(f'tpmon diagnose {job}')} gives one within 15 s\n"
    assert done.stderr == (where if done.stdout.startswith("verdict  NOT-ENOUGH-EVIDENCE") else "")

    done = call("attach", str(job), "--once", "--plain", "-i", "0.5", code=0)
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(("kind", "said"), [(Kind.NOT_ENOUGH_EVIDENCE, True), (Kind.DATA_BOUND, False)])
def test_two_readings_without_a_verdict_say_where_one_is(kind, said, capfd):
    attach._say_where_a_verdict_is(make_frame(verdict=make_finding(kind=kind)))
    assert ("tpmon diagnose 4211 gives one within 15 s" in capfd.readouterr().err) == said


@pytest.mark.torch
def test_a_screen_without_a_terminal_is_refused(job):
    done = call("attach", str(job))
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("tpmon: stdin is not a terminal\nTry: use --once --json")


@pytest.mark.torch
def test_ps_lists_the_job(job):
    jobs = decode(JobList, call("ps", "--json").stdout)
    assert job in [one.pid for one in jobs.jobs]
    rows = [line.split() for line in call().stdout.splitlines()]
    assert str(job) in [row[0] for row in rows]


@pytest.mark.torch
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("form", ["--json", "--plain"])
def test_a_signal_ends_a_stream_with_its_code(job, number, code, form):
    with start("attach", str(job), form, "-i", "0.5") as running:
        assert running.stdout.readline()
        running.send_signal(number)
        assert running.wait(SECONDS) == code
        assert running.stderr.read() == ""


@pytest.mark.torch
def test_a_stream_may_be_sparse(job):
    with start("attach", str(job), "--json", "-i", "0.5", "--every", "2") as running:
        frames = [decode(Frame, running.stdout.readline()) for _ in range(3)]
        running.terminate()
        assert running.wait(SECONDS) == 143
    apart_s = [(after.taken_ns - one.taken_ns) / 1e9 for one, after in itertools.pairwise(frames)]
    assert all(one >= 1.75 for one in apart_s), apart_s
    assert EventKind.ATTACH in [event.kind for event in frames[0].events]
    assert all(one.interval_s == 0.5 for one in frames)


@pytest.mark.torch
def test_nohup_keeps_a_stream_alive(job):
    ignores = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    with start("attach", str(job), "--json", "-i", "0.5", **ignores) as running:
        running.stdout.readline()
        running.send_signal(signal.SIGHUP)
        assert running.stdout.readline()
        assert running.stdout.readline()
        running.terminate()
        assert running.wait(SECONDS) == 143


@pytest.mark.torch
@pytest.mark.parametrize("form", ["--json", "--plain"])
def test_a_reader_that_had_enough_is_no_error(job, form):
    with start("attach", str(job), form, "-i", "0.5") as running:
        assert running.stdout.readline()
        running.stdout.close()
        assert running.wait(SECONDS) == 0
        assert running.stderr.read() == ""


@pytest.mark.torch
def test_a_stream_of_words_ends_well_when_the_job_ends():
    with start_training() as training, start("attach", str(training.pid), "--plain", "-i", "0.5") as running:
        assert "attached" in running.stdout.readline()
        training.kill()
        training.wait()
        assert "ended" in running.stdout.readlines()[-1]
        assert running.wait(SECONDS) == 0


@pytest.mark.torch
@pytest.mark.parametrize("command", ["diagnose {} --until ended", "attach {} --check"])
def test_a_verdict_has_its_exit_code_also_where_nobody_reads_it(command):
    with start_training() as training:
        asked = f"exec {sys.executable} -m tpmon {command.format(training.pid)} >&-"
        with subprocess.Popen(["sh", "-c", asked], stderr=subprocess.PIPE, text=True) as running:
            time.sleep(2.0)
            training.kill()
            training.wait()
            _, error = running.communicate(timeout=SECONDS)
    assert (running.returncode, error) in ((10, ""), (11, "")), "a killed run has not ended well"


@pytest.mark.torch
def test_demo_without_a_terminal_prints_its_verdict_once_and_leaves_nothing():
    done = call("demo", "--workers", "1", "-i", "0.5", code=0, env={**os.environ, "PYTHON": sys.executable})
    assert "watching it until there is a verdict, at most 15 s" in done.stderr
    undecided = done.stdout.startswith(("verdict  NOT-ENOUGH", "verdict  STARTING"))
    assert ("no verdict within 15 s" in done.stderr) == undecided
    assert len(re.findall(r"(?m)^job  ", done.stdout)) == len(re.findall(r"(?m)^verdict  ", done.stdout)) == 1
    found = re.search(r"demo training (\d+) runs; its log, until it ends: (\S+)", done.stderr)
    assert found
    deadline = time.monotonic() + SECONDS
    while os.path.exists(found[2]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(found[2])
    assert not os.path.exists(f"/proc/{found[1]}")


@pytest.mark.parametrize(
    "arguments",
    [("x" * 5000,), ("attach", "--" + "x" * 5000), ("dump", "1", "--rank", "9" * 5000), ("fold", "x" * 5000)],
    ids=["command", "flag", "value", "file"],
)
def test_a_refused_argument_is_not_repeated_whole_and_breaks_no_line(arguments):
    done = call(*arguments[:-1], f"{arguments[-1]}\n\x1b[31m", code=ExitCode.USAGE)
    what, try_this = done.stderr.splitlines()
    assert len(what) < 500
    assert "\u2026" in what
    assert "\x1b" not in done.stderr
    assert try_this.startswith("Try: ")


@pytest.mark.skipif(ONE_FILE, reason="the one file reads no traces")
def test_absurd_numbers_of_a_trace_bring_no_warning(tmp_path):
    trace = small_trace()
    trace.memory(500, -(2**63), 1)
    trace.events[3]["ts"] = trace.events[3]["dur"] = 1e308
    done = call("trace", str(trace.write(tmp_path / "t.json")), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["files"][0]["memory"]["peaks"][0]["frees_bytes"] == 2**63
