"""``tpmon sample``: the price first, text, files of other tools, live, refusals, ^C, exit codes."""

import json
import os
import pty
import re
import select
import signal
import stat
from dataclasses import replace

import pytest

from tests.command_line import SECONDS, call, start, start_training
from tests.goldens import sample_views
from tests.samples import count, make_reading, make_sampled, make_sampled_worker
from tests.spying import may_sample
from tests.stacks import BACKWARD, DECODE, LIB, MAIN, NEXT_BATCH
from tests.waiting import wait_until
from tpmon.commands import sample
from tpmon.commands.sample import explain_errors, save_samples
from tpmon.errors import ExitCode, NoTargetError, NotPermittedError, UsageError
from tpmon.judge.folds.groups import DumpOrigin
from tpmon.judge.folds.hot import fold_stacks, hot_functions
from tpmon.model.codec import decode
from tpmon.model.dump import DumpError, ErrorKind
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Role
from tpmon.model.results.doctor import SampleUpdate
from tpmon.model.results.sample import (
    CountedFunction,
    HotFunction,
    HotSample,
    SampleRequest,
    SampleState,
    pick_functions,
    say_sampling_price,
)
from tpmon.model.stacks import StackFrame
from tpmon.probe.collect.collector import Collector
from tpmon.probe.job.resolve import find_job
from tpmon.probe.spy.failure import find_spies, install_spy
from tpmon.probe.spy.sample import OFF
from tpmon.report import stacks as sample_live
from tpmon.report.formats import write_collapsed_samples, write_speedscope_samples
from tpmon.report.stacks import Live, write_progress, write_sample
from tpmon.settings import STACK_FORMATS
from tpmon.view.layout import WIDTH
from tpmon.view.stacks import say_group

pytestmark = pytest.mark.usefixtures("small_environment")


ORIGIN = DumpOrigin(4000, "train.py", 2)
FEEDER = (StackFrame("_feed", f"{LIB}/multiprocessing/queues.py", 231),)
READING = make_reading(
    make_sampled(0, count(4000, NEXT_BATCH, 15), count(4000, BACKWARD, 5), count(77, FEEDER, 20, "QueueFeeder")),
    make_sampled(1, count(4010, NEXT_BATCH, 20)),
    make_sampled_worker(0, 0),
    make_sampled_worker(0, 1),
)


def hot(reading=READING) -> HotSample:
    return hot_functions(reading, ORIGIN)


def text(reading=READING) -> str:
    lines = write_sample(hot(reading))
    assert all(len(line) <= WIDTH for line in lines)
    return "\n".join(lines)


def error(kind: ErrorKind = ErrorKind.DENIED, pid: int = 4000, reason: str = "not permitted: x; sudo") -> DumpError:
    return DumpError("node-01", pid, Role.RANK, 0, NOT_APPLICABLE, kind, reason)


# text


def test_the_text_says_who_was_sampled_where_they_were_and_what_it_cost():
    said = text()
    assert said.startswith("sample   4 processes of train.py for 10.0 s at 20 Hz\n")
    assert "\nranks 0-1: 40 samples (+- 16 points), on a CPU 40 %, waiting for one 10 %\n" in said
    assert "\n  data wait 88 %, backward 12 %\n" in said
    assert re.search(r"\n +87\.5 +87\.5 +87\.5 +35  multiproc…  poll connection\.py:257\n", said)
    assert re.search(r"\n +0\.0 +100\.0 +87\.5 +40  yours +train train\.py:40\n", said)
    assert "\n2 loader workers of rank 0: 40 samples (+- 16 points)" in said
    assert re.search(r"\n +100\.0 +100\.0 +0\.0 +40  yours +decode data\.py:88\n", said)
    assert "\nother threads of ranks 0-1: 20 samples, 100 % in frames that wait\n" in said
    assert "lost     nothing\n" in said
    assert said.endswith("py-spy used 80 ms of CPU, 0.8 % of a core, stopped nothing")


def test_library_functions_that_only_call_others_are_counted_and_not_shown():
    said = text()
    assert "_worker_loop" not in said
    assert "__next__" not in said
    assert "more functions" in said


def test_threads_that_do_not_wait_have_a_table_of_their_own():
    busy = make_sampled(0, count(4000, NEXT_BATCH, 20), count(77, DECODE, 20, "loader"))
    said = text(make_reading(busy))
    assert "\nother threads of rank 0: 20 samples\n" in said
    assert re.search(r"\n +100\.0 .* yours +decode data\.py:88", said)


def test_what_was_not_sampled_was_lost_or_was_late_is_said():
    reading = make_reading(
        make_sampled(0, count(4000, BACKWARD, 15), looks=20, lost=5, behind_s=2.45),
        errors=[error(), *(error(pid=4001 + n, reason=f"reason {n}") for n in range(13))],
        asked=18,
        ended=1,
        elapsed_s=4.0,
    )
    said = text(reading)
    assert said.startswith("sample   1 of 18 processes of train.py for 4.0 of 10 s at 20 Hz\n")
    assert (
        "not read rank 4000 (rank 0): not permitted: x; sudo\n"
        "try      tpmon doctor 4000 says what to allow or to install\n"
    ) in said
    assert said.count("not read") == 13
    assert "not read 2 more processes\n" in said
    assert "no turn  3 more: the time was over before; more --seconds reach them\n" in said
    assert "ended    1 of 18 processes ended meanwhile\n" in said
    assert "lost     5 of 20 samples gave no stack; py-spy was up to 2.5 s late\n" in said
    assert "all that was sampled ended after 4.0 s" in text(replace(reading, ended=18))


def test_samples_that_do_not_count_are_told():
    said = text(
        make_reading(
            make_sampled(0, count(4000, BACKWARD, 5), looks=20), request=SampleRequest(counted=CountedFunction.GIL)
        )
    )
    assert "at 20 Hz; counted: samples where it held the GIL\n" in said
    assert "rank 0: 20 samples (+- 22 points), 5 counted, on a CPU 40 %" in said


def test_what_could_not_be_read_is_left_out_and_a_process_without_a_rank_has_a_name():
    unread = Missing("no schedstat")
    plain = make_sampled(0, cpu_s=unread, delay_s=unread, watched_s=0.0)
    plain = replace(plain, rank=Missing("no place"))
    said = text(make_reading(plain))
    assert "\n1 rank: 20 samples (+- 22 points)\n" in said


def test_names_of_others_cannot_reach_the_terminal_and_long_ones_are_cut():
    wild = StackFrame("f\x1b[2J" + "x" * 300, "/run/\n\x07a.py", 3)
    said = text(make_reading(make_sampled(0, count(4000, (MAIN, wild), 20))))
    assert "\x1b" not in said
    assert "\x07" not in said


def test_the_progress_is_one_line():
    assert write_progress(hot()) == (
        "10 of 10 s: ranks 0-1: poll connection.py:257 88 %; 2 loader workers of rank 0: decode data.py:88 100 %"
    )
    assert write_progress(hot(make_reading())) == "10 of 10 s: nothing yet"


# which functions


def function(name: str, own: int, total: int, package: str = "") -> HotFunction:
    return HotFunction(name, "/a.py", 1, package, own, total, 0, own, total, 0.0)


def test_some_rows_are_kept_for_the_users_own_callers():
    functions = [function(f"lib{n}", 20 - n, 20 - n, "torch") for n in range(9)]
    functions += [function("main", 0, 100), function("train", 0, 90), function("idle", 0, 95, "torch")]
    names = [one.function for one in pick_functions(functions, 6)]
    assert names == ["lib0", "lib1", "lib2", "lib3", "main", "train"]
    assert [one.function for one in pick_functions(functions, 100)][-2:] == ["main", "train"]
    assert pick_functions((), 5) == ()


# files of other tools


def test_collapsed_samples_are_lines_of_part_frames_and_number():
    lines = write_collapsed_samples(fold_stacks(READING))
    assert len(lines) == 4
    assert lines[0].startswith("rank main;<module> (/run/train.py:90);train (/run/train.py:40);")
    assert lines[0].endswith(";poll (/env/lib/python3.11/multiprocessing/connection.py:257) 35")
    assert lines[3] == "rank other threads;_feed (/env/lib/python3.11/multiprocessing/queues.py:231) 20"
    wild = make_sampled(0, count(4000, (StackFrame("a;b", "/x;y.py", 1),), 2_000_000))
    assert write_collapsed_samples(fold_stacks(make_reading(wild))) == ["rank main;a,b (/x,y.py:1) 2000000"]


def test_nobody_waits_for_a_cpu_for_longer_than_there_was_time():
    group = replace(hot().groups[0], cpu_pct=2.0, delay_pct=102.4)
    assert say_group(group).endswith("on a CPU 2 %, waiting for one 98 %")


def test_speedscope_has_a_profile_for_each_part_in_seconds():
    document = json.loads(write_speedscope_samples(hot(), fold_stacks(READING)))
    profiles = document["profiles"]
    assert [one["name"] for one in profiles] == ["rank main", "worker main", "rank other threads"]
    assert (profiles[0]["unit"], profiles[0]["endValue"], profiles[0]["weights"]) == ("seconds", 2.0, [1.75, 0.25])
    names = [frame["name"] for frame in document["shared"]["frames"]]
    assert names[profiles[1]["samples"][0][-1]] == "decode (/run/data.py:88)"


# the price


def test_the_price_grows_with_processes_up_to_four_and_with_the_rate():
    one, many = say_sampling_price(1, 10, 20), say_sampling_price(72, 10, 20)
    assert one == "samples 1 process at 20 Hz for 10 s: about 2 % of a core, the job is never stopped"
    assert many.startswith("samples 72 processes, 4 at a time at 20 Hz for 10 s: about 11 % of a core")
    assert ": about 8 % of a core" in say_sampling_price(4, 10, 20)
    assert ": about 4 % of a core" in say_sampling_price(1, 10, 50)


# live


def read_all(descriptor: int, quiet_s: float = 0.3) -> str:
    """Read until nothing came for ``quiet_s``: a pty hands over what was written in pieces, and late."""
    said = b""
    while select.select([descriptor], [], [], quiet_s)[0]:
        said += os.read(descriptor, 65536)
    return said.decode()


def test_on_a_terminal_the_table_is_drawn_over_and_taken_away(monkeypatch):
    controller, terminal = pty.openpty()
    monkeypatch.setattr(sample_live, "_ERROR", terminal)
    monkeypatch.setattr(sample_live, "complain", lambda said: os.write(terminal, f"{said}\n".encode()))
    monkeypatch.setenv("TERM", "xterm")
    live = Live(10.0, ascii_only=True)
    live.show(hot())
    first = read_all(controller)
    assert "\x1b" not in first
    height = first.count("\n")
    assert 10 < height < 24
    live.show(hot())
    assert read_all(controller).startswith(f"\x1b[{height}A\r\x1b[J")
    live.close()
    assert read_all(controller) == f"\x1b[{height}A\r\x1b[J"
    live.close()
    assert read_all(controller) == ""
    for descriptor in (controller, terminal):
        os.close(descriptor)


def test_elsewhere_it_is_a_line_now_and_then(monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(sample_live, "complain", told.append)
    monkeypatch.setattr(sample_live, "LINE_EVERY_S", 0.0)
    live = Live(0.0, ascii_only=False, redraw=False)
    assert live.is_due
    live.show(hot())
    assert told == [f"tpmon: {write_progress(hot())}"]
    assert not Live(3600.0, ascii_only=False, redraw=False).is_due, "not before some minutes"


# what comes of it


@pytest.mark.parametrize(
    ("errors", "kind", "code", "hint"),
    [
        ([error(ErrorKind.GONE), error()], NotPermittedError, ExitCode.NOT_PERMITTED, "sudo"),
        ([error(reason="not permitted: x")], NotPermittedError, ExitCode.NOT_PERMITTED, "docs/guide.md"),
        ([error(ErrorKind.NO_SPY)], UsageError, ExitCode.USAGE, install_spy()),
        ([error(ErrorKind.GONE)], NoTargetError, ExitCode.NO_TARGET, "tpmon ps"),
        ([error(ErrorKind.LATE), error(ErrorKind.GONE)], UsageError, ExitCode.USAGE, "again: tpmon sample"),
        (
            [error(ErrorKind.UNKNOWN_PYTHON, reason=f"py-spy does not know its Python: x; {install_spy()}")],
            UsageError,
            ExitCode.USAGE,
            install_spy(),
        ),
        ([error(ErrorKind.UNKNOWN_PYTHON, reason="deleted")], UsageError, ExitCode.USAGE, "tpmon doctor 4000 says"),
        ([error(ErrorKind.TRACED, reason="pid 7 traces it")], UsageError, ExitCode.USAGE, "again: tpmon sample 4000"),
    ],
)
def test_where_nothing_could_be_sampled_the_reason_has_its_exit_code(errors, kind, code, hint):
    found = explain_errors(tuple(errors))
    assert isinstance(found, kind)
    assert found.exit_code is code
    assert found.what.startswith("pid 4000 cannot be sampled: ") or errors[0].kind is ErrorKind.NO_SPY
    assert found.try_this.startswith(hint)


def test_a_file_that_takes_nothing_is_named_and_the_table_is_kept(tmp_path, capfd):
    full = sample.NewFile("/dev/full", os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(UsageError, match=r"^--out: /dev/full: No space left on device"):
        sample.write_result(hot(), READING, "collapsed", full, sample.Output(1, ascii_only=False))
    os.close(full.descriptor)
    said = capfd.readouterr()
    assert said.out.startswith("sample   4 processes")
    assert said.err == ""
    path = tmp_path / "empty.txt"
    with sample._open_new(str(path)):
        assert path.exists(), "the place is tried before anything is sampled"
    assert not path.exists(), "nothing came"


# the files that a screen writes


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_both_files_are_private_hold_what_the_tools_read_and_are_never_written_over(here):
    old = os.umask(0)
    try:
        said = save_samples(sample_views.ended())
    finally:
        os.umask(old)
    folded, speedscope = sorted(here.iterdir())
    name = folded.name.removesuffix(".folded")
    assert speedscope.name == f"{name}.speedscope.json"
    assert said == f"wrote {here / name}, .speedscope.json and .folded"
    assert {stat.S_IMODE(one.stat().st_mode) for one in (folded, speedscope)} == {0o600}
    assert json.loads(speedscope.read_text())["profiles"]
    assert "rank main;<module> (/run/train.py:90);train" in folded.read_text()
    before = {one: one.read_text() for one in here.iterdir()}
    assert "File exists" in save_samples(sample_views.ended())
    assert {one: one.read_text() for one in here.iterdir()} == before


def test_half_a_file_is_none(here, monkeypatch):
    monkeypatch.setattr("tpmon.report.formats.write_speedscope_samples", lambda *_: 1 / 0)
    assert save_samples(sample_views.ended()) == "not written: ZeroDivisionError: division by zero"
    assert list(here.iterdir()) == []


def test_where_nothing_was_sampled_no_file_is_made(here):
    why = Missing("nothing was sampled yet")
    state = SampleState(SampleRequest(), why, running=False, refused="")
    assert save_samples(SampleUpdate(state, why)) == "nothing was sampled: no file is written"
    assert list(here.iterdir()) == []


# the command


@pytest.mark.torch
@pytest.mark.parametrize("form", STACK_FORMATS)
def test_the_price_comes_first_and_then_each_form(job, form):
    done = call("sample", str(job), "--seconds", "1", "--format", form, code=0)
    assert done.stderr.startswith("tpmon: samples 1 process at 20 Hz for 1 s: about ")
    assert "the job is never stopped" in done.stderr
    if form == "text":
        assert done.stdout.startswith("sample   1 process of ")
        assert "\nrank 0: " in done.stdout
        assert "<module> <string>:1\n" in done.stdout
    elif form == "json":
        hot = decode(HotSample, done.stdout)
        assert (hot.schema, hot.pid, hot.asked_seconds) == ("tpmon.sample/1", job, 1.0)
        assert hot.groups[0].functions[0].function == "<module>"
        assert is_known(hot.groups[0].cpu_pct)
    elif form == "collapsed":
        assert done.stdout.startswith("rank main;<module> (<string>:1) ")
    else:
        assert json.loads(done.stdout)["exporter"] == "tpmon"


@pytest.mark.torch
def test_a_file_is_written_beside_the_table_and_never_over_another(job, tmp_path):
    path = tmp_path / "hot.json"
    arguments = ("sample", str(job), "--seconds", "1", "--format", "speedscope", "--out", str(path))
    done = call(*arguments, code=0)
    assert done.stdout.startswith("sample   1 process of ")
    assert f"tpmon: wrote {path}\n" in done.stderr
    assert json.loads(path.read_text())["profiles"][0]["unit"] == "seconds"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    nowhere = call("sample", str(job), "--seconds", "600", "--out", str(tmp_path / "no" / "x.json"), code=2)
    assert f"--out: {tmp_path}/no/x.json: No such file or directory" in nowhere.stderr
    assert call(*arguments).returncode == 2
    assert path.read_bytes() == before


@pytest.mark.torch
def test_a_rank_that_is_elsewhere_is_refused_and_all_takes_what_is_here(job):
    done = call("sample", str(job), "--rank", "7", code=2)
    assert done.stderr.startswith("tpmon: --rank: rank 7 is not on this machine\nTry: here: ")
    done = call("sample", str(job), "--all", "--seconds", "1", "--only", "gil", "--json", code=0)
    hot = decode(HotSample, done.stdout)
    assert (hot.counted, hot.groups[0].samples) == (CountedFunction.GIL, 0)


@pytest.mark.torch
def test_an_interrupt_ends_it_early_and_prints_what_there_is(job):
    with start("sample", str(job), "--seconds", "600", "--json") as running:
        assert running.stderr.readline().startswith("tpmon: samples")
        assert wait_until(lambda: job in find_spies())
        # The first slice is over, so that there is something whatever the second one gives.
        (first,) = find_spies()[job]
        assert wait_until(lambda: not first.lives())
        running.send_signal(signal.SIGINT)
        assert running.wait(SECONDS) == 0
        hot = decode(HotSample, running.stdout.read())
    assert hot.asked_seconds == 600
    assert hot.groups[0].looks > 0
    assert wait_until(lambda: job not in find_spies())


@pytest.mark.torch
def test_a_job_that_ends_meanwhile_is_said_with_what_there_is():
    if reason := may_sample():
        pytest.skip(reason)
    with start_training() as training, start("sample", str(training.pid), "--seconds", "600") as running:
        assert wait_until(lambda: training.pid in find_spies())
        (first,) = find_spies()[training.pid]
        assert wait_until(lambda: not first.lives())
        training.kill()
        training.wait()
        assert running.wait(SECONDS) == 0
        said = running.stdout.read()
    assert "ended    all that was sampled ended after " in said
    assert "\nrank 0: " in said


@pytest.mark.torch
def test_a_collector_samples_its_job_on_demand_and_not_where_stacks_are_off(job):
    found = find_job(job)
    collector = Collector(found, stacks=True)
    try:
        collector.samples.ask(SampleRequest(seconds=1.0))
        assert wait_until(lambda: is_over(collector), SECONDS)
        state = collector.samples.state
    finally:
        collector.close()
    assert [one.pid for one in state.reading.processes] == [job]
    off = Collector(found, stacks=False)
    off.samples.ask(SampleRequest())
    state = off.samples.state
    off.close()
    assert (state.running, state.refused) == (False, OFF)


def is_over(collector: Collector) -> bool:
    state = collector.samples.state
    return is_known(state) and not state.running
