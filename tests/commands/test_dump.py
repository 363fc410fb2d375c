"""``tpmon dump`` and ``tpmon fold``: text, formats, files of dumps, refusals, exit codes, signals."""

import json
import os
import re
import signal
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.command_line import SECONDS, call, start
from tests.dumps import HOST, make_native, make_rank, make_round, make_thread, make_worker
from tests.stacks import IN_LOCK, NEXT_BATCH, NFS, WORKER_READS
from tests.waiting import wait_until
from tpmon.commands.dump import pick_exit_code
from tpmon.config import resolve
from tpmon.errors import UsageError
from tpmon.judge.dumps.describe import shorten_stack
from tpmon.judge.folds.groups import DumpOrigin, fold_dumps, fold_rounds
from tpmon.model.codec import decode, encode
from tpmon.model.dump import Dump, DumpError, ErrorKind, Motion
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.model.process import Role, ThreadKind
from tpmon.model.stacks import StackFrame
from tpmon.model.text.dump_words import name_processes
from tpmon.probe.base.procread import read_stat
from tpmon.probe.records.dump_files import read_dumps
from tpmon.probe.spy.failure import find_spies
from tpmon.report.formats import write_collapsed, write_speedscope
from tpmon.report.stacks import MOST_FRAMES, write_dump
from tpmon.settings import STACK_FORMATS

pytestmark = pytest.mark.usefixtures("small_environment")


def text(dump: Dump) -> str:
    return "\n".join(write_dump(dump, shorten_stack))


DENIED = DumpError(HOST, 4070, Role.RANK, 7, NOT_APPLICABLE, ErrorKind.DENIED, "not permitted: uid 7")


@pytest.fixture
def dump():
    """Return seven ranks in a collective, one in a read, one denied, with workers and native threads."""
    watchdog = make_native(77, "pt_nccl_watchdg")
    feeder = make_thread(78, name="QueueFeederThread", kind=ThreadKind.OTHER, frames=IN_LOCK)
    ranks = [make_rank(rank, watchdog, feeder) for rank in (0, 1, 2, 4, 5, 6)]
    odd = make_rank(3, frames=NEXT_BATCH)
    workers = [make_worker(3, 0, frames=WORKER_READS, state="D", waits_on=NFS), make_worker(3, 1)]
    denied = make_rank(7, frames=Missing("not permitted: uid 7"))
    one = make_round(*ranks, odd, *workers, denied, errors=[DENIED])
    return fold_rounds([replace(one, paused_ms=1.25)], DumpOrigin(4000, "train.py", 8))


def test_the_odd_one_comes_first_and_the_others_as_ranges(dump):
    lines = text(dump).splitlines()
    assert lines[0].startswith("dump     6 of 8 ranks wait in all_reduce train.py:40; rank 3 waits for a batch; worker")
    heads = [line for line in lines if re.match(r"(\d+x )?(rank|worker)", line)]
    assert heads == [
        "worker 0 of rank 3: decode data.py:88",
        "6x ranks 0-2,4-6: all_reduce train.py:40",
        "rank 3: data wait: queue train.py:40",
        "rank 7: stack not read",
        "worker 1 of rank 3: waits for work (queue.get)",
    ]
    first = lines.index(heads[0])
    assert lines[first + 1] == "  state D, blocked in a read of /data/7.bin on NFS (/data)"
    assert lines[first + 2 : first + 6] == [
        "    <module> train.py:90",
        "    - fetch",
        "    __getitem__ data.py:60",
        "    decode data.py:88",
    ]


def test_processes_of_one_reason_are_named_together_each_with_what_to_try_and_where(dump):
    late = [replace(DENIED, pid=4000 + n, rank=n, kind=ErrorKind.LATE, reason="late") for n in (0, 1, 2)]
    failed = replace(DENIED, host="node-02", kind=ErrorKind.FAILED, reason="torn")
    gone = replace(DENIED, kind=ErrorKind.GONE, reason="it ended")
    said = text(replace(dump, errors=(*late, failed)))
    assert (
        f"not read ranks 0-2 on {HOST}: late\n"
        "try      again: tpmon dump 4000; if it stays so, tpmon doctor 4000 tries py-spy\n"
        "not read rank 4070 (rank 7) on node-02: torn\n"
    ) in said
    assert "with --block it is read with a short stop" not in said  # this one stopped already
    assert "with --block it is read with a short stop" in text(replace(dump, errors=(failed,), paused_ms=0.0))
    assert "it ended\ntry " not in text(replace(dump, errors=(gone,)))


def test_what_is_not_in_the_picture_is_said(dump):
    said = text(dump)
    assert "\n  ? not permitted: uid 7\n" in said
    assert (
        "not read rank 4070 (rank 7): not permitted: uid 7\n"
        "try      tpmon doctor 4070 says what to allow or to install\n"
    ) in said
    assert "stopped the job for 1.2 ms" in said
    assert "6x pt_nccl_watchdg of ranks 0-2,4-6: state S" in said
    assert "6x QueueFeederThread of ranks 0-2,4-6: hold train.py:12" in said
    assert "stopped nothing" in text(replace(dump, paused_ms=0.0))


def test_a_deep_stack_keeps_its_innermost_lines():
    deep = tuple(StackFrame(f"step_{n}", "/run/a.py", n) for n in range(60))
    said = text(fold_rounds([make_round(make_rank(0, frames=deep))], DumpOrigin(1, "a.py", 1)))
    assert f"    ... {60 - MOST_FRAMES} more\n" in said
    assert "    step_59 a.py:59" in said
    assert "    step_1 a.py:1\n" not in said


def test_looks_are_told_with_their_span():
    looks = [make_round(make_rank(0, frames=IN_LOCK), at_s=at) for at in (0.0, 5.0, 10.0)]
    said = text(fold_rounds(looks, DumpOrigin(1, "a.py", 1)))
    assert "3 dumps over 10 s" in said
    assert "frozen for at least 10 s, 0 % CPU" in said


def make_dumps() -> list[Dump]:
    """Return the dumps of two ranks on two hosts."""
    rounds = [make_round(make_rank(rank), host=f"node-{rank}") for rank in range(2)]
    return [fold_rounds([one], DumpOrigin(1, "a.py", 2)) for one in rounds]


def test_processes_of_several_hosts_are_named_with_their_host():
    dumps = make_dumps()
    assert "2x ranks 0-1 on node-0, node-1: all_reduce" in text(fold_dumps(dumps))
    assert write_collapsed(fold_dumps(dumps))[0].startswith("ranks 0-1 on node-0, node-1 main;")
    threads = [thread for group in dumps[0].groups for thread in group.threads]
    assert name_processes(threads) == "rank 0"
    helper = replace(threads[0], role=Role.HELPER, rank=NOT_APPLICABLE)
    assert name_processes([helper, replace(helper, pid=9)]) == "helpers 9,4000"


def test_one_look_says_when_the_log_was_written_last(dump):
    assert "log write" not in text(dump)
    said = text(replace(dump, last_write=dump.taken - timedelta(minutes=15, seconds=3)))
    assert "15m03s before" in said
    assert "last log write " in said
    assert "the job still writes" not in said
    told = replace(dump, last_write=dump.taken)
    assert decode(Dump, encode(told)).last_write == dump.taken


def test_a_log_that_was_written_between_the_looks_says_that_not_all_of_the_job_stands(dump):
    """The same line twice is no hang: a CPU that trains is in its backward most of the time."""
    written = replace(dump, rounds=2, seconds=5.8, last_write=dump.taken - timedelta(seconds=3))
    assert "3.0 s before: between the dumps, the job still writes" in text(written)


# formats


def test_collapsed_stacks_count_each_thread_once_and_divide_at_semicolons(dump):
    lines = write_collapsed(dump)
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == sum(len(g.threads) for g in dump.groups)
    assert "ranks 0-2,4-6 comm;[native pt_nccl_watchdg] 6" in lines
    assert "rank 7 main;[stack not read] 1" in lines
    odd = fold_rounds([make_round(make_rank(0, frames=(StackFrame("a;b", "/x;y.py", 3),)))], DumpOrigin(1, "", 1))
    assert write_collapsed(odd) == ["rank 0 main;a,b (/x,y.py:3) 1"]


def test_speedscope_has_every_frame_it_names_and_weighs_threads(dump):
    document = json.loads(write_speedscope(dump))
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    count = len(document["shared"]["frames"])
    assert [one["name"] for one in document["profiles"]][:2] == ["worker 0 of rank 3 main", "ranks 0-2,4-6 main"]
    for profile in document["profiles"]:
        assert profile["type"] == "sampled"
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == sum(profile["weights"])
        assert all(0 <= number < count for sample in profile["samples"] for number in sample)
    weights = sum(sum(profile["weights"]) for profile in document["profiles"])
    assert weights == sum(len(group.threads) for group in dump.groups)


# files of dumps


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "a.json: no dump in it"),
        ("nonsense", "a.json:1: no dump of tpmon: not JSON"),
        ("\n[1]", "a.json:2: no dump of tpmon: Dump: expected an object"),
        ("[" * 100_000, "no dump of tpmon"),
        ('{"schema": "tpmon.frame/1"}', "no dump of tpmon"),
        ("another schema", "reads tpmon.dump/1"),
    ],
)
def test_what_is_no_dump_is_refused_by_file_and_line(dump, tmp_path, content, words):
    path = tmp_path / "a.json"
    path.write_text(encode(replace(dump, schema="tpmon.dump/2")) if content == "another schema" else content)
    with pytest.raises(UsageError, match=re.escape(words)):
        list(read_dumps([str(path)]))


def test_a_dump_of_somebody_else_sends_no_escape_sequence_to_the_terminal(tmp_path, dump):
    evil = "\x1b]0;x\x07\x9b2J\u202e"
    thread = make_thread(78, name=evil, kind=ThreadKind.OTHER, frames=(StackFrame(evil, f"/{evil}.py", 1),))
    frames = (StackFrame(evil, f"/{evil}.py", 1),)
    processes = [make_rank(0, thread, frames=frames), make_rank(1, frames=Missing(evil))]
    error = replace(DENIED, pid=4010, rank=1, reason=evil)
    bad = fold_rounds([make_round(*processes, host=evil, errors=[error])], DumpOrigin(1, evil, 2))
    path = tmp_path / "evil.json"
    path.write_text(encode(bad))
    (clean,) = read_dumps([str(path)])
    for said in (text(clean), encode(clean), write_speedscope(clean), "\n".join(write_collapsed(clean))):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]|\\u001b|\\u0007", said)


def test_formats_and_exit_codes(dump):
    def pick(flags, environment, tables):
        return resolve(flags, environment, "", tables).pick_format("dump.format")

    for flags, environment, form in (
        ({"json": True}, {}, "json"),
        ({}, {}, "text"),
        ({"dump.format": "speedscope"}, {"TPMON_JSON": "1"}, "speedscope"),
        ({"dump.format": "text"}, {"TPMON_JSON": "1"}, "text"),
        ({"json": True}, {"TPMON_DUMP_FORMAT": "collapsed"}, "json"),
        ({}, {"TPMON_JSON": "1"}, "json"),
    ):
        assert pick(flags, environment, {}) == form
    tables = {"json": True, "dump": {"format": "collapsed"}}
    assert pick({}, {"TPMON_JSON": "1"}, tables) == "json"
    with pytest.raises(UsageError, match="format collapsed, both of the configuration file, exclude each other"):
        pick({}, {}, tables)
    assert pick_exit_code(dump) == 0
    nothing = replace(dump, groups=())
    assert pick_exit_code(nothing) == 4
    assert pick_exit_code(replace(nothing, errors=(replace(DENIED, kind=ErrorKind.GONE),))) == 3
    assert pick_exit_code(replace(nothing, errors=(replace(DENIED, kind=ErrorKind.NO_SPY),))) == 2


# the command


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
        again = call("fold", str(path), "--json", code=0)
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
    done = call("dump", str(job), "--rounds", "3", "--every", "0.2", "--json", "--block", code=0)
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
    stranger = call("dump", str(job), "--pid", str(os.getpid()), code=2)
    assert f"--pid: process {os.getpid()} is not of this job" in stranger.stderr


@pytest.mark.torch
def test_native_frames_and_variables_come_after_their_price(job, tmp_path):
    done = call("dump", str(job), "--rank", "0", "--pid", str(job), "--native", "--locals", "--json", code=0)
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
