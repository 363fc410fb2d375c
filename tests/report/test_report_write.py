"""How text is written to a reader that is slow, gone or full."""

import fcntl
import os
import struct
import termios
import threading
from dataclasses import replace

import pytest
from rich.cells import cell_len

from tpmon.errors import UsageError
from tpmon.model.known import Missing
from tpmon.model.results.doctor import JobList, JobState, JobSummary, LeftOver
from tpmon.report.blocks import write_blocks
from tpmon.report.jobs import write_jobs
from tpmon.report.text import Output, ReaderGone, complain
from tpmon.view.blocks import lay_sheet
from tpmon.view.layout import TableFigure, wrap_all


def test_output_writes_whole_lines():
    read, write = os.pipe()
    Output(write, ascii_only=False).write_lines("GPU 41 % busy · 4 workers", "")
    Output(write, ascii_only=True).write_lines("GPU 41 % busy · 4 wörkers…")
    Output(write, ascii_only=True).write_json('{"script":"träin.py"}')
    os.close(write)
    with open(read, "rb") as file:
        assert file.read().decode() == (
            'GPU 41 % busy · 4 workers\n\nGPU 41 % busy | 4 w?rkers~\n{"script":"träin.py"}\n'
        )


def test_output_says_quietly_that_the_reader_has_gone_and_names_a_disk_that_is_full():
    read, write = os.pipe()
    output = Output(write, ascii_only=False)
    output.check_reader()
    os.close(read)
    with pytest.raises(ReaderGone):
        output.check_reader()
    with pytest.raises(ReaderGone):
        output.write_lines("nobody reads this")
    os.close(write)
    with pytest.raises(ReaderGone):
        output.write_lines("nor this")
    with open("/dev/full", "wb") as full, pytest.raises(UsageError, match="No space left"):
        Output(full.fileno(), ascii_only=False).write_lines("x")


def test_output_waits_for_a_full_pipe_that_does_not_block():
    read, write = os.pipe()
    os.set_blocking(write, False)
    text = "x" * 300_000
    received = []
    with open(read, "rb") as file:
        reader = threading.Thread(target=lambda: received.append(file.read()))
        reader.start()
        Output(write, ascii_only=False).write_lines(text)
        os.close(write)
        reader.join(10)
    assert received == [f"{text}\n".encode()]


def test_no_escape_sequence_of_others_reaches_standard_error(capfd):
    complain("tpmon: a\x1b]0;title\x07b is no trace\nTry: x\x9b31m\u202e")
    assert capfd.readouterr().err == "tpmon: a?]0;title?b is no trace\nTry: x?31m?\n"


def test_a_line_is_as_wide_as_the_terminal_and_100_in_a_pipe():
    reader, writer = os.pipe()
    screen, terminal = os.openpty()
    try:
        assert Output(writer, ascii_only=False).width == 100
        for columns, width in ((40, 40), (80, 80), (200, 100), (0, 100)):
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            assert Output(terminal, ascii_only=False).width == width
    finally:
        for descriptor in (reader, writer, screen, terminal):
            os.close(descriptor)


@pytest.mark.parametrize(("table", "shown"), [("kernels", 10), ("ranks", 12), ("gpus", 12)])
def test_each_rank_and_card_has_a_row_however_few_others_are_asked_for(table, shown):
    figures = (TableFigure("rank", lambda row: row, str),)
    lines = write_blocks([lay_sheet("rows", figures, tuple(range(12)), str, table=table)], 10)
    assert sum(line.strip().isdigit() for line in lines) == shown


def test_jobs_are_listed_longest_running_first():
    jobs = (
        JobSummary(4211, "usr", JobState.STOPPED, "train.py", "--lr 0.1", 1, 2, 0, 720.0),
        JobSummary(48213, "grace", JobState.RUNNING, "pretrain.py", "", 8, 16, Missing("another user's"), 11_520.0),
    )
    assert write_jobs(JobList("", jobs, 0)) == [
        "  PID  USER   STATE    RANKS  WORKERS  GPUS  UPTIME  SCRIPT",
        "48213  grace  running      8       16     ?   3h12m  pretrain.py",
        " 4211  usr    stopped      1        2     0  12m00s  train.py --lr 0.1",
        "not read GPUs (another user's)",
    ]


def test_what_could_not_be_read_and_that_there_is_no_job_is_said():
    hidden = Missing("this user may not read a process of the job")
    cards = Missing("Permission denied")
    jobs = (JobSummary(48213, "grace", hidden, "pretrain.py", "--big", hidden, hidden, cards, 11_520.0),)
    assert write_jobs(JobList("", jobs, 3), as_root="sudo tpmon ps") == [
        "  PID  USER   STATE  RANKS  WORKERS  GPUS  UPTIME  SCRIPT",
        "48213  grace  ?          ?        ?     ?   3h12m  pretrain.py --big",
        "not read state, ranks, workers (this user may not read a process of the job); GPUs (Permission",
        "         denied)",
        "3 Python processes of other users could not be read (sudo tpmon ps shows them)",
    ]
    assert write_jobs(JobList("", (), 1)) == [
        "no training job on this machine that this user may read",
        "1 Python process of other users could not be read",
    ]
    assert write_jobs(JobList("", (), 0, 2, ("no answer within 1 s",))) == [
        "no training job on this machine that this user may read",
        "2 Python processes could not be read and may be jobs too: no answer within 1 s (tpmon ps tries",
        "again)",
    ]
    left = LeftOver((70, 71), "usr", "fit.py --lr 1", True, 720.0, 3 << 30, (0, 1))
    assert write_jobs(JobList("", (), 0, left_over=(left,)))[2:] == [
        "left over: 2 loader workers of fit.py --lr 1 (usr), 12m00s old: the rank has ended. They hold 3.0G",
        "of memory and cards 0, 1. Try: kill 70 71; sleep 5; kill -9 70 71 # -9 for those that stay",
    ]
    what, hint = write_jobs(JobList("", (), 0))
    assert (what[:31], hint[:15]) == ("no training job on this machine", "Try: tpmon demo")


WIDE = JobSummary(
    1234568,
    "山田太郎",
    JobState.RUNNING,
    "学習.py",
    "--設定 実験/大規模言語モデル/事前学習/第一回.yaml --データ /共有/データ",
    1,
    4,
    Missing("許可がありません " * 9),
    720.0,
)
NARROW = replace(WIDE, pid=1234567, user="alice", script="train_llm.py", arguments="--config " + "c" * 90)


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_the_list_fits_the_terminal_in_cells(width):
    lines = write_jobs(JobList("", (WIDE, NARROW), 3, 2), width)
    assert max(cell_len(line) for line in lines) <= width
    head, *rows = lines[:3]
    assert head.startswith("    PID ")
    script = head.index("SCRIPT")
    assert script + 20 <= width
    for row, begin in zip(sorted(rows), ("train_llm.py", "学習.py"), strict=True):
        assert begin in row
        assert cell_len(row[: row.index(begin)]) == script
        assert row.endswith("…")
    assert ("GPUS" in head) == (width >= 80)
    for words in (write_jobs(JobList("", (), 0), width), write_jobs(JobList("", (), 1), width)):
        assert max(cell_len(line) for line in words) <= width


@pytest.mark.parametrize("text", ["two words", "a " + "long" * 30 + " word", "one two " * 20, "x" * 100])
@pytest.mark.parametrize("width", [7, 40, 100])
def test_text_of_one_cell_a_character_is_wrapped_as_textwrap_does(text, width):
    other = text.replace("o", "ó")
    assert wrap_all(other, width) == [line.replace("o", "ó") for line in wrap_all(text.rstrip(), width)]
