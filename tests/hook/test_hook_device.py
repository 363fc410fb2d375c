"""Device times by events, on a card that the test plays: what is measured, and what is never called."""

from __future__ import annotations

import functools
import sys
import threading
import types
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.hook.test_hook_evaluations import run_in_thread
from tests.hook_loop import MS, Batches, Loop
from tpmon.hook import device
from tpmon.hook import step_sample as watch
from tpmon.hook.bus import wire, wire_capture, wire_settings
from tpmon.hook.capture import bounds as capture_begin
from tpmon.hook.capture import conditions
from tpmon.hook.capture.guard import Guard
from tpmon.hook.patches import DDP, LATER, PLACES, SCALER_BEFORE, Patches
from tpmon.hook.settings import Settings
from tpmon.model.hook import NO_DEVICE, TOO_LONG, DeviceTimes
from tpmon.model.known import is_known
from tpmon.probe.hooked.settings import parse_device, parse_settings


class Card:
    """Play torch.cuda: work that is queued takes as long as the host took, ``late_ms`` later."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.late_ms = 30.0
        self.capturing = self.broken = False
        self.events: list[Event] = []
        self.recorded = 0
        self.streams: list[Stream] = []
        self.reserved = [1 << 30, 0]
        self.stream = Stream("main")

    def is_initialized(self) -> bool:
        return True

    def compiled(self) -> types.SimpleNamespace:
        """Return torch._C, as far as it has to do with the card."""
        return types.SimpleNamespace(
            _cuda_getDevice=lambda: 0,
            _cuda_getDeviceCount=lambda: len(self.reserved),
            _cuda_memoryStats=self.memory_stats,
        )

    def memory_stats(self, device: int) -> dict[str, dict[str, dict[str, int]]]:
        return {"reserved_bytes": {"all": {"current": self.reserved[device]}}}

    def current_stream(self) -> Stream:
        return self.stream

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def Event(self, enable_timing: bool) -> Event:
        assert enable_timing
        self.events.append(Event(self))
        return self.events[-1]

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"torch.cuda.{name} is not to be called")


@dataclass(frozen=True)
class Stream:
    name: str
    device: int = 0


class Event:
    def __init__(self, card: Card) -> None:
        self.card = card
        self.at: float | None = None

    def record(self, stream: Stream) -> None:
        assert not self.card.capturing
        self.card.streams.append(stream)
        if self.card.broken:
            raise RuntimeError("CUDA error: unspecified launch failure")
        self.card.recorded += 1
        self.at = self.card.loop.now + self.card.late_ms * MS

    def query(self) -> bool:
        assert not self.card.capturing
        return self.card.loop.now >= self.at

    def elapsed_time(self, other: Event) -> float:
        assert self.query()
        assert other.query()
        return (other.at - self.at) / MS


def play_torch(card: Card, monkeypatch: pytest.MonkeyPatch) -> Card:
    """Have the hook find a torch with this card."""
    torch = types.ModuleType("torch")
    torch.__file__ = __file__  # an error of this card is one of torch
    torch.cuda = card
    torch._C = card.compiled()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(watch, "_EVERY_ON_CUDA_NS", 100 * MS)
    return card


@pytest.fixture
def card(loop, monkeypatch):
    return play_torch(Card(loop), monkeypatch)


def read(loop: Loop) -> DeviceTimes:
    times = parse_device(loop.steps.page, loop.now)
    assert is_known(times), times
    return times


def test_one_step_in_many_is_measured_by_phases_with_the_same_events_and_read_once_the_card_is_done(loop, card):
    loop.train(3, other_ms=1)
    assert parse_device(loop.steps.page, loop.now) == NO_DEVICE
    loop.train(8, other_ms=1)
    times = read(loop)
    assert (times.steps, times.dropped) == (1, 0)
    assert [times.step_ns, times.host_ns] == [12 * MS, 12 * MS]
    assert [times.forward_ns, times.backward_ns, times.optimizer_ns] == [3 * MS, 5 * MS, 1 * MS]
    loop.train(89, other_ms=1)
    times = read(loop)
    assert 5 <= times.steps <= 11
    assert times.step_ns == times.steps * 12 * MS
    assert times.every >= 9
    assert len(card.events) == 64
    assert card.recorded <= 8 * (times.steps + 1)


def train_beside(loop: Loop, card: Card, of: Stream, number: int) -> None:
    """Ask for batches inside a stream of their own, as a pipeline does that copies them ahead."""
    training = card.stream
    for _ in range(number):
        card.stream = of
        loop.batch()
        card.stream = training
        loop.backward()
        loop.update()
        loop.spend(1)


def test_all_of_a_step_is_measured_on_the_stream_of_its_backward(loop, card):
    train_beside(loop, card, Stream("copies"), 100)
    times = read(loop)
    assert times.dropped == 1, "the first, which began on the other stream"
    assert times.step_ns == times.steps * 12 * MS
    first = card.streams.index(card.stream)
    assert set(card.streams[first:]) == {card.stream}


def test_a_step_that_goes_on_on_another_device_is_not_measured(loop, card):
    train_beside(loop, card, Stream("copies", device=1), 100)
    assert parse_device(loop.steps.page, loop.now) == NO_DEVICE
    assert loop.steps.watcher._timer.words[wire_settings.DEV_DROPPED] > 1
    assert loop.steps.problem == ""


def test_while_a_graph_is_captured_nothing_is_recorded_or_asked(loop, card):
    loop.train(2, other_ms=1)
    card.capturing = True
    loop.train(50, other_ms=1)
    assert parse_device(loop.steps.page, loop.now) == NO_DEVICE
    card.capturing = False
    loop.train(30, other_ms=1)
    assert read(loop).steps >= 1
    assert read(loop).dropped >= 1


class Graph:
    """Play torch.cuda.CUDAGraph: ``within`` says which thread's capture is under way."""

    within: int = 0

    def capture_begin(self, mode: str = "global") -> None:
        if mode == "refused":
            raise RuntimeError("CUDA error: operation not permitted")
        Graph.within = threading.get_ident()

    def capture_end(self) -> None:
        Graph.within = 0


@pytest.fixture
def graphs(loop, card, monkeypatch):
    """Have the hook follow this class, and an event fail that is asked while another thread captures."""
    monkeypatch.setattr(Graph, "within", 0)
    ask = Event.query

    def query(self):
        assert Graph.within in (0, threading.get_ident()), "breaks the capture of another thread"
        return ask(self)

    monkeypatch.setattr(Event, "query", query)
    patches = Patches(loop.steps)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch.cuda.graphs", types.SimpleNamespace(CUDAGraph=Graph))
        for name in (*PLACES, *LATER, SCALER_BEFORE, DDP):
            patch.delitem(sys.modules, name, raising=False)
        patches.apply()
    yield Graph
    patches.take_back()
    assert not hasattr(Graph.capture_begin, "__wrapped__"), "it is put back"


def test_while_another_thread_captures_a_graph_no_event_is_asked(loop, card, graphs):
    """In CUDA's global mode that would break the capture, though none is of this thread's stream."""
    loop.train(8, other_ms=1)
    before = read(loop).steps
    graph = graphs()
    run_in_thread(graph.capture_begin)
    loop.train(60, other_ms=1)
    assert capture_begin.is_graph_captured()
    assert (loop.steps.problem, read(loop).steps) == ("", before)
    assert loop.steps.watcher._timer is not None
    run_in_thread(graph.capture_end)
    loop.train(60, other_ms=1)
    assert not capture_begin.is_graph_captured()
    assert read(loop).steps > before


def test_a_graph_that_is_gone_is_captured_no_more_and_a_capture_that_torch_refuses_is_none(loop, card, graphs):
    graph = graphs()
    graph.capture_begin()
    assert capture_begin.is_graph_captured()
    del graph
    assert not capture_begin.is_graph_captured()
    with pytest.raises(RuntimeError, match="not permitted"):
        graphs().capture_begin("refused")
    assert not capture_begin.is_graph_captured()


def state(loop: Loop) -> tuple[int, str]:
    told, _, text = wire.parse_status(loop.steps.pages.page)
    return told, text


def test_a_graph_that_holds_a_whole_step_is_said_to_hide_the_steps_and_what_to_call(loop, card, graphs):
    loop.train(3)
    graph = graphs()
    graph.capture_begin()
    loop.train(1)
    graph.capture_end()
    for _ in range(40):
        loop.batch()  # what it replays nobody sees
        loop.spend(5)
    assert state(loop)[0] == wire.STATE_UNSEEN
    assert "call tpmon.hook.step()" in state(loop)[1]
    for _ in range(40):
        loop.steps.step_called(4, True)
        loop.spend(5)
    assert state(loop) == (wire.STATE_RUNNING, "")


@pytest.mark.parametrize("part", ["forward", "of another thread", "said by the program"])
def test_a_graph_that_hides_no_step_is_not_mentioned(loop, card, graphs, part):
    loop.train(3)
    graph = graphs()
    if part == "of another thread":
        run_in_thread(lambda: (graph.capture_begin(), graph.capture_end()))
    else:
        graph.capture_begin()
        if part == "said by the program":
            loop.steps.step_called(4, True)
            loop.train(1)
        graph.capture_end()
    assert state(loop) == (wire.STATE_RUNNING, "")


def test_a_graph_beside_which_steps_go_on_is_forgotten(loop, card, graphs):
    """Of one network of two, say."""
    loop.train(3)
    graph = graphs()
    graph.capture_begin()
    loop.train(1)
    graph.capture_end()
    assert state(loop)[0] == wire.STATE_UNSEEN
    loop.train(20, other_ms=1)
    assert state(loop) == (wire.STATE_RUNNING, "")


def test_a_card_that_never_gets_there_is_given_up_and_never_waited_for(loop, card):
    card.late_ms = 10**9
    loop.train(6000, other_ms=10)
    assert parse_device(loop.steps.page, loop.now) == NO_DEVICE
    assert loop.steps.watcher._timer.words[wire_settings.DEV_DROPPED] >= 1
    assert loop.steps.problem == ""


def test_an_accumulation_of_more_parts_than_events_is_not_measured_and_says_so(loop, card):
    for _ in range(20):
        for _ in range(40):
            loop.batch()
            loop.backward()
        loop.update()
    loop.stop()
    assert (parse_device(loop.steps.page, loop.now), loop.steps.problem, loop.steps.steps) == (TOO_LONG, "", 20)
    loop.train(40, other_ms=1)
    assert read(loop).dropped >= 1


def test_an_error_of_the_card_ends_the_times_and_nothing_else(loop, card):
    loop.train(10, other_ms=1)
    card.broken = True
    loop.train(60, other_ms=1)
    loop.stop()
    assert (loop.steps.problem, loop.steps.steps, loop.steps.watcher._timer) == ("", 70, None)
    assert is_known(parse_settings(loop.steps.page, loop.now))


EVENTS = {
    "batch": lambda loop: loop.steps.data_ended(loop.iterator),
    "backward": lambda loop: loop.backward(),
    "update": lambda loop: loop.update(),
}


@pytest.mark.parametrize("event", EVENTS)
def test_a_watcher_that_is_broken_turns_the_hook_off_at_any_event(loop, event):
    loop.train(2)
    loop.steps.data_begins()
    loop.steps.watch = object()
    EVENTS[event](loop)
    loop.train(3)
    assert "AttributeError" in loop.steps.problem
    assert loop.turned_off == 1


@pytest.mark.parametrize("part", ["watcher", "settings", "page"])
def test_a_broken_part_of_it_turns_the_hook_off_at_the_end_of_a_step(loop, part):
    loop.train(3)
    if part == "watcher":
        loop.steps.watcher = 5
    elif part == "settings":
        loop.steps.watcher._settings.words = None
    else:
        loop.steps.watcher._steps = None
    loop.steps.watch_at = 0
    loop.train(4)
    assert "Error" in loop.steps.problem
    assert loop.turned_off == 1


def test_an_error_of_the_users_signal_handler_within_a_reading_is_the_users(loop, card, monkeypatch):
    namespace: dict[str, object] = {}
    source = "def ring(number, frame):\n    raise TimeoutError('theirs')\n"
    exec(compile(source, "/home/user/train.py", "exec"), namespace)
    torch = sys.modules["torch"]
    rings = functools.partial(namespace["ring"], 14, sys._getframe())  # as Python calls a handler
    torch._C = types.SimpleNamespace(get_num_threads=rings)
    with pytest.raises(TimeoutError, match="theirs"):
        loop.train(4)
    assert (loop.steps.problem, loop.turned_off) == ("", 0)
    del torch._C
    loop.train(4)
    loop.stop()
    assert loop.steps.problem == ""


def test_a_device_without_work_of_the_program_gets_no_event_and_so_no_context(loop, card):
    card.reserved = [0, 1 << 30]  # .to("cuda:1"), and no set_device
    loop.train(50, other_ms=1)
    assert card.recorded == 0
    assert parse_device(loop.steps.page, loop.now) == NO_DEVICE
    assert device.find_device(sys.modules["torch"]) == 1
    card.reserved = [1 << 20, 0]
    loop.train(500, other_ms=1)
    assert read(loop).steps >= 1
    assert device.find_device(sys.modules["torch"]) == 0
    card.reserved = [0, 0]
    assert device.find_device(sys.modules["torch"]) == -1


def test_an_allocator_that_does_not_say_what_it_holds_leaves_the_device_as_it_is(card, monkeypatch):
    """A pluggable one; an error that came out of a recording's end would leave torch's profiler on."""
    torch = sys.modules["torch"]
    monkeypatch.setattr(torch, "__file__", "/site-packages/torch/__init__.py", raising=False)

    def refuse(_torch, _device):
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    monkeypatch.setattr(device, "holds_work", refuse)
    refuse.__code__ = refuse.__code__.replace(co_filename="/site-packages/torch/cuda/memory.py")
    entered = []
    with device.on_device(torch):
        entered.append(1)
    assert entered == [1]


def test_a_step_that_begins_with_an_evaluation_is_watched_without_it(loop, card, monkeypatch):
    """Its loader and its batches are others, and the device worked for both."""
    loop.train(1, other_ms=1)
    loop.stop()
    seen: list[object] = []
    monkeypatch.setattr(Settings, "see_loader", lambda _self, iterator: seen.append(iterator))
    for _ in range(3):
        loop.steps.watch_at = 0
        loop.train(1)
        assert loop.steps.data_begins()  # the step ends here, and the next is watched
        other = Batches(64)
        loop.steps.data_ended(other)
        for _ in range(4):
            loop.spend(5)
            loop.batch(1, of=other)
        loop.spend(5)
        loop.stop()
        if loop.steps.watch is not None:
            break
    assert not loop.steps.watch._timer._measuring
    seen.clear()
    loop.train(1)
    assert seen == [loop.iterator]
    timer = loop.steps.watcher._timer
    assert timer.words[wire_settings.DEV_DROPPED] == 0


def test_what_waits_waits_for_each_device_in_use_and_goes_on_on_the_first(card):
    entered, waited = [], []

    @contextmanager
    def switch(number):
        entered.append(number)
        yield

    card.__dict__.update(device=switch, synchronize=waited.append)
    for reserved, expected in (([0, 9], [1]), ([9, 9], [0]), ([9, 0], [0]), ([0, 0], [])):
        entered.clear()
        waited.clear()
        card.reserved = reserved
        with device.on_device(sys.modules["torch"]):
            assert entered == expected
        assert waited == ([1] if reserved == [9, 9] else [])


def test_the_driver_is_asked_for_other_devices_only_where_the_current_one_holds_nothing(card):
    """And never by torch.cuda.device_count(), which in some torches waits for NVML."""
    torch = sys.modules["torch"]
    counted: list[int] = []
    torch._C._cuda_getDeviceCount = lambda: counted.append(1) or 2
    assert device.find_device(torch) == 0
    assert not counted
    card.reserved = [0, 9]
    assert device.find_device(torch) == 1
    assert counted == [1]


def test_a_driver_that_the_program_has_not_initialised_is_asked_for_nothing(loop, card):
    """Also in a forked child, where torch says so, and any call would fail or begin the driver anew."""
    asked: list[str] = []

    class Driver:
        def __getattr__(self, name):
            if name.startswith("_cuda"):
                asked.append(name)
            raise AttributeError(name)

    torch = sys.modules["torch"]
    torch._C = Driver()
    torch.__version__ = "2.13.0"
    card.__dict__["is_initialized"] = lambda: False
    loop.train(60, other_ms=1)
    assert "model" in conditions.read_conditions(loop.steps)
    with device.on_device(torch):
        assert not capture_begin.is_graph_captured()
    for kind in (wire_capture.KIND_SNAPSHOT, wire_capture.KIND_RANGE):
        assert Guard(print, print).refuse(kind) == "this process does not use CUDA"
    assert (asked, loop.steps.problem) == ([], "")


def test_an_allocator_that_makes_a_context_where_it_is_asked_is_asked_where_one_is(loop, card):
    """cudaMallocAsync does; the program works on device 1, device 0 is the current one of four."""
    contexts = {1}

    def ask(number):
        contexts.add(number)
        return card.memory_stats(number)

    card.reserved = [0, 1 << 30, 0, 0]
    torch = sys.modules["torch"]
    torch._C._cuda_memoryStats = ask
    torch._C._cuda_hasPrimaryContext = contexts.__contains__
    loop.train(60, other_ms=1)
    assert device.find_device(torch) == 1
    assert contexts == {1}
