"""The layout of the bus: what is packed is parsed, and what is torn, foreign or garbage is not believed."""

import contextlib
import itertools
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hooks import find_page, open_page
from tpmon.hook.bus import wire, wire_capture, wire_settings

HAMMER = """
import sys
from tpmon.hook.bus import wire, wire_settings
from tpmon.hook.bus.pages import Pages

pages = Pages("0", "", (-1, -1, -1))
print("ready", flush=True)
number = 0
while True:
    words = [number * 7 + word for word in range(wire.RECORD_WORDS)]
    words[0] = words[-1] = number
    wire.RECORD.pack_into(pages.page, wire.record_offset(number), *words)
    number += 1
    pages.live[wire.LIVE_RECORDS] = number
"""


def empty_page() -> memoryview:
    return memoryview(bytearray(wire.TELEMETRY_BYTES))


def written_page(records: int) -> memoryview:
    page = empty_page()
    page[:108] = wire.pack_header(wire.Header(7))
    for number in range(max(records - wire.RING_RECORDS, 0), records):
        wire.RECORD.pack_into(page, wire.record_offset(number), number, *range(22), number)
    page[wire.LIVE_OFFSET : wire.LIVE_OFFSET + 8] = records.to_bytes(8, "little")
    return page


def test_a_header_comes_back_as_it_was():
    page = empty_page()
    words = [70_001, 1, 123_456_789_012, 5, 3, 8, 2, "0.1.0", "2.13.0+cpu", "3.11.7"]
    packed = wire.pack_header(wire.Header(*words))
    page[: len(packed)] = packed
    header = wire.parse_header(page)
    assert (header.start_ticks, header.world_size, header.torch_version) == (123_456_789_012, 8, "2.13.0+cpu")
    assert [*header] == words


def test_texts_that_are_too_long_are_cut_and_never_spill():
    page = empty_page()
    packed = wire.pack_header(wire.Header(hook_version="v" * 99, torch_version="é" * 99))
    page[: len(packed)] = packed
    header = wire.parse_header(page)
    assert header.hook_version == "v" * 16
    assert header.torch_version == "é" * 12
    assert header.python_version == ""


def test_the_parts_of_the_page_do_not_overlap():
    ends = [
        (0, len(wire.pack_header(wire.Header()))),
        (wire.STATUS_OFFSET, len(wire.pack_status(0, 0, ""))),
        (wire.LIVE_OFFSET, wire.LIVE_WORDS * 8),
        (wire.ANSWER_OFFSET, 16),
        (wire_capture.CAPTURE_OFFSET, 128 + wire_capture.REASON_BYTES),
        (wire.MARKS_OFFSET, wire.MARKS * wire.MARK_BYTES),
        (wire_settings.SETTINGS_OFFSET, wire_settings.SETTINGS_WORDS * 8),
        (wire_settings.DEVICE_OFFSET, wire_settings.DEVICE_WORDS * 8),
        (wire_capture.TOLD_OFFSET, 8 + wire_capture.TOLD_BYTES),
        (wire.RING_OFFSET, wire.RING_RECORDS * wire.RECORD_BYTES),
    ]
    for (offset, size), (following, _) in itertools.pairwise(ends):
        assert offset + size <= following
    assert sum(ends[-1]) == wire.TELEMETRY_BYTES
    assert wire_capture.NAME_OFFSET + wire_capture.NAME_BYTES <= wire.MAILBOX_BYTES


def test_another_layout_is_named_and_not_read():
    page = written_page(3)
    page[8] = wire.LAYOUT + 1
    with pytest.raises(wire.OtherLayoutError, match=f"bus layout {wire.LAYOUT + 1}"):
        wire.parse_header(page)
    box = memoryview(bytearray(wire.MAILBOX_BYTES))
    box[:16] = wire.pack_mailbox(5)
    assert wire.parse_mailbox(box) == 5
    box[8] = wire.LAYOUT + 1
    with pytest.raises(wire.OtherLayoutError):
        wire.parse_mailbox(box)


@pytest.mark.parametrize("size", [0, 1, 107, 108, 4096, wire.TELEMETRY_BYTES - 1])
def test_a_page_that_is_too_short_is_none(size):
    with pytest.raises(wire.NotABusError):
        wire.parse_header(written_page(1)[:size])
    with pytest.raises(wire.NotABusError):
        wire.parse_mailbox(memoryview(bytes(min(size, 4095))))


def test_a_page_whose_magic_is_not_written_yet_is_none():
    page = written_page(1)
    page[:8] = bytes(8)
    with pytest.raises(wire.NotABusError):
        wire.parse_header(page)


@given(st.binary(min_size=1, max_size=600), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_garbage_is_refused_or_read_but_never_an_accident(garbage, count, known):
    page = written_page(5)
    page[8 : 8 + len(garbage)] = garbage
    page[wire.LIVE_OFFSET : wire.LIVE_OFFSET + 8] = count.to_bytes(8, "little")
    page[wire.RING_OFFSET : wire.RING_OFFSET + len(garbage)] = garbage
    for parse in (wire.parse_header, wire.parse_mailbox):
        with contextlib.suppress(wire.NotABusError, wire.OtherLayoutError):
            parse(page)
    wire.parse_status(page)
    assert len(wire.parse_marks(page)) <= wire.MARKS
    assert len(wire.parse_records(page, known, 100)[1]) <= 100


@pytest.mark.parametrize(
    ("written", "known", "most", "numbers"),
    [
        (0, 0, 9, range(0)),
        (3, 0, 9, range(3)),
        (3, 2, 9, range(1, 3)),
        (30, 0, 9, range(21, 30)),
        (30, 30, 9, range(29, 30)),
        (5000, 0, 5000, range(5000 - wire.RING_RECORDS + 1, 5000)),
        (5, 90, 9, range(5, 5)),
    ],
)
def test_new_records_come_with_the_one_before_them(written, known, most, numbers):
    count, records = wire.parse_records(written_page(written), known, most)
    assert count == written
    assert [record[wire.REC_NUMBER] for record in records] == list(numbers)


@pytest.mark.parametrize("word", [wire.REC_NUMBER, wire.REC_NUMBER_AGAIN])
def test_a_record_that_is_half_written_is_dropped(word):
    page = written_page(5)
    at = wire.record_offset(3) + word * 8
    page[at : at + 8] = (3 + wire.RING_RECORDS).to_bytes(8, "little")
    assert [record[0] for record in wire.parse_records(page, 0, 9)[1]] == [0, 1, 2, 4]


def test_marks_and_status_come_back_as_they_were():
    page = empty_page()
    page[wire.STATUS_OFFSET : wire.STATUS_OFFSET + 256] = wire.pack_status(2, 15, "ValueError: ü" + "x" * 500)
    state, patches, error = wire.parse_status(page)
    assert (state, patches, len(error.encode())) == (2, 15, wire.ERROR_BYTES)
    page[wire.MARKS_OFFSET : wire.MARKS_OFFSET + wire.MARK_BYTES] = wire.pack_mark("checkpoint")
    wire.write_mark(page, wire.MARKS_OFFSET, 3, 10, 6)
    page[wire.LIVE_OFFSET + 8 * wire.LIVE_MARKS] = 1
    assert wire.parse_marks(page) == [("checkpoint", 3, 10, 6)]


@pytest.mark.parametrize(
    ("write", "parse", "words"),
    [
        (wire_settings.write_settings, wire_settings.parse_settings, wire_settings.SETTINGS_WORDS),
        (wire_settings.write_device, wire_settings.parse_device, wire_settings.DEVICE_WORDS),
    ],
    ids=["settings", "device"],
)
def test_a_block_that_is_absent_or_half_written_is_none(write, parse, words):
    page = empty_page()
    assert parse(page) == ()
    write(page, [3, *range(words - 2), 3])
    assert parse(page) == (3, *range(words - 2), 3)
    write(page, [4, *range(words - 2), 3])
    assert parse(page) == ()


def test_no_record_is_torn_while_another_process_writes_as_fast_as_it_can():
    command = [sys.executable, "-c", HAMMER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout.readline() == "ready\n"
            with open_page(find_page(writer.pid)) as page:
                known = seen = rounds = 0
                end = time.monotonic() + 60
                while (seen < 20_000 or rounds < 50) and time.monotonic() < end:
                    known, records = wire.parse_records(page, known, wire.RING_RECORDS)
                    rounds += 1
                    for words in records:
                        number = words[0]
                        assert words == (number, *(number * 7 + word for word in range(1, 23)), number)
                        seen += 1
            assert seen >= 20_000
        finally:
            writer.kill()


def test_the_page_of_a_writer_that_is_stopped_can_be_read():
    import signal

    with subprocess.Popen([sys.executable, "-c", HAMMER], stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout.readline() == "ready\n"
            with open_page(find_page(writer.pid)) as page:
                while wire.parse_live(page)[0] < 3000:
                    time.sleep(0.01)
                os.kill(writer.pid, signal.SIGSTOP)
                os.waitpid(writer.pid, os.WUNTRACED)
                first = wire.parse_records(page, 0, wire.RING_RECORDS)
                assert len(first[1]) >= wire.RING_RECORDS - 2
                assert wire.parse_records(page, 0, wire.RING_RECORDS) == first
        finally:
            os.kill(writer.pid, signal.SIGCONT)
            writer.kill()
