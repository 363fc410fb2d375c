"""How a capture ended: whole or in part and why, how long steps after it are awaited, and what its hook tells of its run."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.capture.test_capture_plan import ASKED, record
from tests.captures import parse_conditions
from tpmon.capture import outcome
from tpmon.capture.outcome import (
    IS_BUSY,
    EndedWindow,
    ask_conditions,
    await_steps_after,
    find_use,
    judge_end,
    note_kernels,
)
from tpmon.hook.bus import wire, wire_capture
from tpmon.hook.capture import conditions
from tpmon.hook.capture.mailbox import Mailbox
from tpmon.hook.counters import Counts
from tpmon.model.known import Known, Missing, is_known, map_known
from tpmon.model.results.capture import CapturedFile, CaptureKind, CaptureState, RankCapture, StepTime

RANK = RankCapture(1, 0, CaptureState.VERIFIED, "", 100, 5, 20.0, 10.0, 12.0, 10.0)
FILE = CapturedFile("/a", "/a", 0, 100, 5, 900, 0, 1000, CaptureKind.TRACE)


def test_a_set_is_partial_where_a_rank_or_a_step_is_not_there():
    missed = replace(RANK, rank=1, state=CaptureState.MISSED, first_step=Missing("x"))
    assert judge_end(ASKED, [RANK], [FILE]) is CaptureState.DONE
    assert judge_end(ASKED, [RANK, missed], [FILE]) is CaptureState.PARTIAL
    assert judge_end(ASKED, [RANK], [replace(FILE, steps=4)]) is CaptureState.PARTIAL
    assert judge_end(ASKED, [RANK, replace(RANK, first_step=101)], [FILE, FILE]) is CaptureState.PARTIAL
    assert judge_end(ASKED, [missed], []) is CaptureState.MISSED
    assert judge_end(ASKED, [RANK], []) is CaptureState.FAILED


def test_a_trace_without_a_kernel_is_partial_where_a_gpu_worked_and_says_why():
    assert judge_end(ASKED, [RANK], [FILE], {RANK.pid}) is CaptureState.PARTIAL
    assert judge_end(replace(ASKED, timed=True), [RANK], [FILE], {RANK.pid}) is CaptureState.PARTIAL
    assert judge_end(ASKED, [RANK], [replace(FILE, kernels=3)], {RANK.pid}) is CaptureState.DONE
    assert judge_end(ASKED, [RANK], [replace(FILE, kernels=Missing("x"))], {RANK.pid}) is CaptureState.DONE
    assert judge_end(ASKED, [RANK], [FILE], {RANK.pid + 1}) is CaptureState.DONE
    both = [RANK, replace(RANK, pid=2, rank=1)]
    assert judge_end(ASKED, both, [replace(FILE, kernels=3), FILE], {1, 2}) is CaptureState.PARTIAL
    assert note_kernels(IS_BUSY, Missing("x")) == [
        "no GPU kernel in the trace, although NVML saw a GPU work for it: another tool may hold CUPTI"
    ]
    for gpu, words in (("H100", "nothing says that a GPU worked meanwhile"), ("", ""), (None, "")):
        told = parse_conditions(f'{{"tpmon": {json.dumps({"gpu": gpu})}}}'.encode(), b"")
        assert words in "".join(note_kernels("", told))
        assert bool(note_kernels("", told)) is bool(words)


@pytest.mark.parametrize(
    ("told", "steps", "used"),
    [
        ({"device": "cuda:0", "mode": "training"}, 5, True),
        ({"device": "cpu", "mode": "training", "gpu": "H100"}, 5, False),
        ({"device": "cuda:0", "mode": "evaluation"}, 5, False),
        ({"device": "cuda:0", "mode": "training"}, 0, False),
        ({"mode": "training", "gpu": "H100"}, 5, False),
    ],
)
def test_a_step_of_training_on_a_gpu_has_kernels_and_cuda_alone_says_nothing(told, steps, used):
    conditions = parse_conditions(json.dumps({"tpmon": told}).encode(), b"")
    assert bool(find_use(replace(RANK, steps=steps), conditions)) is used


BEGAN_S = 1000.0
UNKNOWN = Missing("too few steps to tell")


class Loop:
    """Stand for the bus of a loop that ends a step each so many seconds, by a clock of the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
        self.step_s, self.now_s, self.alive = step_s, BEGAN_S, True
        clock = SimpleNamespace(
            sleep=self.sleep, monotonic=lambda: self.now_s, monotonic_ns=lambda: int(self.now_s * 1e9)
        )
        monkeypatch.setattr(outcome, "time", clock)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def is_alive(self) -> bool:
        return self.alive

    def read_records(self) -> list[list[int]]:
        last = int((self.now_s - BEGAN_S) / self.step_s)
        return [record(100 + at, 1e3 * (BEGAN_S + 0.001 + at * self.step_s)) for at in range(-3, last + 1)]


def ended(loop: Any, before: Known[float]) -> EndedWindow:
    return EndedWindow(loop, int((BEGAN_S + 0.5) * 1e9), map_known(lambda ms: StepTime(ms, 9), before))


@pytest.mark.parametrize(
    ("step_s", "before", "waited_s", "after"),
    [
        (0.8, 800.0, 2, 800.0),
        (4.0, 4000.0, 8, 4000.0),
        (15.0, 15_000.0, 30, 15_000.0),
        (40.0, 40_000.0, 60, UNKNOWN),
        (4.0, UNKNOWN, 2, UNKNOWN),
        (4.0, 100.0, 2, UNKNOWN),
    ],
    ids=["quick", "slow", "very slow", "too slow", "no pace before", "suddenly slow"],
)
def test_steps_after_are_waited_for_as_long_as_they_took_before(monkeypatch, step_s, before, waited_s, after):
    loop = Loop(monkeypatch, step_s)
    window, said = ended(loop, before), []
    await_steps_after([window], said.append, lambda: False)
    assert loop.now_s - BEGAN_S == pytest.approx(waited_s, abs=0.5)
    told = window.measure_after()
    assert told == (StepTime(pytest.approx(after), told.steps) if is_known(after) else after)
    assert len(said) == (is_known(before) and before >= 800.0)


def test_who_wants_no_more_of_it_and_a_loop_that_ended_wait_for_nothing(monkeypatch):
    loop = Loop(monkeypatch, 20.0)
    await_steps_after([ended(loop, 20_000.0)], lambda _: None, lambda: loop.now_s > BEGAN_S + 3)
    assert loop.now_s - BEGAN_S == pytest.approx(3, abs=0.1)
    loop.now_s, loop.alive = BEGAN_S, False
    await_steps_after([ended(loop, 20_000.0)], lambda _: None, lambda: False)
    await_steps_after([], lambda _: None, lambda: False)
    assert loop.now_s == BEGAN_S


CONDITIONS = {"model": "Net", "inputs": ["float32[4, 8]"], "folder": "/work", "sys_path": ["/a", "/b"]}


class AskedLoop:
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
        monkeypatch.setattr(outcome, "_EVERY_S", 0)

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
    loop = AskedLoop(monkeypatch)
    loop.steps.last_ns = 5
    told = ask_conditions(loop)
    assert (told["model"], told["inputs"], told["folder"]) == ("Net", ["float32[4, 8]"], "/work")
    assert "missing" in told["sys_path"]
    assert loop.steps.last_ns > 5
    assert loop.mailbox.capture is None  # nothing of what records was loaded
    assert is_known(ask_conditions(loop))


def test_what_is_too_long_is_left_out_with_a_reason(monkeypatch):
    many = [f"float32[{at}, 1024, 1024, 1024]" for at in range(60)]
    told = ask_conditions(AskedLoop(monkeypatch, {**CONDITIONS, "inputs": many}))
    assert told["model"] == "Net"
    assert told["inputs"] == {"missing": "there was no room for it on the bus"}
    huge = ask_conditions(AskedLoop(monkeypatch, {**CONDITIONS, "model": "N" * wire_capture.TOLD_BYTES}))
    assert huge == Missing("the hook wrote more than fits")


def test_who_waits_for_another_request_is_not_disturbed(monkeypatch):
    loop = AskedLoop(monkeypatch)
    request = wire_capture.Request(9, wire_capture.KIND_CAPTURE, expires_ns=1 << 62, folder="/tmp", name="n")
    wire_capture.write_request(loop.box, request)
    loop.ends_steps = False
    assert "another capture" in ask_conditions(loop).reason
    assert loop.asked == 0


def test_a_capture_under_way_goes_on(monkeypatch):
    loop = AskedLoop(monkeypatch)
    heard = []
    loop.mailbox.capture = SimpleNamespace(
        under_way="a request",
        at_boundary=lambda: (heard.append(1), loop.steps.reply(loop.steps.requests[0], wire.ANSWER_BUSY)),
    )
    assert "another capture" in ask_conditions(loop).reason
    assert heard == [1]


@pytest.mark.parametrize(("alive", "why"), [(True, "no step ended"), (False, "the process ended")])
def test_a_loop_that_ends_no_step_is_not_waited_for_and_blocks_nobody(monkeypatch, alive, why):
    loop = AskedLoop(monkeypatch)
    loop.ends_steps, loop.alive = False, alive
    assert why in ask_conditions(loop, limit_s=0.01).reason
    assert loop.asked == 1
    loop.ends_steps, loop.alive = True, True
    assert is_known(ask_conditions(loop))


def test_an_older_hook_does_not_know_the_question(monkeypatch):
    loop = AskedLoop(monkeypatch)
    monkeypatch.setattr(Mailbox, "_describe", lambda _: False)
    assert "older tpmon" in ask_conditions(loop).reason


@pytest.mark.parametrize("at", [64, 72, 104, 64 + 14 * 8, 64 + 15 * 8, 1024])
def test_bytes_that_are_no_whole_request_get_nothing_told(monkeypatch, at):
    loop = AskedLoop(monkeypatch)
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
