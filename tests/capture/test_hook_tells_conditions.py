"""The hook says the conditions of its run when it is asked at the end of a step, and nothing else happens then."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tpmon.capture import outcome as within
from tpmon.capture.outcome import ask_conditions
from tpmon.hook.bus import wire, wire_capture
from tpmon.hook.capture import conditions
from tpmon.hook.capture.mailbox import Mailbox
from tpmon.hook.counters import Counts
from tpmon.model.known import Missing, is_known

CONDITIONS = {"model": "Net", "inputs": ["float32[4, 8]"], "folder": "/work", "sys_path": ["/a", "/b"]}


class Loop:
    """A loop with a hook's pages, and the bus that tpmon has of it; each look at the answer is a step's end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any] | None = None) -> None:
        self.page = memoryview(bytearray(wire.TELEMETRY_BYTES))
        self.box = memoryview(bytearray(wire.MAILBOX_BYTES))
        self.alive, self.ends_steps, self.asked = True, True, 0
        mailbox = Mailbox()
        self.steps = steps = Counts(lambda: None, mailbox)
        steps.page = self.page
        steps.pages = SimpleNamespace(
            mailbox=self.box, page=self.page, answers=self.page[wire.ANSWER_OFFSET :][:16].cast("Q"), rank=0,
            is_left=self.is_left,
        )  # fmt: skip
        steps.requests = self.box[wire.REQUEST_OFFSET :].cast("Q")
        mailbox.steps = steps
        self.mailbox = mailbox
        monkeypatch.setattr(conditions, "read_conditions", lambda _: dict(told or CONDITIONS))
        monkeypatch.setattr(within, "_EVERY_S", 0)

    def is_left(self, _request: wire_capture.Request) -> bool:
        return False

    def read_asked(self) -> wire_capture.Request | None:
        return wire_capture.parse_request(self.box)

    def read_answer(self) -> tuple[int, int]:
        if self.ends_steps and self.steps.requests[0] != self.steps.answered:
            self.steps.answer()
        return self.steps.pages.answers[0], self.steps.pages.answers[1]

    def post(self, request: wire_capture.Request) -> None:
        self.asked += 1
        wire_capture.write_request(self.box, request)

    def is_alive(self) -> bool:
        return self.alive


def test_the_conditions_come_over_the_bus_and_the_pause_is_in_no_phase(monkeypatch):
    loop = Loop(monkeypatch)
    loop.steps.last_ns = 5
    told = ask_conditions(loop)
    assert (told["model"], told["inputs"], told["folder"]) == ("Net", ["float32[4, 8]"], "/work")
    assert "missing" in told["sys_path"]
    assert loop.steps.last_ns > 5
    assert loop.mailbox.capture is None  # nothing of what records was loaded
    assert is_known(ask_conditions(loop))


def test_what_is_too_long_is_left_out_with_a_reason(monkeypatch):
    many = [f"float32[{at}, 1024, 1024, 1024]" for at in range(60)]
    told = ask_conditions(Loop(monkeypatch, {**CONDITIONS, "inputs": many}))
    assert told["model"] == "Net"
    assert told["inputs"] == {"missing": "there was no room for it on the bus"}
    huge = ask_conditions(Loop(monkeypatch, {**CONDITIONS, "model": "N" * wire_capture.TOLD_BYTES}))
    assert huge == Missing("the hook wrote more than fits")


def test_who_waits_for_another_request_is_not_disturbed(monkeypatch):
    loop = Loop(monkeypatch)
    request = wire_capture.Request(9, wire_capture.KIND_CAPTURE, expires_ns=1 << 62, folder="/tmp", name="n")
    wire_capture.write_request(loop.box, request)
    loop.ends_steps = False
    assert "another capture" in ask_conditions(loop).reason
    assert loop.asked == 0


def test_a_capture_under_way_goes_on(monkeypatch):
    loop = Loop(monkeypatch)
    heard = []
    loop.mailbox.capture = SimpleNamespace(
        under_way="a request",
        at_boundary=lambda: (heard.append(1), loop.steps.reply(loop.steps.requests[0], wire.ANSWER_BUSY)),
    )
    assert "another capture" in ask_conditions(loop).reason
    assert heard == [1]


@pytest.mark.parametrize(("alive", "why"), [(True, "no step ended"), (False, "the process ended")])
def test_a_loop_that_ends_no_step_is_not_waited_for_and_blocks_nobody(monkeypatch, alive, why):
    loop = Loop(monkeypatch)
    loop.ends_steps, loop.alive = False, alive
    assert why in ask_conditions(loop, limit_s=0.01).reason
    assert loop.asked == 1
    loop.ends_steps, loop.alive = True, True
    assert is_known(ask_conditions(loop))


def test_an_older_hook_does_not_know_the_question(monkeypatch):
    loop = Loop(monkeypatch)
    monkeypatch.setattr(Mailbox, "_describe", lambda _: False)
    assert "older tpmon" in ask_conditions(loop).reason


@pytest.mark.parametrize("at", [64, 72, 104, 64 + 14 * 8, 64 + 15 * 8, 1024])
def test_bytes_that_are_no_whole_request_get_nothing_told(monkeypatch, at):
    loop = Loop(monkeypatch)
    wire_capture.write_request(loop.box, wire_capture.Request(9, wire_capture.KIND_DESCRIBE))
    loop.box[at] ^= 0x40
    loop.steps.answer()
    assert loop.steps.pages.answers[1] == wire.ANSWER_UNKNOWN
    assert not any(loop.page[wire_capture.TOLD_OFFSET :][: wire_capture.TOLD_BYTES])


def test_what_is_told_is_read_whole_or_not_and_by_who_asked():
    page = memoryview(bytearray(wire.TELEMETRY_BYTES))
    assert wire_capture.parse_told(page, 7) == b""
    wire_capture.write_told(page, 7, json.dumps({"a": 1}).encode())
    assert json.loads(wire_capture.parse_told(page, 7)) == {"a": 1}
    assert wire_capture.parse_told(page, 8) == b""
    wire_capture.write_told(page, 8, b"{}")
    assert wire_capture.parse_told(page, 8) == b"{}"


@pytest.mark.parametrize(
    ("getter", "precision"),
    [
        ({"_get_fp32_precision_getter": lambda *_: "none"}, "highest"),
        ({"_get_fp32_precision_getter": lambda *_: "tf32"}, {"missing": "TF32 is on: high or medium"}),
        ({}, "high"),
    ],
    ids=["off", "on", "an older torch"],
)
def test_a_precision_that_torch_refuses_to_tell_takes_no_other_setting_along(monkeypatch, getter, precision):
    def older():
        if getter:
            raise RuntimeError("PyTorch is checking whether allow_tf32 and fp32_precision are mixed")
        return "high"

    cudnn = SimpleNamespace(benchmark=True, deterministic=False)
    torch = SimpleNamespace(
        __version__="2",
        _C=SimpleNamespace(**getter),
        get_float32_matmul_precision=older,
        get_num_threads=lambda: 4,
        get_num_interop_threads=lambda: 2,
        backends=SimpleNamespace(cudnn=cudnn),
        are_deterministic_algorithms_enabled=lambda: False,
        is_anomaly_enabled=lambda: True,
    )
    monkeypatch.setitem(conditions.sys.modules, "torch", torch)
    steps = SimpleNamespace(watcher=None, rule=1, batch_size=1, page=b"", ddp=[], fsdp=[])
    told = conditions.read_conditions(steps)
    assert told["matmul_precision"] == precision
    assert (told["threads"], told["cudnn_benchmark"], told["anomaly_mode"]) == (4, True, True)
    assert "settings" not in told
