"""The bus: what is packed is parsed, what is torn or foreign is not believed, and its pages are private and leave nothing."""

import contextlib
import errno
import itertools
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.children import started
from tests.hooks import find_page, list_pages, open_page
from tpmon.hook.bus import pages as pages_module
from tpmon.hook.bus import wire, wire_capture, wire_settings
from tpmon.hook.bus.pages import Pages
from tpmon.hook.bus.wire_capture import Request
from tpmon.hook.capture.bounds import is_sane
from tpmon.hook.capture.capture import Capture
from tpmon.hook.capture.trace_file import CaptureFile
from tpmon.hook.counters import Counts

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


def blank(size: int = wire.TELEMETRY_BYTES) -> memoryview:
    return memoryview(bytearray(size))


def written_page(records: int) -> memoryview:
    page = blank()
    page[:132] = wire.pack_header(wire.Header(7))
    for number in range(max(records - wire.RING_RECORDS, 0), records):
        wire.RECORD.pack_into(page, wire.record_offset(number), number, *range(22), number)
    page[wire.LIVE_OFFSET : wire.LIVE_OFFSET + 8] = records.to_bytes(8, "little")
    return page


def test_a_header_comes_back_as_it_was_and_texts_that_are_too_long_are_cut_and_never_spill():
    page = blank()
    words = [70_001, 1, 123_456_789_012, 5, 3, 8, 2, "0.1.0", "2.13.0+cpu", "3.11.7", 9, "0.2.0"]
    packed = wire.pack_header(wire.Header(*words))
    page[: len(packed)] = packed
    header = wire.parse_header(page)
    assert (header.start_ticks, header.world_size, header.torch_version) == (123_456_789_012, 8, "2.13.0+cpu")
    assert [*header] == words
    packed = wire.pack_header(wire.Header(hook_version="v" * 99, torch_version="é" * 99))
    page[: len(packed)] = packed
    header = wire.parse_header(page)
    assert (header.hook_version, header.torch_version, header.python_version) == ("v" * 16, "é" * 12, "")


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


def test_another_layout_is_named_and_not_read_and_a_page_whose_magic_is_not_written_yet_is_none():
    page = written_page(3)
    page[8] = wire.LAYOUT + 1
    with pytest.raises(wire.OtherLayoutError, match=f"bus layout {wire.LAYOUT + 1}"):
        wire.parse_header(page)
    box = blank(wire.MAILBOX_BYTES)
    box[:16] = wire.pack_mailbox(5)
    assert wire.parse_mailbox(box) == 5
    box[8] = wire.LAYOUT + 1
    with pytest.raises(wire.OtherLayoutError):
        wire.parse_mailbox(box)
    page[:8] = bytes(8)
    with pytest.raises(wire.NotABusError):
        wire.parse_header(page)


@pytest.mark.parametrize("size", [0, 1, 131, 132, 4096, wire.TELEMETRY_BYTES - 1])
def test_a_page_that_is_too_short_is_none(size):
    with pytest.raises(wire.NotABusError):
        wire.parse_header(written_page(1)[:size])
    with pytest.raises(wire.NotABusError):
        wire.parse_mailbox(memoryview(bytes(min(size, 4095))))


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
    page = blank()
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
    page = blank()
    assert parse(page) == ()
    write(page, [3, *range(words - 2), 3])
    assert parse(page) == (3, *range(words - 2), 3)
    write(page, [4, *range(words - 2), 3])
    assert parse(page) == ()


def test_no_record_is_torn_while_another_process_writes_as_fast_as_it_can_or_is_stopped():
    command = [sys.executable, "-c", HAMMER]
    with started(command, stdout=subprocess.PIPE, text=True) as writer:
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
            os.kill(writer.pid, signal.SIGSTOP)
            os.waitpid(writer.pid, os.WUNTRACED)
            first = wire.parse_records(page, 0, wire.RING_RECORDS)
            assert len(first[1]) >= wire.RING_RECORDS - 2
            assert wire.parse_records(page, 0, wire.RING_RECORDS) == first


def request(folder: str = "/tmp/x", name: str = "cap", **words: int) -> Request:
    meant = {"number": 7, "kind": wire_capture.KIND_CAPTURE, "steps": 3, "longest_ns": 1_000_000_000, **words}
    return Request(**meant, folder=folder, name=name)


def test_a_request_is_read_as_it_was_written_and_a_text_ends_at_its_first_zero():
    box = blank(wire.MAILBOX_BYTES)
    wire_capture.write_request(box, request("/tmp/a b/\N{SNOWMAN}", "host-12"))
    read = wire_capture.parse_request(box)
    assert (read.number, read.steps, read.folder, read.name) == (7, 3, "/tmp/a b/\N{SNOWMAN}", "host-12")
    wire_capture.write_request(box, request("/tmp/a\0b", "host\0-12"))
    read = wire_capture.parse_request(box)
    assert (read.folder, read.name) == ("/tmp/a", "host")


@pytest.mark.parametrize("at", [64, 72, 104, 64 + 14 * 8, 64 + 15 * 8, 1024, 1030, 2048])
def test_one_changed_byte_makes_a_request_none(at):
    box = blank(wire.MAILBOX_BYTES)
    wire_capture.write_request(box, request())
    box[at] ^= 0x40
    assert wire_capture.parse_request(box) is None


def test_random_bytes_and_a_request_of_another_layout_are_none():
    source = random.Random(5)
    box = blank(wire.MAILBOX_BYTES)
    for _ in range(300):
        box[64:4096] = source.randbytes(4096 - 64)
        assert wire_capture.parse_request(box) is None
    wire_capture.write_request(box, request())
    box[64 + 2 * 8] = wire_capture.REQUEST_LAYOUT + 1
    assert wire_capture.parse_request(box) is None


def test_what_does_not_fit_is_not_written():
    box = blank(wire.MAILBOX_BYTES)
    with pytest.raises(ValueError, match="too long"):
        wire_capture.write_request(box, request(folder="/" + "x" * 1024))
    assert bytes(box) == bytes(4096)


def test_a_capture_is_read_as_it_was_written_and_not_while_it_is():
    telemetry = blank()
    written = wire_capture.Progress(request=7, state=wire_capture.STATE_ARMED, rank=2)
    for reason in ("", "first", "x" * 400):
        written.reason = reason
        wire_capture.write_progress(telemetry, written)
        told = wire_capture.parse_progress(telemetry)
        assert [*told][:-1] == [*written][:-1]
        assert (told.state, told.rank) == (wire_capture.STATE_ARMED, 2)
        assert told.reason == reason[: wire_capture.REASON_BYTES]
    telemetry[wire_capture.CAPTURE_OFFSET] |= 1
    assert wire_capture.parse_progress(telemetry) is None


def test_only_what_can_be_meant_is_taken():
    assert is_sane(request())
    timed = request(steps=0, options=wire_capture.OPTION_TIMED)
    assert is_sane(timed)
    assert timed.is_timed
    for wrong in (
        request(steps=0),
        request(steps=1 << 40),
        request(longest_ns=0),
        request(longest_ns=1 << 60),
        request(kind=99),
        request(clock=1),
        request(options=1 << 20),
        request(entries=1 << 40),
        request(folder="relative"),
        request(folder=""),
        request(name="../x"),
        request(name=".hidden"),
        request(name=""),
    ):
        assert not is_sane(wrong)


@pytest.mark.parametrize("part", ["a\nb", "a\\b", 'a"b', "a://b", "a\x1bb", "a\udcffb"])
def test_a_folder_that_torch_would_write_beside_is_refused(tmp_path, part):
    def refuse(folder):
        probe = request(folder, kind=wire_capture.KIND_PROBE, most_events=1 << 20, most_bytes=1 << 20)
        return CaptureFile(probe, {}).refuse()

    assert "torch cannot write to a path with" in refuse(f"{tmp_path}/{part}")
    assert os.listdir(tmp_path) == []
    assert refuse(f"{tmp_path}/my run's é") == ""


def test_a_file_is_named_after_rank_and_step():
    assert wire_capture.file_name("h-1", 3, 250, ".json") == "h-1-rank3-step250.json"
    assert wire_capture.file_name("h-1", -1, 0, ".json") == "h-1-step0.json"


def test_a_recording_is_ours_until_it_has_stopped():
    """A thread that is about to begin a profiler of its own waits for exactly that."""
    capture = Capture(Counts(lambda: None), lambda: False, lambda: None)
    seen = []
    recorder = SimpleNamespace(stop=lambda: seen.append(capture.guard.ours), drop=lambda: None)
    capture._recorder, capture.guard.ours = recorder, "our profile"
    capture.at_exit()
    assert seen == ["our profile"]
    assert capture.guard.ours is None


@pytest.fixture
def taken(tmp_path, monkeypatch):
    """Return a capture that was asked for while a loop evaluates that never trained; nothing is recorded."""
    counts = Counts(lambda: None)
    box = blank(wire.MAILBOX_BYTES)
    counts.pages = SimpleNamespace(mailbox=box, page=blank(), rank=0, answers=[0, 0], is_left=lambda _: False)
    counts.requests = box[wire.REQUEST_OFFSET :].cast("Q")
    counts.rule, counts.eval_steps = wire.RULE_BATCH, 5
    capture = Capture(counts, lambda: False, lambda: None)
    monkeypatch.setattr(Capture, "_refuse", lambda *_: "")
    monkeypatch.setattr(Capture, "_begin", lambda self, _, position: begun(self, position))
    wire_capture.write_request(box, request(str(tmp_path), expires_ns=1 << 62))
    capture.at_boundary()
    return capture


def begun(capture: Capture, position: int) -> None:
    capture._recorder = SimpleNamespace(mark=lambda _: None, stop=lambda: None, drop=lambda: None, ending="")
    capture._told.first_step = position
    capture._set(wire_capture.STATE_RECORDING)


def told(capture: Capture) -> tuple[int, int]:
    told = wire_capture.parse_progress(capture._steps.pages.page)
    return told.state, told.first_step


def train(capture: Capture, steps: int) -> None:
    capture._steps.rule, capture._steps.steps = wire.RULE_DATA_AFTER_UPDATE, steps
    capture.at_boundary()


def test_a_capture_that_was_asked_for_before_the_first_step_waits_for_the_training(taken):
    assert told(taken) == (wire_capture.STATE_ARMED, 6)
    train(taken, 1)
    assert told(taken) == (wire_capture.STATE_ARMED, 2)
    train(taken, 2)
    assert told(taken) == (wire_capture.STATE_RECORDING, 2)


def test_a_window_of_inference_that_turns_out_to_be_a_validation_is_given_up(taken):
    taken._steps.eval_steps = 6
    taken.at_boundary()
    assert told(taken) == (wire_capture.STATE_RECORDING, 6)
    train(taken, 1)
    assert told(taken)[0] == wire_capture.STATE_CANCELLED


@pytest.fixture
def pages():
    pages = Pages("0.1", "2.0", (1, 4, 1))
    yield pages
    pages.close()


def test_the_header_says_whose_page_it_is(pages):
    with open_page(find_page(os.getpid())) as page:
        header = wire.parse_header(page)
        assert wire.parse_status(page)[0] == wire.STATE_RUNNING
    with open("/proc/self/stat") as file:
        start = int(file.read().rpartition(")")[2].split()[19])
    assert (header.pid, header.start_ticks) == (os.getpid(), start)
    assert (header.rank, header.world_size, header.local_rank) == (1, 4, 1)
    with open_page(find_page(os.getpid(), wire.MAILBOX_NAME)) as page:
        assert wire.parse_mailbox(page) == os.getpid()


@pytest.mark.parametrize("name", [wire.TELEMETRY_NAME, wire.MAILBOX_NAME])
@pytest.mark.parametrize("size", [0, 100, 2**20])
def test_a_reader_cannot_change_the_size_of_a_page(pages, name, size):
    with open(find_page(os.getpid(), name), "r+b", buffering=0) as file, pytest.raises(PermissionError):
        file.truncate(size)


def test_nobody_else_can_write_the_telemetry_page_and_the_mailbox_can_be_written_from_outside(pages):
    with open(find_page(os.getpid()), "r+b", buffering=0) as file:
        with pytest.raises(PermissionError):
            mmap.mmap(file.fileno(), 4096)
        with pytest.raises(PermissionError):
            file.write(b"x")
    pages.live[1] = 77
    with open_page(find_page(os.getpid())) as page:
        assert wire.parse_live(page)[1] == 77
    with open(find_page(os.getpid(), wire.MAILBOX_NAME), "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), (9).to_bytes(8, "little"), wire.REQUEST_OFFSET)
    assert pages.requests[0] == 9


def test_a_child_that_drops_its_copies_leaves_its_parents_pages_alone(pages):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            pages.close()
            code = len(list_pages(os.getpid())) + len(list_pages(os.getpid(), wire.MAILBOX_NAME))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pages.live[0] = 5
    with open_page(find_page(os.getpid())) as page:
        assert wire.parse_live(page)[0] == 5


def test_nothing_is_left_after_closing_and_no_program_inherits_the_pages():
    before = len(os.listdir("/proc/self/fd"))
    pages = Pages("", "", (-1, -1, -1))
    held = len(os.listdir("/proc/self/fd")) - before
    assert held <= 4
    assert not any(os.get_inheritable(int(path.rsplit("/", 1)[1])) for path in list_pages(os.getpid()))
    pages.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert list_pages(os.getpid()) == []


def test_descriptors_that_somebody_closed_and_reused_are_not_closed_again():
    pages = Pages("", "", (-1, -1, -1))
    ours = sorted(int(path.rsplit("/", 1)[1]) for path in list_pages(os.getpid()))
    other = os.open("/dev/null", os.O_RDONLY)
    os.dup2(other, ours[-1])
    pages.close()
    assert os.fstat(ours[-1]).st_rdev == os.fstat(other).st_rdev
    os.close(other)
    os.close(ours[-1])


def test_where_python_has_no_memfd_create_the_kernel_is_called(monkeypatch):
    if os.uname().machine not in pages_module._MEMFD_CREATE:
        pytest.skip("another machine")
    monkeypatch.delattr(os, "memfd_create")
    pages = Pages("", "", (-1, -1, -1))
    assert list_pages(os.getpid())
    pages.close()
    monkeypatch.setattr(pages_module, "_MEMFD_CREATE", {})
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
        Pages("", "", (-1, -1, -1))
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_old_kernel_seals_the_sizes_at_least(monkeypatch):
    monkeypatch.setattr(pages_module, "_SEAL_FUTURE_WRITE", 0x1000)
    pages = Pages("", "", (-1, -1, -1))
    with open_page(find_page(os.getpid())) as page:
        assert wire.parse_header(page).flags == wire.FLAG_CAPTURES
    with open(find_page(os.getpid()), "r+b", buffering=0) as file, pytest.raises(PermissionError):
        file.truncate(0)
    pages.close()


def test_no_file_of_the_program_is_asked_for_anything_when_a_child_begins(monkeypatch, tmp_path):
    """One of them may lie on a server that does not answer."""
    asked = []
    monkeypatch.setattr(pages_module.os, "fstat", lambda fd: asked.append(fd) or os.stat(f"/proc/self/fd/{fd}"))
    with open(tmp_path / "shard", "w") as file:
        pages_module._are_twice([(0, 0)])
        assert file.fileno() not in asked


class AlarmError(Exception):
    pass


@pytest.mark.parametrize("at", [1, 2])
def test_an_alarm_right_after_a_close_is_what_is_raised(monkeypatch, at):
    """At the first or second descriptor that was moved; EBADF in its place would turn the hook off for good."""
    before = set(os.listdir("/proc/self/fd"))
    closed: list[int] = []
    real = os.close

    def close(descriptor):
        real(descriptor)
        closed.append(descriptor)
        if len(closed) == at:
            raise AlarmError

    with monkeypatch.context() as patched:
        patched.setattr(pages_module.os, "close", close)
        with pytest.raises(AlarmError):
            Pages("1", "2.13", (0, 1, 0))
    assert set(os.listdir("/proc/self/fd")) == before
