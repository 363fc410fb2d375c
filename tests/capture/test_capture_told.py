"""What a capture says beside its events, what it prints when it is finished, and whose ranks it is of."""

import contextlib
import gzip
import json
import os
import sys
from collections import UserDict
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from tests.capture.test_kineto_told import settings
from tests.frames import make_gpu
from tests.goldens.capture_views import PATH, result, summary
from tests.traces import TraceBuilder
from tpmon.capture.files import CapturePlace, find_block, pack, read_summary, tell_steps, verify_trace
from tpmon.capture.outcome import CaptureOutcome, describe_rank
from tpmon.commands.command import choose_ranks
from tpmon.errors import UsageError
from tpmon.foreign_file import Owner
from tpmon.hook.bus import wire, wire_capture, wire_settings
from tpmon.hook.capture.conditions import read_conditions
from tpmon.hook.context import read_ranks
from tpmon.hook.settings import describe_batch
from tpmon.model.gpu import GpuProcess
from tpmon.model.known import NOT_APPLICABLE, Applicable, Missing, is_known
from tpmon.model.process import Role
from tpmon.model.results.capture import CapturedFile, CaptureKind, CaptureState, GpuClocks, RankCapture
from tpmon.probe.gpu.child_link import NO_GPU, ClockWatch, GpuReading
from tpmon.report.capture import write_capture, write_capture_line


class Pair(NamedTuple):
    """What a collate function may make."""

    x: object
    y: object


class Tensor:
    """What a batch holds, as far as it is asked."""

    def __init__(self, dtype: str, *shape: int) -> None:
        self.dtype = f"torch.{dtype}"
        self.shape = shape


class Own(Tensor):
    """A tensor class of the user's, which may run anything."""

    @property
    def shape(self):
        raise AssertionError("code of the user ran")

    @shape.setter
    def shape(self, value):
        pass


class Odd:
    """An object whose attributes are code of the user's."""

    def __getattribute__(self, name):
        raise AssertionError("code of the user ran")


@pytest.fixture
def torch(monkeypatch):
    made = SimpleNamespace(Tensor=Tensor, __version__="2.13", __file__="/nowhere/torch/__init__.py")
    monkeypatch.setitem(sys.modules, "torch", made)
    return made


X, Y = Tensor("float32", 8, 512), Tensor("int64", 8)


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (X, ["float32[8, 512]"]),
        ([X, Y], ["float32[8, 512]", "int64[8]"]),
        (Pair(X, [Y]), ["float32[8, 512]", "int64[8]"]),
        ({"input_ids": Y, 7: X}, ["input_ids int64[8]", "float32[8, 512]"]),
        (UserDict(input_ids=Y), ["input_ids int64[8]"]),
        ([X] * 100, ["float32[8, 512]"] * 16),
        ([[[[X]]]], []),
        (["text", 7, None, Odd(), Own("float32", 1)], []),
        (Tensor("bool"), ["bool[]"]),
    ],
)
def test_a_batch_is_told_by_its_plain_tensors(torch, batch, told):
    assert describe_batch(batch) == told


@pytest.mark.parametrize(("told", "at_first", "rank"), [(3, -1, 2), (3, 0, 2), (0, 5, 5), (0, -1, NOT_APPLICABLE)])
def test_a_file_is_looked_for_by_the_rank_that_names_it(told, at_first, rank):
    """The pages may be older than the process group, by which the hook names the file in the end."""
    bus = SimpleNamespace(
        process=SimpleNamespace(pid=7), header=SimpleNamespace(rank=at_first), read_records=lambda _: []
    )
    outcome = CaptureOutcome(CaptureState.VERIFIED, "", wire_capture.Progress(rank=told))
    assert describe_rank(bus, outcome, Missing("no"), 0.0).rank == rank


def test_the_hook_says_which_rank_names_the_file(monkeypatch):
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    assert read_ranks()[0] == 7
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 2, get_world_size=lambda: 4
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    assert read_ranks()[0] == 2


def settings_page(**words: int) -> memoryview:
    page = memoryview(bytearray(wire.TELEMETRY_BYTES))
    wire_settings.write_settings(page, settings(NUMBER=1, NUMBER_AGAIN=1, **words))
    return page


def test_autocast_is_what_it_was_in_the_backward_and_not_at_the_end_of_the_step(torch):
    torch.nn = SimpleNamespace(Module=type("Module", (), {}))
    on = settings_page(AUTOCAST=1, AUTOCAST_DTYPE=wire_settings.DTYPE_BFLOAT16)
    steps = SimpleNamespace(rule=wire.RULE_UPDATE, batch_size=4, watcher=SimpleNamespace(inputs=["x"]), page=on)
    told = read_conditions(steps)
    assert (told["autocast"], told["autocast_dtype"], told["inputs"]) == (True, "bfloat16", ["x"])
    assert told["mode"] == "training"
    steps = SimpleNamespace(rule=wire.RULE_BATCH, batch_size=0, watcher=None, page=settings_page(AUTOCAST=0))
    told = read_conditions(steps)
    assert told["mode"] == "evaluation"
    for one in (told["autocast"], told["autocast_dtype"]):
        assert one == {"missing": "it was off where the backward began"}, "most leave it before"
    assert "missing" in told["inputs"]


@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize(("before", "after"), [(0, 1 << 18), (1 << 18, 0), (1 << 18, 9)])
def test_clocks_go_into_the_block_of_the_hook_wherever_it_stands(tmp_path, quoted, before, after):
    told = {"model": "Nét", "clocks": "old"}
    block = json.dumps(json.dumps(told)) if quoted else json.dumps(told, ensure_ascii=False)
    path = tmp_path / "host-1-step3.pt.trace.json"
    text = f'{{"a": "{"é" * before}", "tpmon":\n {block}, "traceEvents": [], "b": "{"é" * after}"}}'
    path.write_text(text, encoding="utf-8")
    file, _, conditions = verify_trace(CapturePlace("/x", str(tmp_path)), "host-1", -1, 3, Missing("no GPU"), steps={})
    assert (conditions.model, conditions.clocks) == ("Nét", Missing("no GPU"))
    with gzip.open(file.host_path) as packed:
        whole = json.load(packed)
    found = json.loads(whole["tpmon"]) if quoted else whole["tpmon"]
    assert found == {"model": "Nét", "clocks": {"missing": "no GPU"}}
    assert (len(whole["a"]), len(whole["b"])) == (before, after)


def test_what_is_no_block_is_left_as_it_is(tmp_path):
    for text in (b'{"tpmon": [1]', b'{"tpmon": 7}', b'{"tpmon": "x"}', b"{}", b'{"tpmon": {"a": "\xff"}}'):
        assert find_block(text) is None
    trace = TraceBuilder().step(0, 0, 900)
    path = tmp_path / "host-1-step0.pt.trace.json"
    trace.write(path)
    before = path.read_bytes()
    file, _, conditions = verify_trace(CapturePlace("/x", str(tmp_path)), "host-1", -1, 0, (), steps={})
    assert conditions == Missing("the trace does not say it")
    with gzip.open(file.host_path) as packed:
        assert packed.read() == before


def test_a_window_by_time_is_told_by_its_length(tmp_path):
    trace = TraceBuilder()
    trace.op("aten::mm", 0, 500).op("aten::mm", 1_010_100, 500)
    path = tmp_path / "x.json"
    trace.write(path)
    with path.open("rb") as file:
        summary = read_summary(str(path), file.fileno(), 0)
    assert not isinstance(summary, Missing)
    file = CapturedFile("/x", "/x", 0, 0, 0, 2, 0, 9, CaptureKind.TRACE)
    timed = replace(result(), files=(file,), ranks=())
    assert "a window of 1010.60 ms, 2 events" in "\n".join(write_capture(timed, (summary,), "host"))
    assert "a window of 1010.60 ms" in write_capture_line(timed, (summary,))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "5 steps of 13.10 ms, 7,612 events"),
        ({"judged_steps": 4, "left_out_us": 1.2e6}, "5 steps, the usual 4 of 13.10 ms, 1,200.0 ms left out"),
        ({"steps": 2, "judged_steps": 1, "left_out_us": 50.0}, "2 steps, the usual one of 13.10 ms, 0.1 ms left out"),
        ({"steps": 0, "repeats": 40}, "no step is marked; 40 repeats of 13.10 ms, 7,612 events"),
        ({"steps": 0, "left_out_us": 300.0}, "a window of 13.10 ms, 0.3 ms left out, 7,612 events"),
    ],
)
def test_it_says_what_its_figures_are_of(changes, said):
    lines = write_capture(result(), (replace(summary(), **changes),), "node7")
    assert any(f"rank 0: {said}" in line for line in lines), lines


class Cards:
    """Answer as the GPU probe does: first that it waits, then with cards."""

    def __init__(self, *cards: object) -> None:
        self._answers = [Missing("waits for NVML"), cards]

    def read(self, job_pids: dict[int, int]) -> GpuReading:
        gpus = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return GpuReading(Missing("x"), gpus, Missing("x"), "", (), ())


def test_the_clocks_are_those_of_the_cards_that_are_used():
    mine = make_gpu(1, pids=(7,), sm_clock_mhz=1755.0, sm_clock_max_mhz=1980.0, memory_clock_mhz=2619.0)
    watch = ClockWatch({7: 1}, Cards(make_gpu(0, pids=(8,)), mine))
    assert watch.read() == (GpuClocks(1, mine.name, 1755.0, 1980.0, 2619.0),)
    assert ClockWatch({9: 1}, Cards(mine)).read(0.0) == Missing("waits for NVML")
    assert ClockWatch({9: 1}, Cards(mine)).read(0.06) == Missing("no card lists these processes")
    assert ClockWatch({7: 1}, None).read() == NO_GPU


@pytest.mark.parametrize(
    ("listed", "busy"),
    [
        (((7, 30.0),), True),
        (((7, 0.0),), False),
        (((7, Missing("x")),), True),
        (((7, Missing("x")), (8, 90.0)), False),
        (((7, 1.0), (8, 90.0)), True),
        (((8, 90.0),), False),
        ((), False),
    ],
)
def test_a_card_is_busy_for_whom_the_driver_says_or_who_is_alone_on_it(listed, busy):
    processes = tuple(GpuProcess(pid, 1, share, of_job=pid == 7) for pid, share in listed)
    watch = ClockWatch({7: 1}, Cards(make_gpu(pids=(7,), processes=processes)))
    watch.read(0.06)
    assert watch.busy == (frozenset((7,)) if busy else frozenset())


AROUND = RankCapture(1, 0, CaptureState.VERIFIED, "", 0, 5, 20.0, 4.9, 11.8, 5.0, steps_before=200)


def test_a_child_reads_the_trace_and_says_why_where_it_cannot(tmp_path):
    trace = TraceBuilder()
    for step in range(3):
        trace.step(step, step * 1000, 900).op("aten::mm", step * 1000 + 10, 500)
    path = tmp_path / "host-1-rank0-step0.pt.trace.json"
    trace.write(path, tpmon=json.dumps({"model": "Net", "mode": "training"}))
    file, summary, conditions = verify_trace(
        CapturePlace(str(tmp_path), str(tmp_path)),
        "host-1",
        0,
        0,
        (GpuClocks(0, "H100", 1755.0, 1980.0, Missing("x")),),
        steps=tell_steps(replace(AROUND, step_after_ms=Missing("it ended"))),
    )
    assert (summary.steps, file.steps, summary.operators[0].name) == (3, 3, "aten::mm")
    assert is_known(conditions)
    assert os.listdir(tmp_path) == [f"{path.name}.gz"]
    with gzip.open(file.path) as packed:
        whole = json.load(packed)
    assert json.loads(whole.pop("tpmon")) == {
        "model": "Net",
        "mode": "training",
        "clocks": [
            {"index": 0, "name": "H100", "sm_mhz": 1755.0, "sm_max_mhz": 1980.0, "memory_mhz": {"missing": "x"}}
        ],
        "step_before_ms": 4.9,
        "steps_before": 200,
        "step_during_ms": 11.8,
        "steps_during": 5,
        "step_after_ms": {"missing": "it ended"},
        "steps_after": 0,
    }
    assert whole["traceEvents"] == trace.events
    written = write_capture(replace(result(), files=(file,), ranks=(), conditions=conditions), (summary,), "host")
    assert "  of: Net, training, H100 at 1755 of 1980 MHz" in written
    assert f"read:  tpmon trace {file.host_path}" in written
    with (tmp_path / "empty.json").open("w+b") as empty:
        unread = read_summary(str(empty.name), empty.fileno(), 0)
    assert unread.reason.startswith(f"{tmp_path}/empty.json")


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_nothing_half_packed_is_left(tmp_path, monkeypatch, failure):
    """Ctrl-C ends the packing as well as a full disk does: the file stays as the hook wrote it."""
    path = tmp_path / "trace.json"
    path.write_text("{}")

    def fail(*_):
        raise failure

    monkeypatch.setattr("tpmon.capture.files._copy_part", fail)
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with path.open("rb") as source, contextlib.suppress(KeyboardInterrupt):
        assert pack(source, path.name, folder, Owner(os.geteuid(), os.getegid())) == path.name
    os.close(folder)
    assert os.listdir(tmp_path) == ["trace.json"]


NOT_TOLD = Missing("too few steps to tell")
(RANK,) = result().ranks


STOOD, WENT = "the loop paused for 34 ms", "the loop went on meanwhile"


@pytest.mark.parametrize(
    ("changes", "who", "said"),
    [
        ({}, "rank 0", f"steps 412-416; step before 12.00 ms, during 13.10 ms, after 12.05 ms; {STOOD}"),
        (
            {"rank": NOT_APPLICABLE, "step_after_ms": NOT_TOLD},
            "process 4211",
            f"steps 412-416; step before 12.00 ms, during 13.10 ms, after not known; {STOOD}",
        ),
        (
            {"first_step": Missing("kineto"), "paused_ms": Missing("kineto")},
            "rank 0",
            f"5 updates; step before 12.00 ms, during 13.10 ms, after 12.05 ms; {WENT}",
        ),
        ({"steps": 0}, "rank 0", f"a window by time; {STOOD}"),
        ({"state": CaptureState.GONE, "reason": "the process ended"}, "rank 0", "gone: the process ended"),
    ],
)
def test_a_rank_says_its_steps_before_during_and_after(changes, who, said):
    told = replace(result(), ranks=(replace(RANK, **changes),))
    assert write_capture(told, (summary(),), "node7")[1] == f"  {who}: {said}"


def test_the_files_are_fetched_by_one_line_that_can_be_pasted():
    lines = write_capture(result(), (summary(),), "node7")
    assert lines[-2] == f"fetch: scp node7:{PATH} ."
    (file,) = result().files
    odd = replace(file, host_path="/proc/7/root/tmp/a b;rm.json")
    lines = write_capture(replace(result(), files=(file, odd)), (), "node7")
    assert lines[-2] == f"fetch: scp node7:{PATH} 'node7:/proc/7/root/tmp/a b;rm.json' ."
    assert "  from this shell: /proc/7/root/tmp/a b;rm.json" in lines
    nothing = write_capture(replace(result(), files=()), (), "node7")
    assert not any("scp" in line for line in nothing)
    assert write_capture_line(result(), (summary(),)) == (
        f"capture done: 5 steps of 13.10 ms, most in aten::addmm, {PATH}"
    )


def make_member(pid: int, role: Role, rank: object, of: object = NOT_APPLICABLE) -> SimpleNamespace:
    return SimpleNamespace(identity=SimpleNamespace(pid=pid), role=role, rank=rank, rank_pid=of)


MEMBERS = (
    make_member(100, Role.LAUNCHER, NOT_APPLICABLE),
    make_member(103, Role.RANK, 3),
    make_member(102, Role.RANK, 2),
    make_member(104, Role.RANK, NOT_APPLICABLE),
    make_member(203, Role.WORKER, 3, 103),
    make_member(303, Role.HELPER, 3, 103),
)


def ask(
    meant: Applicable[int], asked_pid: int, *, every: bool = False, members: tuple[SimpleNamespace, ...] = MEMBERS
) -> list[int]:
    job = SimpleNamespace(root=SimpleNamespace(pid=100), asked_pid=asked_pid, members=members)
    return [one.identity.pid for one in choose_ranks(job, meant, every=every)]


@pytest.mark.parametrize(
    ("meant", "asked_pid", "pids"),
    [
        (NOT_APPLICABLE, 100, [102]),
        (NOT_APPLICABLE, 103, [103]),
        (NOT_APPLICABLE, 203, [103]),
        (NOT_APPLICABLE, 303, [103]),
        (NOT_APPLICABLE, 104, [104]),
        (3, 100, [103]),
        (3, 102, [103]),
        (2, 203, [102]),
    ],
    ids=str,
)
def test_the_rank_that_is_named_or_meant_is_captured(meant, asked_pid, pids):
    assert ask(meant, asked_pid) == pids
    assert ask(NOT_APPLICABLE, asked_pid, every=True) == [102, 103, 104]


def test_a_rank_that_is_not_here_is_refused():
    with pytest.raises(UsageError, match="--rank: rank 7 is not on this machine") as refused:
        ask(7, 103)
    assert refused.value.try_this == "here: 2-3"
    with pytest.raises(UsageError, match="the job of pid 100 has no rank on this machine"):
        ask(NOT_APPLICABLE, 100, members=MEMBERS[:1])
