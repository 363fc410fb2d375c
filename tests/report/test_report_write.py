"""How text is written to a reader that is slow, gone or full."""

import fcntl
import os
import struct
import termios

import pytest

from tpmon.errors import UsageError
from tpmon.report.blocks import write_blocks
from tpmon.report.text import Output, ReaderGone, complain
from tpmon.view.blocks import lay_sheet
from tpmon.view.layout import TableFigure


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


def test_output_says_quietly_that_the_reader_has_gone():
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


def test_output_waits_for_a_full_pipe_that_does_not_block():
    read, write = os.pipe()
    os.set_blocking(write, False)
    text = "x" * 300_000
    received = bytearray()

    import threading

    def take():
        while len(received) < len(text) + 1:
            received.extend(os.read(read, 65536))

    reader = threading.Thread(target=take)
    reader.start()
    Output(write, ascii_only=False).write_lines(text)
    reader.join(10)
    assert received.decode() == text + "\n"
    os.close(read)
    os.close(write)


def test_no_escape_sequence_of_others_reaches_standard_error(capfd):
    complain("tpmon: a\x1b]0;title\x07b is no trace\nTry: x\x9b31m\u202e")
    assert capfd.readouterr().err == "tpmon: a?]0;title?b is no trace\nTry: x?31m?\n"


def test_output_names_a_disk_that_is_full():
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(UsageError, match="No space left"):
        Output(descriptor, ascii_only=False).write_lines("x")
    os.close(descriptor)


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
