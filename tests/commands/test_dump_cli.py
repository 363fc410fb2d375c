"""``tpmon dump`` and ``tpmon fold`` as a person calls them: forms, refusals, exit codes, signals."""

import json
import os
import signal

import pytest

from tests.command_line import SECONDS, call, start
from tests.waiting import wait_until
from tpmon.model.codec import decode
from tpmon.model.dump import Dump, Motion
from tpmon.model.known import is_known
from tpmon.probe.base.procread import read_stat
from tpmon.probe.spy.failure import find_spies
from tpmon.settings import STACK_FORMATS

pytestmark = pytest.mark.usefixtures("small_environment")


@pytest.mark.torch
@pytest.mark.parametrize("form", STACK_FORMATS)
def test_a_dump_in_each_form_and_its_fold(job, form, tmp_path):
    done = call("dump", str(job), "--format", form)
    assert (done.returncode, done.stderr) == (0, "")
    if form == "text":
        assert done.stdout.startswith("dump     rank 0 is in <module> in <string>:1, blocked in a read of standard")
        assert "stopped nothing" in done.stdout
    elif form == "collapsed":
        assert done.stdout == "rank 0 main;<module> (<string>:1) 1\n"
    elif form == "speedscope":
        assert json.loads(done.stdout)["exporter"] == "tpmon"
    else:
        assert decode(Dump, done.stdout).pid == job
        path = tmp_path / "one.json"
        path.write_text(done.stdout)
        again = call("fold", str(path), "--json")
        assert again.returncode == 0, again.stderr
        assert decode(Dump, again.stdout).summary == decode(Dump, done.stdout).summary


@pytest.mark.torch
def test_a_tree_of_a_dump_and_of_its_fold(job, tmp_path):
    done = call("dump", str(job), "--tree")
    assert (done.returncode, done.stderr) == (0, "")
    tree = "\n\n1x - <module> <string>:1\n  = rank 0: state S\n"
    assert tree in done.stdout
    assert done.stdout.startswith("dump     rank 0 is in <module> in <string>:1")
    path = tmp_path / "one.json"
    path.write_text(call("dump", str(job), "--json").stdout)
    assert tree in call("fold", str(path), "--tree").stdout


@pytest.mark.torch
def test_several_looks_tell_that_it_rests_and_block_says_its_price(job):
    done = call("dump", str(job), "--rounds", "3", "--every", "0.2", "--json", "--block")
    assert done.returncode == 0
    assert done.stderr.startswith("tpmon: --block: a process that cannot be read otherwise is stopped")
    dump = decode(Dump, done.stdout)
    assert dump.rounds == 3
    assert dump.groups[0].motion is Motion.FROZEN
    assert dump.groups[0].since_s >= 0.3  # two waits of 0.2 s, each from the end of a round
    assert dump.paused_ms == 0.0


@pytest.mark.torch
def test_a_part_of_a_job_that_is_not_there_is_said(job):
    absent = call("dump", str(job), "--rank", "1,3-4")
    assert (absent.returncode, absent.stdout) == (2, "")
    assert absent.stderr == "tpmon: --rank: ranks 1,3-4 are not on this machine\nTry: here: 0\n"
    stranger = call("dump", str(job), "--pid", str(os.getpid()))
    assert stranger.returncode == 2
    assert f"--pid: process {os.getpid()} is not of this job" in stranger.stderr


@pytest.mark.torch
def test_native_frames_and_variables_come_after_their_price(job, tmp_path):
    done = call("dump", str(job), "--rank", "0", "--pid", str(job), "--native", "--locals", "--json")
    assert done.returncode == 0, done.stderr
    native, variables = done.stderr.splitlines()
    assert native.startswith("tpmon: --native: every process is stopped while")
    assert variables.startswith("tpmon: --locals: nothing is stopped")
    assert native.endswith("(1 process)")
    dump = decode(Dump, done.stdout)
    assert dump.paused_ms > 0.0, "a stop is counted"
    (main,) = [group for group in dump.groups if group.threads[0].tid == job]
    assert any(".so" in frame.file for frame in main.frames)
    assert is_known(main.threads[0].locals)
    assert wait_until(lambda: read_stat(job).state == "S"), "it goes on as before"
    path = tmp_path / "native.json"
    path.write_text(done.stdout)
    text = call("fold", str(path)).stdout
    assert "stopped the job for" in text
    assert "    - " in text


@pytest.mark.torch
@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        ("dump --rounds 100 --every 0.1", signal.SIGINT, 130),
        ("dump --rounds 100 --every 0.1", signal.SIGTERM, 143),
        ("sample --seconds 600", signal.SIGTERM, 143),
    ],
)
def test_a_signal_ends_it_with_its_code_and_leaves_no_py_spy(job, command, number, code):
    with start(*command.split(), str(job)) as running:
        assert wait_until(lambda: job in find_spies())
        running.send_signal(number)
        assert running.wait(SECONDS) == code
        assert running.stdout.read() == ""
        assert [line for line in running.stderr if not line.startswith("tpmon: samples 1 process")] == []
    assert wait_until(lambda: job not in find_spies())
