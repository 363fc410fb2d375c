"""``tpmon sample`` as a person calls it: price first, forms, ^C, refusals, exit codes, a job that ends."""

import json
import signal
import stat
import subprocess
import sys

import pytest

from tests.command_line import SECONDS, call, start, start_training
from tests.nobody import needs_setpriv, run_as_nobody
from tests.spying import may_sample
from tests.waiting import wait_until
from tpmon.model.codec import decode
from tpmon.model.known import is_known
from tpmon.model.results.sample import CountedFunction, HotSample, SampleRequest
from tpmon.probe.collect.collector import Collector
from tpmon.probe.job.resolve import find_job
from tpmon.probe.spy.failure import find_spies, find_spy
from tpmon.probe.spy.sample import OFF
from tpmon.settings import STACK_FORMATS

pytestmark = pytest.mark.usefixtures("small_environment")


@pytest.mark.torch
@pytest.mark.parametrize("form", STACK_FORMATS)
def test_the_price_comes_first_and_then_each_form(job, form):
    done = call("sample", str(job), "--seconds", "1", "--format", form)
    assert done.returncode == 0, done.stderr
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
    done = call(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sample   1 process of ")
    assert f"tpmon: wrote {path}\n" in done.stderr
    assert json.loads(path.read_text())["profiles"][0]["unit"] == "seconds"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    nowhere = call("sample", str(job), "--seconds", "600", "--out", str(tmp_path / "no" / "x.json"))
    assert nowhere.returncode == 2
    assert f"--out: {tmp_path}/no/x.json: No such file or directory" in nowhere.stderr
    assert call(*arguments).returncode == 2
    assert path.read_bytes() == before


@pytest.mark.torch
def test_a_rank_that_is_elsewhere_is_refused_and_all_takes_what_is_here(job):
    done = call("sample", str(job), "--rank", "7")
    assert done.returncode == 2
    assert done.stderr.startswith("tpmon: --rank: rank 7 is not on this machine\nTry: here: ")
    done = call("sample", str(job), "--all", "--seconds", "1", "--only", "gil", "--json")
    assert done.returncode == 0, done.stderr
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


@needs_setpriv
@pytest.mark.torch
def test_denied_is_4_with_the_reason_and_the_fix(job, tmp_path):
    spy = find_spy()
    assert is_known(spy)
    with run_as_nobody(spy) as command:
        # Beside a Python of its own: that is where py-spy is looked for first.
        python = tmp_path / "python"
        python.symlink_to(sys.executable)
        fake = tmp_path / "py-spy"
        fake.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
        program = (
            f"import sys; sys.executable = {str(python)!r}; from tpmon.cli import main;"
            " raise SystemExit(main(sys.argv[1:]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, "sample", str(job), "--seconds", "2"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert done.returncode == 4, done.stderr
    assert done.stdout == ""
    price, what, hint = done.stderr.splitlines()
    assert price.startswith("tpmon: samples 1 process")
    assert what.startswith(f"tpmon: pid {job} cannot be sampled: not permitted")
    assert hint.startswith("Try: ")


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
