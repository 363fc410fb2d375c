"""Requests and captures on the bus: what is whole counts, anything else is nothing."""

import os
import random
from types import SimpleNamespace

import pytest

from tpmon.hook.bus import wire, wire_capture
from tpmon.hook.bus.wire_capture import Request
from tpmon.hook.capture.bounds import is_sane
from tpmon.hook.capture.capture import Capture
from tpmon.hook.capture.trace_file import CaptureFile
from tpmon.hook.counters import Counts


def page(size: int = wire.MAILBOX_BYTES) -> memoryview:
    return memoryview(bytearray(size))


def request(folder: str = "/tmp/x", name: str = "cap", **words: int) -> Request:
    meant = {"number": 7, "kind": wire_capture.KIND_CAPTURE, "steps": 3, "longest_ns": 1_000_000_000, **words}
    return Request(**meant, folder=folder, name=name)


def test_a_request_is_read_as_it_was_written():
    box = page()
    wire_capture.write_request(box, request("/tmp/a b/\N{SNOWMAN}", "host-12"))
    read = wire_capture.parse_request(box)
    assert (read.number, read.steps, read.folder, read.name) == (7, 3, "/tmp/a b/\N{SNOWMAN}", "host-12")


def test_a_text_ends_at_its_first_zero():
    box = page()
    wire_capture.write_request(box, request("/tmp/a\0b", "host\0-12"))
    read = wire_capture.parse_request(box)
    assert (read.folder, read.name) == ("/tmp/a", "host")


@pytest.mark.parametrize("at", [64, 72, 104, 64 + 14 * 8, 64 + 15 * 8, 1024, 1030, 2048])
def test_one_changed_byte_makes_a_request_none(at):
    box = page()
    wire_capture.write_request(box, request())
    box[at] ^= 0x40
    assert wire_capture.parse_request(box) is None


def test_random_bytes_are_no_request():
    source = random.Random(5)
    box = page()
    for _ in range(300):
        box[64:4096] = source.randbytes(4096 - 64)
        assert wire_capture.parse_request(box) is None


def test_a_request_of_another_layout_is_none():
    box = page()
    wire_capture.write_request(box, request())
    box[64 + 2 * 8] = wire_capture.REQUEST_LAYOUT + 1
    assert wire_capture.parse_request(box) is None


def test_what_does_not_fit_is_not_written():
    box = page()
    with pytest.raises(ValueError, match="too long"):
        wire_capture.write_request(box, request(folder="/" + "x" * 1024))
    assert bytes(box) == bytes(4096)


def test_a_capture_is_read_as_it_was_written_and_not_while_it_is():
    telemetry = page(wire.TELEMETRY_BYTES)
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
    box = page()
    counts.pages = SimpleNamespace(
        mailbox=box, page=page(wire.TELEMETRY_BYTES), rank=0, answers=[0, 0], is_left=lambda _: False
    )
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
