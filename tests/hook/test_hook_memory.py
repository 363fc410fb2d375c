"""The CUDA allocator through the step that is watched, and what a forward keeps, on an allocator that the test plays."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from tests.hook.test_hook_device import Card, play_torch
from tests.hook_loop import Batches, Loop
from tpmon.hook.bus import wire_settings as wire
from tpmon.model.hook import AllocatorFigures, PhaseMemory, StateSizes
from tpmon.model.known import NOT_APPLICABLE, Missing, is_known
from tpmon.probe.hooked.settings import parse_settings

GIB = 1 << 30
RESTING = 4 * GIB


class Allocator(Card):
    """Play torch's caching allocator beside the card: what is held, and one peak."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.held = self.peak = RESTING
        self.asked = 0
        self.refuses = False

    def hold(self, size: int) -> None:
        self.held = size
        self.peak = max(self.peak, size)

    def reset_peak(self) -> None:
        self.peak = self.held

    def memory_stats(self, device: int) -> dict[str, object]:
        self.asked += 1
        if self.refuses:
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")
        used = self.held if device == 0 else 0
        kinds = {"current": used, "peak": self.peak if device == 0 else 0}
        names = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")
        return {**{name: {"all": kinds} for name in names}, "num_alloc_retries": 0, "num_ooms": 0}


@pytest.fixture
def card(loop, monkeypatch):
    return play_torch(Allocator(loop), monkeypatch)


def step(loop: Loop, card: Allocator, forward: int, backward: int, update: int = RESTING) -> None:
    """Take a step that holds so many bytes at most in each part, and as many as before after it."""
    loop.batch()
    use(loop, card, forward, backward)
    card.hold(update)
    card.hold(RESTING)
    loop.update()
    loop.spend(1)


def use(loop: Loop, card: Allocator, forward: int, backward: int) -> None:
    """Use a batch that came."""
    card.hold(forward)
    loop.spend(3)
    assert loop.steps.backward_begins()
    card.hold(backward)
    card.hold(RESTING + GIB)
    loop.spend(5)
    loop.steps.backward_ended(True)


def begin_watched(loop: Loop, card: Allocator) -> None:
    """Take steps up to the batch of the next one that is watched."""
    for _ in range(9):
        loop.spend(200)
        loop.batch()
        if loop.steps.watch is not None:
            return
        use(loop, card, RESTING, RESTING)
        loop.update()
    raise AssertionError("no step is watched")


def read(loop: Loop) -> AllocatorFigures:
    settings = parse_settings(loop.steps.page, loop.now)
    assert is_known(settings.allocator), settings.allocator
    return settings.allocator


def phases(loop: Loop) -> PhaseMemory:
    told = read(loop).phases
    assert is_known(told), told
    return told


def test_each_turn_of_the_watched_step_is_told_and_the_part_in_which_the_peak_rose_holds_it(loop, card):
    step(loop, card, 6 * GIB, 7 * GIB)  # nobody watches the first step
    for _ in range(3):
        step(loop, card, 9 * GIB, 12 * GIB)
    told = phases(loop)
    assert (told.after_batch_bytes, read(loop).allocated_at_backward_bytes) == (RESTING, 9 * GIB)
    assert (told.after_backward_bytes, told.after_update_bytes) == (RESTING + GIB, RESTING)
    assert (told.forward_peak_bytes, told.backward_peak_bytes, told.peak_phase) == (9 * GIB, 12 * GIB, "backward")
    assert isinstance(told.optimizer_peak_bytes, Missing)
    assert isinstance(told.other_peak_bytes, Missing)
    assert loop.steps.problem == ""


def test_an_update_and_what_is_between_steps_can_hold_it_too(loop, card):
    step(loop, card, 6 * GIB, 7 * GIB)
    step(loop, card, 6 * GIB, 7 * GIB, update=20 * GIB)
    loop.batch()
    told = phases(loop)
    assert (told.peak_phase, told.optimizer_peak_bytes) == ("optimizer", 20 * GIB)
    loop.steps.drop_pages()
    loop.steps.forget()
    step(loop, card, 6 * GIB, 7 * GIB)
    loop.batch()
    loop.backward()
    loop.update()
    card.hold(30 * GIB)  # a checkpoint, an evaluation
    loop.batch()
    told = phases(loop)
    assert (told.peak_phase, told.other_peak_bytes) == ("other", 30 * GIB)


def test_a_peak_of_a_step_that_nobody_watched_is_nobodys(loop, card):
    for size in (6, 9, 9):
        step(loop, card, size * GIB, 12 * GIB)
    step(loop, card, 9 * GIB, 40 * GIB)
    loop.spend(200)
    for _ in range(4):
        step(loop, card, 9 * GIB, 12 * GIB)
        loop.spend(200)
    told = phases(loop)
    assert "no step that was watched" in told.peak_phase.reason
    assert read(loop).peak_allocated_bytes == 40 * GIB


def test_a_peak_that_the_program_resets_is_found_again(loop, card):
    begin_watched(loop, card)
    use(loop, card, 9 * GIB, 12 * GIB)
    loop.update()
    card.reset_peak()
    begin_watched(loop, card)
    use(loop, card, 8 * GIB, 6 * GIB)
    loop.update()
    loop.batch()
    told = phases(loop)
    assert (told.peak_phase, told.forward_peak_bytes) == ("forward", 8 * GIB)
    begin_watched(loop, card)
    card.hold(RESTING)
    card.reset_peak()  # within the step, and what rises then is all there where the backward begins
    use(loop, card, 6 * GIB, 5 * GIB)
    loop.update()
    loop.batch()
    told = phases(loop)
    assert (told.peak_phase, told.forward_peak_bytes) == ("forward", 6 * GIB)
    begin_watched(loop, card)
    use(loop, card, 8 * GIB, 6 * GIB)
    card.hold(RESTING)
    loop.update()
    card.reset_peak()  # at the end of the step: what is left of the peak is of no part
    loop.batch()
    told = phases(loop)
    assert read(loop).peak_allocated_bytes == RESTING
    assert isinstance(told.peak_phase, Missing)
    assert isinstance(told.other_peak_bytes, Missing)


def test_it_is_asked_a_few_times_a_step_and_never_in_one_that_is_not_watched(loop, card):
    begin_watched(loop, card)
    use(loop, card, 9 * GIB, 12 * GIB)
    loop.update()
    loop.batch()
    assert loop.steps.watch is None
    asked = card.asked
    use(loop, card, 9 * GIB, 12 * GIB)
    assert card.asked == asked
    loop.update()
    begin_watched(loop, card)
    asked = card.asked
    for _ in range(200):  # parts of an accumulation
        use(loop, card, 9 * GIB, 12 * GIB)
        loop.batch()
    loop.update()
    loop.batch()
    assert 60 < card.asked - asked < 80
    assert phases(loop).after_update_bytes == RESTING + GIB


def test_an_evaluation_within_the_watched_step_is_no_forward_of_it(loop, card):
    step(loop, card, 6 * GIB, 7 * GIB)
    loop.stop()
    other = Batches(64)
    for _ in range(9):
        loop.spend(200)
        assert loop.steps.data_begins()  # the step ends here, and it may be that the next is watched
        loop.steps.data_ended(other)
        if loop.steps.watch is not None:
            break
        loop.stop()
        step(loop, card, 6 * GIB, 7 * GIB)
    assert loop.steps.watch is not None
    card.hold(50 * GIB)
    card.hold(RESTING - GIB)
    for _ in range(3):
        loop.spend(5)
        loop.batch(1, of=other)
    loop.spend(5)
    loop.stop()
    card.hold(RESTING)
    step(loop, card, 6 * GIB, 7 * GIB)
    loop.batch()
    told = phases(loop)
    assert (told.peak_phase, told.other_peak_bytes) == ("other", 50 * GIB)
    assert told.after_batch_bytes == RESTING, "of the batch that was trained on"


def test_an_allocator_that_does_not_tell_leaves_all_else_told(loop, card):
    card.refuses = True
    for _ in range(8):
        step(loop, card, 6 * GIB, 7 * GIB)
    assert loop.steps.problem == ""
    settings = parse_settings(loop.steps.page, loop.now)
    assert not is_known(settings.allocator)


@pytest.mark.parametrize("left", [0, wire.UNKNOWN])
def test_a_page_of_an_older_hook_has_no_turns(left):
    words = [1] * wire.SETTINGS_WORDS
    words[wire.SET_ALLOCATED_AFTER_BATCH : wire.SET_NUMBER_AGAIN] = [left] * 18
    page = memoryview(bytearray(4096))
    wire.write_settings(page, words)
    settings = parse_settings(page, 5)
    assert settings.allocator.phases == Missing("no step was watched from turn to turn")


CPU = -1


class Tensor:
    """A tensor, by what is asked of one."""

    grad: Tensor | None = None

    def __init__(self, size: int, device: int = 0) -> None:
        self.size, self.device = size, device

    def numel(self) -> int:
        return self.size

    def element_size(self) -> int:
        return 1

    @property
    def is_cuda(self) -> bool:
        return self.device >= 0

    def get_device(self) -> int:
        return self.device


Tensor.__module__ = "torch"


class Optimizer:
    """An optimizer, by what torch's has: 2 GiB of parameters and 4 of state."""

    def __init__(self, device: int = 0, state_on: int = 0) -> None:
        self.parameters = [Tensor(GIB, device), Tensor(GIB, device)]
        self.param_groups = [{"params": self.parameters}]
        self.state = {
            one: {"step": Tensor(4, CPU), "exp_avg": Tensor(2 * GIB, state_on), "eps": 0.1} for one in self.parameters
        }

    def grow(self) -> None:
        for one in self.parameters:
            one.grad = Tensor(GIB, one.device)

    def zero_grad(self) -> None:
        for one in self.parameters:
            one.grad = None


@pytest.fixture
def torch(card):
    module = sys.modules["torch"]
    module.Tensor = Tensor
    module._C = types.SimpleNamespace(
        _cuda_getDevice=lambda: 0, _cuda_memoryStats=card.memory_stats, is_anomaly_enabled=lambda: False
    )
    return module


def train(loop: Loop, card: Allocator, optimizers: list[Any], resting: int, forward: int, **how: bool) -> None:
    """Take steps that hold so many bytes between them and where a backward begins, gradients apart."""
    for _ in range(60):
        if loop.steps.watcher is not None and loop.steps.watcher._settings._readings > 3:
            return
        gradients = 0 if how.get("zeroed", True) else 2 * GIB
        card.hold(resting + gradients)
        loop.batch()
        loop.spend(200)
        card.hold(resting + gradients + forward)
        assert loop.steps.backward_begins()
        card.hold(resting + 2 * GIB)
        loop.steps.backward_ended(True)
        for one in optimizers:
            one.grow()
            loop.steps.optimizer_stepped(one, (), {})
            if how.get("zeroed", True):
                one.zero_grad()
    raise AssertionError("nothing was read")


def sizes(loop: Loop) -> StateSizes:
    settings = parse_settings(loop.steps.page, loop.now)
    assert is_known(settings.sizes), settings.sizes
    return settings.sizes


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("zeroed", [True, False])
def test_parameters_state_and_gradients_are_no_activations(loop, card, zeroed):
    optimizer = Optimizer()
    train(loop, card, [optimizer], 6 * GIB, 9 * GIB, zeroed=zeroed)
    held = 15 * GIB if zeroed else 17 * GIB
    assert read(loop).allocated_at_backward_bytes == held
    assert sizes(loop) == StateSizes(2 * GIB, 2 * GIB, 4 * GIB + 8, 9 * GIB)


def part_elsewhere(device: int) -> Optimizer:
    optimizer = Optimizer()
    optimizer.parameters[1].device = device
    return optimizer


CASES = {
    "a little lies there too: the loss of the step before, perhaps": (lambda: [Optimizer()], 8, 11),
    "frozen parameters lie there too": (lambda: [Optimizer()], 30, 9),
    "state on the host is not taken off": (lambda: [Optimizer(state_on=CPU)], 2, 9),
    "parameters on the host": (lambda: [part_elsewhere(CPU)], 6, "not on the one device"),
    "parameters on another device": (lambda: [part_elsewhere(1)], 6, "not on the one device"),
    "several optimizers": (lambda: [Optimizer(), Optimizer()], 12, "one optimizer"),
}
"""The optimizers, GiB between two steps (9 more where a backward begins), and of activations, or why they are not known."""


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(("optimizers", "resting", "expected"), CASES.values(), ids=CASES)
def test_what_is_no_parameter_state_or_gradient_is_an_activation(loop, card, optimizers, resting, expected):
    train(loop, card, optimizers(), resting * GIB, 9 * GIB)
    told = sizes(loop).activation_bytes
    if isinstance(expected, int):
        assert told == expected * GIB
    else:
        assert isinstance(told, Missing)
        assert expected in told.reason


@pytest.mark.usefixtures("torch")
def test_it_is_never_below_nothing(loop, card):
    optimizer = Optimizer()
    train(loop, card, [optimizer], GIB, GIB)
    assert loop.steps.watcher._settings.words[wire.SET_ACTIVATIONS] == 0
    assert isinstance(sizes(loop).activation_bytes, Missing), "as on a page of an older hook"


def test_tensors_of_the_programs_own_types_are_not_asked(loop, card, torch):
    class Odd(Tensor):
        def numel(self):
            raise AssertionError("a type of the program")

    optimizer = Optimizer()
    optimizer.parameters.append(Odd(GIB))
    train(loop, card, [optimizer], 6 * GIB, 9 * GIB)
    settings = parse_settings(loop.steps.page, loop.now)
    assert not is_known(settings.sizes)
    assert (loop.steps.problem, loop.steps.watcher._settings.words[wire.SET_ACTIVATIONS]) == ("", -1)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({wire.SET_CUDA: 0}, "not in use"),
        ({wire.SET_FSDP_VERSION: 2}, "FSDP"),
        ({wire.SET_ACTIVATIONS: 0}, "no step of one optimizer"),
        ({wire.SET_ACTIVATIONS: wire.UNKNOWN}, "no step of one optimizer"),
    ],
)
def test_where_there_is_no_estimate_the_reason_is_told(words, why):
    every = [1] * wire.SETTINGS_WORDS
    every[wire.SET_FSDP_VERSION] = wire.UNKNOWN
    for word, value in words.items():
        every[word] = value
    page = memoryview(bytearray(4096))
    wire.write_settings(page, every)
    settings = parse_settings(page, 5)
    told = settings.sizes.activation_bytes
    assert why in told.reason


def test_files_of_before_have_none():
    assert StateSizes(1, 1, 1).activation_bytes is NOT_APPLICABLE
