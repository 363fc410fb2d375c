"""The tail of the job's own log, without its secrets, and which open file of a rank was written last."""

import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.children import Child, child
from tests.dumps import make_rank, make_worker
from tests.frames import NOW
from tests.hanging import conclude, run, stand
from tests.stacks import IN_LOCK
from tpmon.judge.watch.clock import file_age_s
from tpmon.model.frame import Frame
from tpmon.model.host import FileWrite, SocketSample
from tpmon.model.known import NOT_APPLICABLE, Missing
from tpmon.model.process import Role
from tpmon.model.text.redaction import HIDDEN, hide, hide_words
from tpmon.model.verdict import Kind, SinceIs
from tpmon.probe.host import output
from tpmon.probe.proc.wait_object import read_mount

# -- redaction -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("logging in with key=AbCdEf99", "AbCdEf99"),
        ("db_password = 'a b c'", "a b c"),
        ("train.py --db-pass hunter2", "hunter2"),
        ("train.py --pw 123456 --lr 3", "123456"),
        ("DB_PASS=12345 MYSQL_PWD=swordfish", "12345"),
        ("DB_PASS=12345 MYSQL_PWD=swordfish", "swordfish"),
        ('{"db_pass": "hunter2"}', "hunter2"),
        ("groq gsk_0123456789abcdefABCDEF", "0123456789abc"),
        ("npm npm_0123456789abcdefABCDEF0123456789abcd", "0123456789abc"),
        ("docker dckr_pat_0123-456789abcdef", "456789abc"),
        ("--password=one,twothree", "twothree"),
        ("api_key=AbCdEf;twothree&four", "four"),
        ("git clone https://me:p@55word@git.example.org/x.git", "55word"),
        ("train.py --api_key 1234567890", "1234567890"),
        ("Error: Command '['t.py', '--wandb_api_key', 'deadbeef01', '--lr', '3']' returned 1", "deadbeef01"),
        ("Error: Command '['t.py', '--x', '1', '--password', 'hunter2 and 3']' returned 1", "and 3"),
        ("spawned with command: ['python', 't.py', '--db_password', 'hunter2']", "hunter2"),
        ('argv: ["t.py", "--hub-token", "abcdef123456"]', "abcdef123456"),
        ('argv: ["t.py", "--db-pass", "hunter2...', "hunter2"),
        (r'{"msg": "{\"api_key\": \"AbCdEf 99\", \"step\": 3}"}', "99"),
        (r'{"msg": "[\"--hub-token\", \"abcdef123456\"]"}', "abcdef123456"),
        (r'{"msg": "{\"db_pass\": \"hunter2\"}"}', "hunter2"),
        (r'{"a": "{\"b\": \"{\\\"secret\\\": \\\"hunter2\\\"}\"}"}', "hunter2"),
    ],
)
def test_secrets_are_hidden(line, secret):
    shown = hide(line)
    assert secret not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize(
    "line",
    [
        "step 1200 | loss 2.31 | tokens: 4096 | tokens/s 12.3k",
        "num_tokens=1_048_576 tokens_per_sec: 11,204.5",
        "RuntimeError: Error(s) in loading state_dict: Missing key(s): fc.weight",
        "tokenizer: BertTokenizerFast",
        "pad_token='<pad>' eos_token_id: 50256",
        "author: somebody  basic training started",
        "https://huggingface.co/docs?x=1",
        "PWD=/home/me OLDPWD=/tmp bypass=everything compass=north-west",
        "train.py --key-frames 12 --max_tokens 4096 --num-passes 3 --n_keys=16",
        "spawned with command: ['t.py', '--max_tokens', '4096', '--key-frames', 'all']",
        "argv: ['t.py', '--use-auth-token', '--learning-rate', '3']",
        "the flags '--hub-token', and '--user' exclude each other",
        r'{"msg": "{\"tokens\": 4096, \"pad_token\": \"<pad>\"}"}',
        "",
    ],
)
def test_ordinary_log_lines_stay_as_they_are(line):
    assert hide(line) == line


@given(st.text("abk=ey:-/@ '\"tokn.1\\,", max_size=80))
def test_redaction_takes_any_text_and_settles(text):
    once = hide(text)
    assert hide(once) == once


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("train.py", "--password", "hun ter2", "--lr", "3"), "train.py --password *** --lr 3"),
        (("train.py", "--db-pass", "-x", "a b"), "train.py --db-pass *** a b"),
        (("train.py", "--password=a b, c", "x"), "train.py --password=*** x"),
        (("db.pass=one two", "MYSQL_PWD=3"), "db.pass=*** MYSQL_PWD=***"),
        (("--use-auth-token", "--lr", "3"), "--use-auth-token --lr 3"),
        (("--pass-through", "layers", "bypass=layers"), "--pass-through layers bypass=layers"),
        (("--max_tokens", "4096", "--key-frames", "all"), "--max_tokens 4096 --key-frames all"),
        (("--api_key", "1234567890"), "--api_key ***"),
        (("--note", "key of hf_AbCdEfGhIjKl"), "--note key of ***"),
        (("sh", "-c", "train.py --password 'a b' --lr 3"), "sh -c train.py --password *** --lr 3"),
    ],
)
def test_in_a_command_line_a_value_ends_with_its_word(words, shown):
    assert " ".join(hide_words(words)) == shown


# -- the tail ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "cut", "lines"),
    [
        (b"a\nb\n\nc\nd\n\n", False, ("b", "c", "d")),
        (b"Root Cause\n-----\n exitcode: 1\n=====\n*****\n", False, ("Root Cause", "exitcode: 1")),
        # A progress bar shows what follows the last carriage return.
        (b"epoch 1\n\r 10%|#  | 1/10\r 20%|## | 2/10\r 30%|###| 3/10", False, ("epoch 1", "30%|###| 3/10")),
        # tqdm clears its line with blanks; a log with CR LF ends every line in a carriage return.
        (b"done\r\n\r 90%|#|\r        \r", False, ("done", "90%|#|")),
        (((b"\r%4d/9999 it" % 1234) * 400)[-output.TAIL_BYTES :], True, ("1234/9999 it",)),
        # The half line at the cut is left out.
        (b"f_secretsecret\nwhole\n", True, ("whole",)),
        (b"f_secretsecret and the rest of it", True, ("and the rest of it",)),
        (b"f_secretsecret", True, ()),
    ],
)
def test_the_last_lines_are_those_that_a_terminal_would_show(raw, cut, lines):
    assert output.parse_tail(raw, cut=cut) == lines


def test_escape_sequences_and_control_characters_do_not_pass_and_a_line_is_redacted_before_it_is_cut():
    raw = b"\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[Aup\x9b\x00\xff\n\x1b]52;c;aGk=\x1b\\copied\xe2\x80\xae\n"
    shown = output.parse_tail(raw, cut=False)
    assert shown[0].startswith("red up")
    assert shown[1] == "copied?"
    assert all(char.isprintable() for line in shown for char in line)
    (line,) = output.parse_tail(b"x" * (output.LINE_LENGTH - 8) + b" token=abcdefghijkl\n", cut=False)
    assert "abc" not in line


@given(st.binary(max_size=600), st.booleans())
def test_any_bytes_give_at_most_three_short_printable_lines(raw, cut):
    lines = output.parse_tail(raw, cut)
    assert len(lines) <= 3
    assert all(0 < len(line) <= output.LINE_LENGTH for line in lines)
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for line in lines for char in line)


# -- real processes ------------------------------------------------------------------------------


@pytest.fixture
def writer(tmp_path):
    """Start a process whose stdout and stderr go where the test says; it echoes what it is told."""
    started = []

    def start(stdout, stderr):
        program = "import sys\nfor line in sys.stdin: sys.stdout.write(line); sys.stdout.flush(); print('ok', file=sys.stderr, flush=True)"
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def say(process, line: str) -> None:
    process.stdin.write(line + "\n")
    process.stdin.flush()
    assert process.stderr.readline() == "ok\n"


@pytest.fixture
def logged(tmp_path, writer):
    """Start a process that writes into a log, and give both."""
    log = tmp_path / "train.log"
    with log.open("ab") as file:
        return log, writer(file, subprocess.PIPE)


def test_real_file_is_followed_as_it_grows_and_also_when_it_was_deleted(logged):
    log, process = logged
    (sample,) = output.OutputReader().read([process.pid])
    assert (sample.path, sample.size_bytes, sample.lines) == (str(log), 0, ())
    say(process, "step 1 loss 2.0")
    (sample,) = output.OutputReader().read([process.pid])
    assert (sample.pid, sample.fd, sample.lines) == (process.pid, 1, ("step 1 loss 2.0",))
    say(process, "step 2 token=abcdefghijkl")
    os.utime(log, (1_000, 1_700_000_000))
    (sample,) = output.OutputReader().read([process.pid])
    assert (sample.size_bytes, sample.lines) == (log.stat().st_size, ("step 1 loss 2.0", "step 2 token=***"))
    assert sample.last_write.astimezone(timezone.utc) == datetime.fromtimestamp(1_700_000_000, timezone.utc)
    assert sample.last_write_age_s > 1e6
    assert log.stat().st_atime == 1_000, "reading leaves the access time alone"
    log.unlink()
    (deleted,) = output.OutputReader().read([process.pid])
    assert (deleted.path, deleted.lines) == (f"{log} (deleted)", sample.lines)


def test_one_file_behind_two_descriptors_of_two_processes_is_read_once(tmp_path, writer):
    with (tmp_path / "both.log").open("wb") as file, (tmp_path / "other.log").open("wb") as other:
        one, two = writer(file, file), writer(file, other)
    samples = output.OutputReader().read([one.pid, two.pid])
    assert [(sample.pid, sample.fd) for sample in samples] == [(one.pid, 1), (two.pid, 2)]


def test_pipes_terminals_and_null_are_never_touched(writer):
    main, side = os.openpty()
    process = writer(subprocess.PIPE, subprocess.PIPE)
    at_terminal = writer(side, subprocess.DEVNULL)
    say(process, "for the pipe's reader")
    assert output.OutputReader().read([process.pid, at_terminal.pid]) == ()
    # What was in the pipe is still there for its reader.
    assert process.stdout.readline() == "for the pipe's reader\n"
    os.close(main)
    os.close(side)


@pytest.mark.parametrize(
    "pipeline",
    [
        "tee {log}",
        "tee -a {log} | cat",
        "cat > {log}",
        "grep --line-buffered step | tee {log}",
        "cat | cat | tee {log}",
    ],
)
def test_the_log_at_the_end_of_a_pipeline_is_followed(tmp_path, writer, pipeline):
    log = tmp_path / "train.log"
    shell = subprocess.Popen(["sh", "-c", pipeline.format(log=log)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    process = writer(shell.stdin, subprocess.PIPE)
    shell.stdin.close()
    say(process, "step 7 loss 1.5")
    deadline = time.monotonic() + 20
    while not (samples := output.OutputReader().read([process.pid])) or not samples[0].lines:
        assert time.monotonic() < deadline, samples
        time.sleep(0.05)
    (sample,) = samples
    assert (sample.path, sample.lines) == (str(log), ("step 7 loss 1.5",))
    assert output.read_more(sample, 5) == ("step 7 loss 1.5",)
    process.kill()
    shell.wait()


def test_the_readers_of_pipes_are_looked_for_seldom(tmp_path, writer, monkeypatch):
    asked = []
    monkeypatch.setattr(output, "list_pids", lambda proc: asked.append(proc) or [])
    process = writer(subprocess.PIPE, subprocess.PIPE)
    reader = output.OutputReader()
    assert [reader.read([process.pid]) for _ in range(5)] == [()] * 5
    assert len(asked) == 1


def test_unreadable_log_says_why_and_keeps_its_age(logged):
    log, process = logged
    say(process, "secret")
    log.chmod(0)
    if os.access(log, os.R_OK):
        program = "sys.path[:0] = sys.argv[2:]\nfrom tpmon.probe.host.output import OutputReader\nos.setuid(65534)\n"
        with closing(
            Child(f"{program}say(OutputReader().read([int(sys.argv[1])]))", str(process.pid), *sys.path)
        ) as one:
            seen = one.hear()
        assert "not permitted (doctor: fd)" in seen
        assert "secret" not in seen
    else:
        (sample,) = output.OutputReader().read([process.pid])
        assert (sample.size_bytes, sample.lines) == (Missing("not readable: the file itself does not permit it"), ())
        assert sample.last_write_age_s < 60


def test_who_may_not_read_a_log_is_sent_to_the_doctor_only_where_the_descriptor_is_refused(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "7" / "fd").mkdir(parents=True)
    (tmp_path / "train.log").write_text("step 1\n")
    link = tmp_path / "7" / "fd" / "1"
    link.symlink_to(tmp_path / "train.log")
    (sample,) = output.OutputReader(str(tmp_path)).read([7])
    monkeypatch.setattr(output, "_open", refuse)
    (unread,) = output.OutputReader(str(tmp_path)).read([7])
    assert unread.size_bytes == Missing("not readable: the file itself does not permit it")
    assert output.read_more(sample, 5, str(tmp_path)) == Missing("the file itself does not permit it")
    link.unlink()
    assert output.read_more(sample, 5, str(tmp_path)) == Missing("not permitted (doctor: fd)")


def test_writes_on_a_server_whose_clock_is_ahead_are_dated_by_ours(logged):
    """Where two looks find two times, the write was between them, whatever the server calls it."""
    log, process = logged
    reader, ahead_s = output.OutputReader(), int(time.time()) + 600
    say(process, "step 1")
    os.utime(log, (0, ahead_s))
    for _ in range(2):
        (sample,) = reader.read([process.pid])
        assert "s ahead of ours" in sample.last_write_age_s.reason
    say(process, "step 2")
    os.utime(log, (0, ahead_s + 1))
    (sample,) = reader.read([process.pid])
    assert sample.last_write_age_s == 0.0
    assert abs(sample.last_write.timestamp() - time.time()) < 60
    written = sample.last_write
    (sample,) = reader.read([process.pid])
    assert (sample.last_write, sample.last_write_age_s > 0.0) == (written, True)


def test_a_clock_that_was_seen_ahead_is_not_believed_when_ours_has_caught_up():
    first = output._stamp(1600.0, 10, None, 1000.0)
    assert (first.ahead_s, first.written_s) == (600.0, None)
    later = output._stamp(1600.0, 10, first, 2200.0)
    assert (later.ahead_s, later.written_s) == (600.0, None), "600 s ago by the server, 1,200 by us"
    wrote = output._stamp(2900.0, 20, later, 2300.0)
    assert output._stamp(2900.0, 20, wrote, 3000.0).written_s == 2300.0
    quiet = output._stamp(900.0, 10, None, 1000.0)
    assert quiet.written_s == 900.0
    assert output._stamp(1610.0, 20, quiet, 1010.0).written_s == 1010.0
    assert output._stamp(1003.0, 10, None, 1000.0).written_s == 1003.0, "a little ahead is no other clock"


def test_a_log_that_was_cut_was_not_written():
    """Whoever rotates logs cuts them where they are: no sign of life of the job."""
    first = output._stamp(1000.0, 500, None, 5000.0)
    cut = output._stamp(4990.0, 0, first, 5001.0)
    still = output._stamp(4990.0, 0, cut, 5002.0)
    assert [one.written_s for one in (first, cut, still)] == [1000.0] * 3
    grown = output._stamp(5020.0, 30, still, 5021.0)
    assert grown.written_s == 5020.0
    # Two that write without O_APPEND write over each other, and the file does not grow.
    assert output._stamp(5025.0, 30, grown, 5026.0).written_s == 5025.0
    # A file system whose time comes after its size.
    early = output._stamp(5020.0, 40, grown, 5027.0)
    assert output._stamp(5028.0, 40, early, 5029.0).written_s == 5028.0
    assert output._stamp(5020.0, 30, grown, 5030.0).written_s == 5020.0
    assert output._stamp(3000.0, 30, grown, 5031.0).written_s == 3000.0, "somebody said that it is older"
    ahead = output._stamp(
        9000.0, 30, output._stamp(8000.0, 20, output._stamp(7000.0, 10, None, 5000.0), 5010.0), 5020.0
    )
    assert output._stamp(9500.0, 0, ahead, 5100.0).written_s == ahead.written_s == 5020.0


def test_a_log_that_is_cut_under_its_writer_keeps_the_age_of_its_last_line(logged):
    log, process = logged
    say(process, "step 1")
    os.utime(log, (0, 1_700_000_000))
    reader = output.OutputReader()
    reader.read([process.pid])
    os.truncate(log, 0)
    for _ in range(2):
        (sample,) = reader.read([process.pid])
        assert (sample.size_bytes, sample.lines) == (0, ())
        assert sample.last_write.timestamp() == 1_700_000_000
        assert sample.last_write_age_s > 1e6
    say(process, "step 2")
    (sample,) = reader.read([process.pid])
    assert sample.lines == ("step 2",)
    assert sample.last_write_age_s < 60


def test_last_words_are_read_after_the_end_of_their_writer_by_who_knew_it(logged):
    log, process = logged
    say(process, "step 1")
    reader = output.OutputReader()
    assert reader.read([process.pid])[0].lines == ("step 1",)
    say(process, "RuntimeError: out of memory")
    process.kill()
    process.wait()
    assert reader.read([process.pid])[0].lines == ("step 1", "RuntimeError: out of memory")
    assert output.OutputReader().read([process.pid]) == ()
    log.rename(log.with_suffix(".1"))
    log.write_text("of the next run\n")
    assert reader.read([])[0].lines == ("step 1", "RuntimeError: out of memory")


def test_a_log_that_is_written_comes_before_one_whose_writer_ended(tmp_path, writer):
    with (tmp_path / "first.log").open("wb") as first, (tmp_path / "second.log").open("wb") as second:
        one, two = writer(first, subprocess.PIPE), writer(second, subprocess.PIPE)
    reader = output.OutputReader()
    assert [sample.pid for sample in reader.read([one.pid])] == [one.pid]
    one.kill()
    one.wait()
    assert [sample.pid for sample in reader.read([one.pid, two.pid])] == [two.pid]


LOCKED = make_rank(0, frames=IN_LOCK)
PATH = "/runs/7/events.out.tfevents"


def written(frames: list[Frame], ago_s: float, *, journal: bool = False) -> list[Frame]:
    """Let a rank have written into a file ``ago_s`` before the last Frame."""
    one = FileWrite(4000, PATH, NOW - timedelta(seconds=ago_s), journal)
    return [replace(frame, written=one) for frame in frames]


def start_workers(frames: list[Frame], ago_s: float) -> list[Frame]:
    """Let all loader workers have started at one moment."""

    def start(process):
        return replace(process, started=NOW - timedelta(seconds=ago_s)) if process.role is Role.WORKER else process

    return [replace(frame, processes=tuple(map(start, frame.processes))) for frame in frames]


def test_of_what_is_open_for_writing_the_newest_is_told_and_no_network_file_system_is_asked(tmp_path, monkeypatch):
    old, new, data = tmp_path / "old", tmp_path / "new", tmp_path / "data"
    data.write_text("x")
    with old.open("w") as first, new.open("w") as second, data.open() as other:
        listed = dict(output.list_written(os.getpid()))
        assert listed[first.fileno()] == str(old)
        assert other.fileno() not in listed, "it is only read"
        assert not any(path.startswith(("/dev/", "pipe:", "socket:")) for path in listed.values())
        if read_mount(os.getpid(), first.fileno(), "/proc")[1] not in output.LOCAL:
            pytest.skip("the folder of this test is on no local file system")
        later = 2_000_000_000
        os.utime(second.fileno(), (later, later))
        found = output.read_newest_write([os.getpid()])
        assert (found.pid, found.path, found.last_write.timestamp()) == (os.getpid(), str(new), later)
        monkeypatch.setattr(output, "LOCAL", frozenset())
        assert output.read_newest_write([os.getpid()]) is NOT_APPLICABLE
    assert output.read_newest_write([1, 2], str(tmp_path)) is NOT_APPLICABLE, "they are gone"


OLD_LOG = stand(LOCKED, seconds=10, log_age_s=1560.0)
NO_LOG = stand(LOCKED, log_age_s=None, sockets=Missing("not read"))
TALKED = SocketSample(1, last_send_s=700.0, last_receive_s=900.0, retransmits=0, unsent_bytes=0)
WORKING = stand(LOCKED, make_worker(0, 0), log_age_s=1560.0)
A_WRITE = "last write of events.out.tfevents "


@pytest.mark.parametrize(
    ("frames", "since_s", "source"),
    [
        # A file that was written after the log makes the hang younger, an older one does not.
        (written(OLD_LOG, 400.0), 400, A_WRITE),
        (written(OLD_LOG, 4000.0), 1560, "last log write "),
        # A journal dates the hang of a run without a log; data on connections tells more.
        (written(NO_LOG, 1560.0, journal=True), 1560, A_WRITE),
        (written(stand(LOCKED, log_age_s=None, sockets=TALKED), 1560.0, journal=True), 700, ""),
        # Workers that started later make it younger; others live for an epoch, which says nothing.
        (start_workers(WORKING, 600), 600, "start of its youngest worker "),
        (start_workers(WORKING, 2000), 1560, "last log write "),
    ],
)
def test_a_hang_is_as_old_as_the_last_sign_of_life(frames, since_s, source):
    finding = conclude(frames)
    assert (finding.kind, finding.cause) == (Kind.HUNG, "lock")
    assert (finding.since, finding.since_is) == (NOW - timedelta(seconds=since_s), SinceIs.LOWER_BOUND)
    assert finding.since_source.startswith(source)


def test_a_sign_of_life_just_now_takes_the_word_of_an_old_log_back():
    assert run(written(OLD_LOG, 20.0))[-1].frame.verdict.kind is not Kind.HUNG
    assert conclude(written(stand(LOCKED, log_age_s=1560.0), 20.0)).kind is Kind.HUNG
    frames = stand(LOCKED, make_worker(0, 0), seconds=10, log_age_s=1560.0)
    assert conclude(frames).kind is Kind.HUNG
    assert run(start_workers(frames, 40))[-1].frame.verdict.kind is not Kind.HUNG


@pytest.mark.parametrize("journal", [False, True])
def test_a_file_alone_is_no_sign_of_silence(journal):
    frames = written(stand(LOCKED, seconds=10, log_age_s=None), 9e5, journal=journal)
    assert run(frames)[-1].frame.verdict.kind is not Kind.HUNG, "many get a line an epoch"
    assert file_age_s(frames[-1]) == 9e5
    assert file_age_s(replace(frames[-1], written=NOT_APPLICABLE)) is None


def test_a_file_that_is_no_journal_is_evidence_alone():
    lock_file = conclude(written(NO_LOG, 1560.0))
    assert lock_file.since >= NOW - timedelta(seconds=60), "it may have been written once, when the run began"
    rows = {row.name: row.value for row in lock_file.evidence}
    assert rows["last write of an open file"] == 1560.0


HOLDS = """
file = open(sys.argv[1], sys.argv[2])
file.write(sys.argv[3])
file.flush()
say("up")
hear()
"""


@pytest.mark.parametrize(
    ("mode", "text", "expected"), [("a", "{}", True), ("w", "{}", False), ("r+", "{}", False), ("a", "", False)]
)
def test_a_file_that_is_appended_to_is_a_journal_and_an_empty_one_is_none(tmp_path, mode, text, expected):
    path = tmp_path / "metrics.jsonl"
    path.touch()
    # In a process of its own: the output of this one may be a file that make has opened for appending.
    with child(HOLDS, str(path), mode, text) as one:
        fd = next(fd for fd, name in output.list_written(one.pid) if name == str(path))
        if read_mount(one.pid, fd, "/proc")[1] not in output.LOCAL:
            pytest.skip("the folder of this test is on no local file system")
        assert output.is_journal(one.pid, fd, str(path)) is (mode == "a")
        assert output.read_newest_write([one.pid]).journal is expected
    assert output.is_journal(one.pid, -1, "/runs/7/events.out.tfevents.1772.host.7.0")
